// How a state looks: an icon, a word and a colour, the same everywhere. What a state is, the server alone says.

import { h } from "../lib/dom.js";
import { icon } from "./icons.js";

/**
 * @typedef {object} Look
 * @property {string} word
 * @property {string} icon
 * @property {Tone} tone
 * @typedef {"go" | "wait" | "trouble" | "held" | "good" | "bad" | "calm"} Tone
 */

/** @type {{ [state: string]: Look }} */
const RUN = {
  queued: { word: "Queued", icon: "queued", tone: "go" },
  running: { word: "Running", icon: "running", tone: "go" },
  waiting_on_tool: { word: "Waiting on tool", icon: "tool", tone: "wait" },
  waiting_on_auth: { word: "Waiting on auth", icon: "key", tone: "wait" },
  waiting_on_approval: { word: "Waiting on approval", icon: "person", tone: "wait" },
  waiting_on_child: { word: "Waiting on child", icon: "child", tone: "wait" },
  waiting_on_timer: { word: "Waiting on timer", icon: "timer", tone: "wait" },
  waiting_on_operator: { word: "Waiting on operator", icon: "operator", tone: "trouble" },
  retry_scheduled: { word: "Retry scheduled", icon: "retry", tone: "trouble" },
  stalled: { word: "Stalled", icon: "stalled", tone: "trouble" },
  paused: { word: "Paused", icon: "paused", tone: "held" },
  compensating: { word: "Compensating", icon: "undo", tone: "held" },
  cancel_requested: { word: "Cancel requested", icon: "stopping", tone: "held" },
  succeeded: { word: "Succeeded", icon: "done", tone: "good" },
  completed_with_warnings: { word: "Completed with warnings", icon: "warned", tone: "good" },
  failed: { word: "Failed", icon: "failed", tone: "bad" },
  canceled: { word: "Canceled", icon: "canceled", tone: "calm" },
};

/** @type {{ [state: string]: Look }} */
const STEP = {
  pending: { word: "Pending", icon: "pending", tone: "calm" },
  issued: { word: "Issued", icon: "queued", tone: "go" },
  running: { word: "Running", icon: "running", tone: "go" },
  waiting: { word: "Waiting", icon: "timer", tone: "wait" },
  retry_scheduled: { word: "Retry scheduled", icon: "retry", tone: "trouble" },
  reconciling: { word: "Reconciling", icon: "search", tone: "trouble" },
  stalled: { word: "Stalled", icon: "stalled", tone: "trouble" },
  completed: { word: "Completed", icon: "done", tone: "good" },
  failed: { word: "Failed", icon: "failed", tone: "bad" },
  skipped: { word: "Skipped", icon: "canceled", tone: "calm" },
  case_handled: { word: "Case handled", icon: "done", tone: "good" },
  canceled: { word: "Canceled", icon: "canceled", tone: "calm" },
  compensating: { word: "Compensating", icon: "undo", tone: "held" },
  compensated: { word: "Compensated", icon: "undo", tone: "held" },
  undo_failed: { word: "Undo failed", icon: "failed", tone: "bad" },
};

/** The five groups, in the order in which they need attention. */
export const GROUPS = [
  { id: "trouble", word: "Trouble", states: ["stalled", "waiting_on_operator", "retry_scheduled"] },
  { id: "waiting", word: "Waiting", states: ["waiting_on_approval", "waiting_on_auth", "waiting_on_tool", "waiting_on_child", "waiting_on_timer"] },
  { id: "executing", word: "Executing", states: ["running", "queued"] },
  { id: "held", word: "Held or unwinding", states: ["paused", "cancel_requested", "compensating"] },
  { id: "ended", word: "Ended", states: ["succeeded", "completed_with_warnings", "failed", "canceled"] },
];

/** A state of a later version is still shown by its name. @param {string} state @returns {Look} */
export function lookOf(state) {
  return RUN[state] ?? STEP[state] ?? { word: words(state), icon: "pending", tone: "calm" };
}

/** @param {string} state @returns {Look} */
export function stepLook(state) {
  return STEP[state] ?? lookOf(state);
}

/** `outcome_unknown` as people write it. @param {string} name */
export function words(name) {
  const text = name.replaceAll("_", " ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/**
 * The badge of a run's state.
 * @param {string} state
 * @param {"run" | "step"} [layer]
 */
export function stateBadge(state, layer = "run") {
  const look = layer === "step" ? stepLook(state) : lookOf(state);
  return h("span", { class: `state tone-${look.tone}`, data: { state } }, icon(look.icon), h("span", null, look.word));
}
