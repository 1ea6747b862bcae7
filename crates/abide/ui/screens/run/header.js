// The head of a run, always in the same order: state, reason, freshness, actions, attempt, step, lease holder, evidence.

/** @import { Evidence, Reason, Run } from "../../lib/types.js" */
/** @import { RunContext } from "../run.js" */

import { fill, h, safeAddress } from "../../lib/dom.js";
import { clock, when } from "../../lib/time.js";
import { asCurl, copyMenu, quoted } from "../../lib/copy.js";
import { actionBar, ways } from "../../parts/actions.js";
import { icon } from "../../parts/icons.js";
import { stateBadge, words } from "../../parts/states.js";

/** @param {RunContext} context */
export function header(context) {
  const past = h("div", { class: "past", role: "status", hidden: true });
  const top = h("div", { class: "run-top" });
  const state = h("div", { class: "run-state" });
  const said = h("p", { class: "run-said" });
  const fresh = h("p", { class: "run-fresh" });
  const actions = h("div", { class: "run-actions" });
  const progress = h("div", { class: "run-progress", hidden: true });
  const facts = h("dl", { class: "facts run-facts" });
  const blocks = h("div", { class: "run-blocks" });
  const element = h("header", { class: "run-head" }, past, top, state, said, fresh, progress, actions, facts, blocks);
  let offered = "";
  return {
    element,
    /** @param {Run} run @param {number | null} at */
    show(run, at) {
      past.hidden = at === null;
      if (at !== null) fill(past, icon("timer"), h("span", null, `As it was after event ${run.as_of_seq}, ${clock(run.updated_at)}`), h("button", { type: "button", class: "small", on: { click: () => context.travel(null) } }, "Back to now"));
      fill(top, crumbs(run), h("span", { class: "grow" }), copies(run));
      fill(state, stateBadge(run.state), h("span", { class: "faint" }, stateSince(run, at)));
      if (said.textContent !== run.summary) said.textContent = run.summary;
      fill(fresh, freshness(run, at));
      showProgress(progress, run);
      // Buttons stay the same elements while they say the same, so that a click never misses.
      const next = JSON.stringify(run.next_actions) + at;
      if (next !== offered) {
        offered = next;
        fill(actions, at === null && run.next_actions.length > 0 && actionBar(run, run.next_actions, context.done));
      }
      fill(facts, factsOf(run));
      fill(blocks, others(run));
    },
  };
}

/** In the past nothing ticks. @param {Run} run @param {number | null} at */
function stateSince(run, at) {
  if (at !== null) return `since ${clock(run.since)}`;
  return run.ended_at ? ["ended ", when(run.ended_at)] : ["for ", when(run.since, "age")];
}

/** @param {Run} run */
function crumbs(run) {
  return h("nav", { class: "crumbs", "aria-label": "Where this run belongs" },
    h("a", { href: "/" }, "Runs"), icon("right"),
    h("a", { href: `/?workflow=${encodeURIComponent(run.workflow_id)}` }, run.workflow_id), icon("right"),
    run.parent && [h("a", { href: `/runs/${encodeURIComponent(run.parent.run_id)}` }, run.parent.run_id), icon("right")],
    h("h1", null, h("code", null, run.run_id)));
}

/** @param {Run} run */
function copies(run) {
  return copyMenu("Copy this run", () => [
    { title: "Copy link", text: location.href },
    { title: "Copy id", text: run.run_id },
    { title: "Copy as curl", text: asCurl("GET", `/v1/runs/${encodeURIComponent(run.run_id)}`) },
    { title: "Copy as command", text: `abide explain ${quoted(run.run_id)}` },
    ...run.next_actions.slice(0, 3).flatMap((action) => ways(run, action).map((way) => ({ title: `${way.title}: ${action.title}`, text: way.text }))),
  ]);
}

/** The last proof of life, and how long it still counts. @param {Run} run @param {number | null} at */
function freshness(run, at) {
  if (run.ended_at || at !== null) return [icon("heart"), "Last event ", at === null ? when(run.updated_at) : clock(run.updated_at)];
  return [
    icon("heart"),
    run.last_heartbeat_at ? ["Last heartbeat ", when(run.last_heartbeat_at)] : "No heartbeat yet",
    run.lease_expires_at && [" · lease ends ", when(run.lease_expires_at, "until")],
    run.next_retry_at && [" · tried again ", when(run.next_retry_at, "until")],
    run.blocking_reason?.until && !run.next_retry_at && [run.blocking_reason.overdue ? " · was expected " : " · until ", when(run.blocking_reason.until, "until")],
    h("span", { class: "faint" }, " · last event ", when(run.updated_at)),
  ];
}

/** @param {HTMLElement} place @param {Run} run */
function showProgress(place, run) {
  const told = run.progress;
  place.hidden = !told;
  if (!told) return;
  const text = `${told.step_id}: ${told.done}${told.total ? ` of ${told.total}` : ""}${told.message ? ` · ${told.message}` : ""}`;
  fill(place, told.total ? h("progress", { max: told.total, value: told.done, "aria-label": text }) : null, h("span", { class: "small soft" }, text));
}

/** @param {Run} run */
function factsOf(run) {
  /** @type {[string, import("../../lib/types.js").Child][]} */
  const rows = [
    ["Attempt", String(run.attempt)],
    ["Step", run.step_id ? h("a", { href: `/runs/${encodeURIComponent(run.run_id)}?tab=events&step=${encodeURIComponent(run.step_id)}` }, run.step_id) : "–"],
    ["Lease holder", run.lease_owner ? [h("span", null, run.lease_owner), h("span", { class: "faint" }, ` · epoch ${run.lease_epoch}`), run.leases > 1 && h("span", { class: "faint" }, ` · ${run.leases} leases`)] : "–"],
    ["Evidence", evidenceLinks(run.evidence_links)],
    ["Started", when(run.started_at ?? run.created_at)],
    ["Version", [h("a", { href: `/workflows/${encodeURIComponent(run.workflow_id)}` }, `${run.workflow_id} ${run.workflow_version}`)]],
  ];
  if (run.owner_id) rows.push(["Owner", run.owner_id]);
  if (run.children) rows.push(["Children", h("a", { href: `/?parent=${encodeURIComponent(run.run_id)}` }, `${run.children} child ${run.children === 1 ? "run" : "runs"}`)]);
  if (run.origin?.run_id) rows.push([words(run.origin.kind), h("a", { href: `/runs/${encodeURIComponent(run.origin.run_id)}` }, run.origin.run_id)]);
  const labels = Object.entries(run.labels);
  if (labels.length) rows.push(["Labels", labels.map(([name, value]) => h("a", { class: "label-chip cut", href: `/?label.${encodeURIComponent(name)}=${encodeURIComponent(value)}` }, `${name}: ${value}`))]);
  return rows.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value)));
}

/** What can be followed is a link; anything else is shown as text. @param {Evidence[]} links */
export function evidenceLinks(links) {
  if (!links.length) return "–";
  return h("span", { class: "evidence" }, links.map((one) => {
    const followed = /^(https?:\/\/|\/)/.test(one.ref) && safeAddress(one.ref);
    return followed ? h("a", { href: one.ref, title: one.ref, download: one.type === "bundle" }, one.type) : h("span", { class: "evidence-text", title: one.ref }, h("span", null, one.type), h("code", { class: "cut" }, one.ref));
  }));
}

/** Everything else that does not move, and what ended badly. @param {Run} run */
function others(run) {
  const first = run.blocking_reason;
  const rest = run.blocks.filter((block) => !(first && block.type === first.type && block.step_id === first.step_id && block.since === first.since));
  return [
    run.failure && h("div", { class: "notice tone-bad" }, icon("failed"), h("div", null,
      h("p", null, h("strong", null, words(run.failure.kind)), run.failure.class ? h("span", { class: "faint" }, ` · ${run.failure.class}${run.failure.code ? ` ${run.failure.code}` : ""}`) : null),
      h("p", null, run.failure.message))),
    run.warnings_count > 0 && h("details", { class: "notice tone-wait" }, h("summary", null, icon("warned"), `${run.warnings_count} ${run.warnings_count === 1 ? "warning" : "warnings"}`),
      h("ul", null, run.warnings.map((warning) => h("li", null, warning.step_id && h("code", null, warning.step_id, " "), warning.message ?? JSON.stringify(warning))))),
    rest.length > 0 && h("details", { class: "notice tone-wait" }, h("summary", null, icon("timer"), `${rest.length}${run.blocks_count > run.blocks.length ? ` of ${run.blocks_count}` : ""} more that ${rest.length === 1 ? "does" : "do"} not move`),
      h("ul", null, rest.map((block) => blockLine(block)))),
  ];
}

/** @param {Reason} block */
function blockLine(block) {
  return h("li", null, block.step_id && h("code", null, block.step_id, " "), block.message, " ", h("span", { class: "faint" }, when(block.since, "age")));
}
