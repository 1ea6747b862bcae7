// The explanation: what it is doing, why, the chain to the root cause, what comes, what can be done, what proves it.

/** @import { ChainLink, Explanation, Run, Triage } from "../../lib/types.js" */
/** @import { RunContext, Tab } from "../run.js" */

import { fill, h } from "../../lib/dom.js";
import { get, withQuery } from "../../lib/api.js";
import { when } from "../../lib/time.js";
import { actionBar } from "../../parts/actions.js";
import { icon } from "../../parts/icons.js";
import { loading, refused } from "../../parts/rest.js";
import { stateBadge, words } from "../../parts/states.js";

/** @param {RunContext} context @returns {Tab} */
export function explainTab(context) {
  const element = h("div", { class: "explain" }, loading(4));
  let before = "";
  let asked = 0;
  return {
    element,
    async show(run, at) {
      asked += 1;
      const own = asked;
      try {
        /** @type {Explanation} */
        const told = await get(withQuery(`${context.path}/explain`, { at }));
        const text = JSON.stringify(told);
        if (own !== asked || text === before) return;
        before = text;
        fill(element, ...parts(told, run, context, at));
      } catch (error) {
        if (own === asked) fill(element, refused(error));
      }
    },
    stop() {
      asked += 1;
    },
  };
}

/** @param {Explanation} told @param {Run} run @param {RunContext} context @param {number | null} at */
function parts(told, run, context, at) {
  return [
    h("section", { class: "panel panel-body explain-now" },
      h("h2", null, "Now"), h("p", { class: "explain-doing" }, told.doing), h("p", { class: "soft" }, told.why),
      h("p", { class: "faint small" }, "for ", when(told.since, "age"))),
    told.triage && triage(told.triage),
    h("section", { class: "panel panel-body" }, h("h2", null, "Chain to the root cause"), chain(told.chain)),
    h("section", { class: "panel panel-body" }, h("h2", null, "What happens by itself"),
      told.will_happen.length
        ? h("ul", { class: "coming" }, told.will_happen.map((one) => h("li", null, h("span", { class: "coming-at num" }, when(one.at, "until")), h("span", null, one.what))))
        : h("p", { class: "soft" }, "Nothing is scheduled.")),
    at === null && told.can_be_done.length > 0 && h("section", { class: "panel panel-body" }, h("h2", null, "What can be done"), actionBar(run, told.can_be_done, context.done, { shown: 12 })),
    told.parent && h("section", { class: "panel panel-body" }, h("h2", null, "Who waits for it"),
      h("p", null, h("a", { href: `/runs/${encodeURIComponent(told.parent.run_id)}` }, told.parent.run_id), " at ", h("code", null, told.parent.step_id), " ", told.parent.state && stateBadge(told.parent.state)),
      told.parent.summary && h("p", { class: "soft" }, told.parent.summary)),
    h("section", { class: "panel panel-body" }, h("h2", null, "Proof"),
      h("dl", { class: "facts" }, [
        ["Event", String(told.proof.as_of_seq)],
        ["Lease epoch", told.proof.lease_epoch === null ? "–" : String(told.proof.lease_epoch)],
        ["Last heartbeat", when(told.proof.last_heartbeat_at)],
        ["Looked at again", when(told.proof.wake_at, "until")],
      ].map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))))),
  ];
}

/** @param {ChainLink[]} links */
function chain(links) {
  const icons = /** @type {{ [kind: string]: string }} */ ({ run: "runs", step: "right", block: "stalled", failure: "failed", person: "person", connection: "key", tool: "tool", queue: "queued", limit: "stalled", worker: "workers", time: "timer" });
  return h("ol", { class: "chain" }, links.map((link, at) => h("li", { class: at === links.length - 1 ? "chain-link root" : "chain-link", data: { kind: link.kind } },
    icon(icons[link.kind] ?? "pending"),
    h("div", null,
      h("p", { class: "faint small" }, words(link.kind), " ", reference(link)),
      h("p", null, link.what),
      link.since && h("p", { class: "faint small" }, "for ", when(link.since, "age"))))));
}

/** A run is a page of ours; other addresses are the API's own. @param {ChainLink} link */
function reference(link) {
  return link.kind === "run" ? h("a", { href: `/runs/${encodeURIComponent(link.id)}` }, link.id) : h("code", null, link.id);
}

/** @param {Triage[]} answers */
function triage(answers) {
  const looks = { yes: ["operator", "trouble"], no: ["done", "good"], unknown: ["pending", "wait"] };
  return h("section", { class: "panel panel-body" }, h("h2", null, "Five questions about a stall"),
    h("ol", { class: "triage" }, answers.map((one) => {
      const [shape, tone] = looks[one.answer] ?? looks.unknown;
      return h("li", { class: `tone-${tone}` }, h("p", { class: "triage-question" }, one.question),
        h("p", null, h("span", { class: `state tone-${tone}` }, icon(shape ?? "pending"), words(one.answer)), " ", one.detail));
    })));
}
