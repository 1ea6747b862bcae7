// The handoff to an operator: how far it came, what is known and unknown, what is advised, and every action as a button.

/** @import { Handoff, Run } from "../../lib/types.js" */
/** @import { RunContext, Tab } from "../run.js" */

import { fill, h } from "../../lib/dom.js";
import { get } from "../../lib/api.js";
import { when } from "../../lib/time.js";
import { actionButton } from "../../parts/actions.js";
import { icon } from "../../parts/icons.js";
import { loading, refused } from "../../parts/rest.js";
import { stateBadge } from "../../parts/states.js";

/** @param {RunContext} context @returns {Tab} */
export function handoffTab(context) {
  const element = h("div", { class: "handoff" }, loading(4));
  let before = "";
  let asked = 0;
  return {
    element,
    async show(run) {
      asked += 1;
      const own = asked;
      try {
        /** @type {Handoff} */
        const packet = await get(`${context.path}/handoff`);
        const text = JSON.stringify(packet);
        if (own !== asked || text === before) return;
        before = text;
        fill(element, ...parts(packet, run, context));
      } catch (error) {
        if (own === asked) fill(element, refused(error));
      }
    },
    stop() {
      asked += 1;
    },
  };
}

/** @param {Handoff} packet @param {Run} run @param {RunContext} context */
function parts(packet, run, context) {
  const advised = packet.recommended && packet.actions.find((action) => action.id === packet.recommended?.action && action.step_id === packet.recommended?.step_id);
  const rest = packet.actions.filter((action) => action !== advised);
  const { reached } = packet;
  return [
    advised && h("section", { class: "panel panel-body advised" }, h("h2", null, "Recommended"), h("p", null, packet.recommended?.why),
      faults(run), h("div", { class: "actions" }, actionButton(run, advised, context.done, "primary"))),
    h("section", { class: "panel panel-body" }, h("h2", null, "Everything that can be done"),
      h("ul", { class: "handoff-actions" }, rest.map((action) => h("li", null, actionButton(run, action, context.done), h("span", { class: "faint small" }, action.who.join(", ")))))),
    h("section", { class: "panel panel-body" }, h("h2", null, "How far it came"),
      h("p", null, `${reached.completed} of ${reached.of} steps`, reached.step_id && [" · at ", h("code", null, reached.step_id)], reached.last_completed && [" · last completed ", h("code", null, reached.last_completed)]),
      h("progress", { max: Math.max(1, reached.of), value: reached.completed, "aria-label": "Steps completed" })),
    packet.failed.length > 0 && h("section", { class: "panel" }, heading("What failed", packet.failed_count),
      table(["Step", "State", "Attempt", "Failure"], packet.failed.map((one) => [h("code", null, one.step_id), stateBadge(one.state, "step"), String(one.attempt), [one.failure.class && h("span", { class: "faint" }, `${one.failure.class} `), one.failure.message]]))),
    packet.unknown.length > 0 && h("section", { class: "panel" }, heading("What nobody knows", packet.unknown.length),
      table(["Step", "Effect", "Attempt", "External id", "Since"], packet.unknown.map((one) => [h("code", null, one.step_id), one.effect ?? "its own", String(one.attempt), one.external_id ?? "–", when(one.since)]))),
    packet.late_answers.length > 0 && h("section", { class: "panel" }, heading("Answers that came late", packet.late_answers.length),
      table(["Step", "Worker", "At"], packet.late_answers.map((one) => [h("code", null, one.step_id), one.worker ?? "–", when(one.at)]))),
    packet.succeeded.length > 0 && h("section", { class: "panel" }, heading("What succeeded", packet.succeeded_count),
      table(["Step", "State", "Created", "Proof"], packet.succeeded.map((one) => [h("code", null, one.step_id), stateBadge(one.state, "step"), created(one), one.proof ? [one.proof.by, " ", when(one.proof.at)] : "–"]))),
  ];
}

/** @param {Run} run */
function faults(run) {
  const fields = run.blocking_reason?.fields ?? [];
  return fields.length > 0 && h("ul", { class: "faults" }, fields.map((field) => h("li", { class: "fault" }, icon("operator"), field.pointer && h("code", null, field.pointer, " "), field.detail)));
}

/** @param {Handoff["succeeded"][number]} one */
function created(one) {
  const ids = [...one.resources.map((resource) => (resource.url ? h("a", { href: resource.url }, `${resource.type} ${resource.id}`) : h("span", null, `${resource.type} ${resource.id}`))), ...one.external_ids.map((id) => h("code", null, id))];
  return ids.length ? ids.flatMap((id, at) => (at ? [", ", id] : [id])) : "–";
}

/** @param {string} title @param {number} count */
function heading(title, count) {
  return h("header", { class: "panel-head" }, h("h2", null, title), h("span", { class: "faint" }, String(count)));
}

/** @param {string[]} names @param {import("../../lib/types.js").Child[][]} rows */
function table(names, rows) {
  return h("div", { class: "table-scroll", tabindex: "0" }, h("table", null, h("thead", null, h("tr", null, names.map((name) => h("th", { scope: "col" }, name)))), h("tbody", null, rows.map((row) => h("tr", null, row.map((cell) => h("td", null, cell)))))));
}

