// Decisions that wait for people: the most urgent first, each with everything that is needed to decide. What somebody else
// decides meanwhile is shown.

/** @import { Json, Schema, Visit } from "../lib/types.js" */

import { fill, freshId, h } from "../lib/dom.js";
import { ApiError, get, getExact, newKey, post, session } from "../lib/api.js";
import { formOf } from "../lib/form.js";
import { when } from "../lib/time.js";
import { bind } from "../lib/keys.js";
import { navigate } from "../lib/router.js";
import { asCurl, copyMenu } from "../lib/copy.js";
import { empty, loading, refused } from "../parts/rest.js";
import { stateBadge } from "../parts/states.js";
import { icon } from "../parts/icons.js";
import { toast } from "../parts/toast.js";
import { valueTable } from "../parts/value.js";

export const title = "Inbox";

/**
 * @typedef {{ by: string, approve: boolean, at: string, comment: string | null }} Decision
 * @typedef {object} Approval
 * @property {string} run_id
 * @property {string} workflow_id
 * @property {string} step_id
 * @property {string} title
 * @property {string} subject_digest
 * @property {Json} subject
 * @property {string[]} approvers
 * @property {number} quorum
 * @property {number} given
 * @property {string} since
 * @property {string | null} deadline
 * @property {boolean} overdue
 * @property {string | null} at_deadline
 * @property {Schema | null} form
 * @property {boolean} not_requester
 * @property {string} requester
 * @property {Decision[]} decisions
 *
 * @typedef {{ state: string, run_state: string, open: Approval | null, decisions: Decision[], summary: string }} One
 */

/** More are not listed at once: nobody decides so many. */
const MOST = 500;
/** After a change the list is read again, at most this often. */
const CALM = 400;
const DECIDER = "abide.decides_as";

/** @type {import("../lib/types.js").Screen["mount"]} */
export function mount(place, visit) {
  const list = h("ol", { class: "inbox-list", "aria-label": "Decisions that wait" });
  const detail = h("section", { class: "inbox-detail", "aria-label": "The decision" });
  const count = h("p", { class: "faint", role: "status" });
  fill(place,
    h("header", { class: "screen-head" }, h("h1", null, title), count),
    h("div", { class: "inbox" }, list, detail));

  /** @type {Approval[]} */
  let approvals = [];
  let chosen = nameIn(visit);
  /** What the detail shows, so that reading again does not take away what somebody types. */
  let shown = "";
  let timer = 0;

  const read = async () => {
    try {
      ({ approvals } = await getExact(`/v1/approvals?limit=${MOST}`));
    } catch (error) {
      fill(place, h("h1", null, title), refused(error, () => location.reload()));
      return;
    }
    fill(count, approvals.length === 0 ? null : approvals.length === MOST ? `The ${MOST} most urgent` : `${approvals.length} ${approvals.length === 1 ? "waits" : "wait"}`);
    paint();
  };

  const soon = () => {
    clearTimeout(timer);
    timer = window.setTimeout(() => void read(), CALM);
  };

  const paint = () => {
    place.classList.toggle("has-choice", chosen !== "");
    const held = list.contains(document.activeElement);
    fill(list, approvals.map((one) => row(one, nameOf(one) === chosen)));
    if (held) /** @type {HTMLElement | null} */ (list.querySelector("[aria-current]"))?.focus();
    const found = approvals.find((one) => nameOf(one) === chosen);
    if (found) {
      const version = `${chosen} ${found.subject_digest} ${found.given} ${found.deadline}`;
      if (shown !== version) {
        shown = version;
        fill(detail, back(), question(found, decided));
      }
    } else if (chosen && shown !== `${chosen} closed`) {
      shown = `${chosen} closed`;
      void showClosed(detail, chosen);
    } else if (!chosen) {
      shown = "";
      fill(detail, approvals.length ? pick(approvals.length) : empty("Nobody waits for a decision", h("p", null, "Approvals appear here as soon as a run asks for one.")));
    }
  };

  const decided = () => {
    soon();
    shown = `${chosen} closed`;
    void showClosed(detail, chosen);
  };

  /** @param {number} step */
  const move = (step) => {
    const at = approvals.findIndex((one) => nameOf(one) === chosen);
    const next = approvals[Math.max(0, Math.min(approvals.length - 1, at + step))];
    if (next) {
      navigate(hrefOf(next));
      /** @type {HTMLElement | null} */ (list.querySelector("[aria-current]"))?.focus();
    }
  };
  const unbind = bind([
    { keys: "j", about: "Next decision", act: () => move(1) },
    { keys: "k", about: "Previous decision", act: () => move(-1) },
  ]);

  fill(detail, loading(4));
  void read();
  return {
    update(next) {
      chosen = nameIn(next);
      paint();
    },
    records(runs) {
      // Every change of a run that is listed, and every run that begins to wait, may change the list.
      const listed = new Set(approvals.map((one) => one.run_id));
      if (runs.some((run) => listed.has(run.run_id) || run.blocks.some((block) => block.type === "approval_required"))) soon();
    },
    resync: () => void read(),
    unmount() {
      clearTimeout(timer);
      unbind();
    },
  };
}

/** @param {Approval} one */
function nameOf(one) {
  return `${one.run_id}/${one.step_id}`;
}

/** @param {Visit} visit */
function nameIn(visit) {
  const [run, step] = [visit.url.searchParams.get("run"), visit.url.searchParams.get("step")];
  return run && step ? `${run}/${step}` : "";
}

/** @param {Approval} one */
function hrefOf(one) {
  return `/inbox?${new URLSearchParams({ run: one.run_id, step: one.step_id })}`;
}

/** @param {Approval} one @param {boolean} current */
function row(one, current) {
  return h("li", null, h("a", { class: "inbox-row", href: hrefOf(one), "aria-current": current ? "true" : null },
    h("span", { class: "inbox-title" }, one.title || one.step_id),
    h("span", { class: "inbox-of cut" }, one.workflow_id, " · ", one.run_id),
    h("span", { class: one.overdue ? "inbox-when fault" : "inbox-when" },
      one.deadline ? [icon(one.overdue ? "operator" : "timer"), when(one.deadline, "until")] : [icon("timer"), "no deadline"]),
    h("span", { class: "inbox-who cut" }, icon("person"), one.approvers.join(", ") || "anybody who may approve")));
}

/** @param {number} count */
function pick(count) {
  return h("div", { class: "rest" }, icon("inbox", "large"), h("h2", null, count === 1 ? "One decision waits" : `${count} decisions wait`),
    h("p", null, "Choose one, or press ", h("kbd", null, "j"), "."));
}

function back() {
  return h("a", { class: "inbox-back button quiet", href: "/inbox" }, icon("left"), "All decisions");
}

/** @param {Approval} one */
function facts(one) {
  return h("dl", { class: "facts" },
    fact("Deadline", one.deadline ? [when(one.deadline, "until"), one.at_deadline && h("span", { class: "faint" }, `, then ${one.at_deadline}`)] : "none: it waits until somebody decides"),
    fact("Who may decide", [one.approvers.join(", ") || "anybody who may approve", one.not_requester && h("span", { class: "faint" }, `, but not ${one.requester}, who asked`)]),
    one.quorum > 1 && fact("Approvals", `${one.given} of ${one.quorum}`),
    fact("Waits", when(one.since, "age")),
    fact("Run", [h("a", { href: `/runs/${encodeURIComponent(one.run_id)}` }, one.run_id)]),
    fact("Step", [one.step_id, " of ", h("a", { href: `/workflows/${encodeURIComponent(one.workflow_id)}` }, one.workflow_id)]),
    fact("Digest of the subject", h("code", { class: "cut digest", title: one.subject_digest }, one.subject_digest)));
}

/** @param {string} name @param {import("../lib/types.js").Child} what */
function fact(name, what) {
  return h("div", null, h("dt", null, name), h("dd", null, what));
}

/** @param {Decision[]} decisions */
function answers(decisions) {
  if (!decisions.length) return null;
  return h("ul", { class: "decisions" }, decisions.map((one) => h("li", null,
    icon(one.approve ? "done" : "failed"), h("span", null, h("strong", null, one.by), one.approve ? " approved " : " rejected ", when(one.at),
      one.comment && h("q", { class: "soft" }, one.comment)))));
}

/** The subject, the form and the two buttons. @param {Approval} one @param {() => void} decided */
function question(one, decided) {
  const form = one.form ? formOf(one.form) : null;
  const comment = h("textarea", { rows: 2, id: freshId("comment") });
  const who = decider(one);
  const told = h("div", { role: "alert" });
  const key = newKey();
  const approve = h("button", { class: "primary", type: "submit", data: { action: "approve" } }, icon("done"), "Approve");
  const reject = h("button", { class: "danger", type: "button", data: { action: "reject" } }, icon("failed"), "Reject");

  const decide = async (/** @type {"approve" | "reject"} */ deed) => {
    fill(told);
    const filled = deed === "approve" && form ? form.read() : null;
    if (filled && "faults" in filled) return;
    const by = who.read();
    if (by === null) return;
    approve.disabled = reject.disabled = true;
    try {
      await post(`/v1/runs/${encodeURIComponent(one.run_id)}/${deed}`, {
        step_id: one.step_id, subject_digest: one.subject_digest, ...by,
        ...(comment.value.trim() ? { comment: comment.value.trim() } : {}),
        ...(filled ? { form: filled.value } : {}),
      }, { key: `${key}-${deed}` });
      toast(deed === "approve" ? `Approved: ${one.title}` : `Rejected: ${one.title}`, "good");
      decided();
    } catch (error) {
      // Somebody was faster: that is news, not an error.
      if (error instanceof ApiError && OVER.includes(error.code)) return decided();
      approve.disabled = reject.disabled = false;
      if (error instanceof ApiError && form) form.show(error.fields.filter((fault) => fault.pointer.startsWith("/form")).map((fault) => ({ ...fault, pointer: fault.pointer.slice("/form".length) })));
      fill(told, h("p", { class: "fault" }, error instanceof Error ? error.message : String(error)));
    }
  };
  reject.addEventListener("click", () => void decide("reject"));
  const body = { step_id: one.step_id, subject_digest: one.subject_digest };
  const href = `/v1/runs/${encodeURIComponent(one.run_id)}/approve`;

  return h("article", { class: "panel" },
    h("header", { class: "panel-head" }, h("h2", null, one.title || one.step_id), h("span", { class: "grow" }),
      copyMenu("Copy", () => [
        { title: "Copy link", text: new URL(hrefOf(one), location.origin).href },
        { title: "Copy as curl", text: asCurl("POST", href, { ...body, decision_by: "YOU" }) },
        { title: "Copy as command", text: `abide approve ${one.run_id} --step ${one.step_id} --by YOU` },
      ])),
    h("div", { class: "panel-body inbox-body" },
      facts(one),
      h("section", null, h("h3", null, "What is decided"), one.subject === null ? h("p", { class: "faint" }, "The subject is shown to those who may decide.") : valueTable(one.subject)),
      answers(one.decisions),
      h("form", { on: { submit: (/** @type {Event} */ event) => { event.preventDefault(); void decide("approve"); } } },
        form?.element,
        who.element,
        h("div", { class: "field" }, h("label", { for: comment.id }, "Comment", h("span", { class: "faint" }, " optional")), comment),
        told,
        h("div", { class: "actions" }, approve, reject))));
}

const OVER = ["already-decided", "approval-expired", "not-waiting", "run-terminal"];

/** In whose name it is decided: the key's own, or whoever is named where there are no keys. @param {Approval} one */
function decider(one) {
  const known = session();
  if (known?.uses_keys && !known.acts_for_others) {
    return { element: h("p", { class: "note" }, "You decide as ", h("strong", null, known.principal), "."), read: () => ({}) };
  }
  const people = one.approvers.filter((name) => !name.startsWith("role:"));
  const options = freshId("people");
  const input = h("input", { id: freshId("decider"), value: localStorage.getItem(DECIDER) ?? people[0] ?? "", list: options, autocomplete: "off", "aria-required": "true" });
  const told = h("p", { class: "fault", hidden: true, id: freshId("fault") }, "Say who decides.");
  input.setAttribute("aria-describedby", told.id);
  const element = h("div", { class: "field" }, h("label", { for: input.id }, "Who decides"), input, told,
    h("datalist", { id: options }, people.map((name) => h("option", { value: name }))));
  const read = () => {
    const name = input.value.trim();
    told.hidden = name !== "";
    input.setAttribute("aria-invalid", String(name === ""));
    if (!name) {
      input.focus();
      return null;
    }
    localStorage.setItem(DECIDER, name);
    return { decision_by: name };
  };
  return { element, read };
}

/** What became of a decision that does not wait any more. @param {HTMLElement} detail @param {string} name */
async function showClosed(detail, name) {
  const cut = name.indexOf("/");
  const [run, step] = [name.slice(0, cut), name.slice(cut + 1)];
  try {
    /** @type {One} */
    const one = await get(`/v1/runs/${encodeURIComponent(run)}/approvals/${encodeURIComponent(step)}`);
    const last = one.decisions.at(-1);
    fill(detail, back(), h("article", { class: "panel decided" },
      h("header", { class: "panel-head" }, h("h2", null, last ? (last.approve ? "Approved" : "Rejected") : "Not decided by anybody"), stateBadge(one.run_state)),
      h("div", { class: "panel-body inbox-body" },
        answers(one.decisions),
        h("p", null, one.summary),
        h("p", null, h("a", { href: `/runs/${encodeURIComponent(run)}` }, "Open the run")))));
  } catch (error) {
    fill(detail, back(), refused(error));
  }
}
