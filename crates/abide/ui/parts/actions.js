// Buttons straight from next_actions. What only a person knows is asked for; what cannot be undone is asked about.

/** @import { Json, NextAction, Run, Schema } from "../lib/types.js" */

import { fill, h } from "../lib/dom.js";
import { ApiError, getText, newKey, post, session } from "../lib/api.js";
import { formOf } from "../lib/form.js";
import { Written, fieldText } from "../lib/json.js";
import { asCli, asCurl, copyMenu } from "../lib/copy.js";
import { openDialog } from "./dialog.js";
import { toast } from "./toast.js";
import { icon } from "./icons.js";
import { dismissable } from "./menu.js";

/**
 * @callback Done
 * @param {Run} run the record after the action
 */

/**
 * A button for each action; beyond `shown` they are behind "More".
 * @param {Run} run
 * @param {NextAction[]} actions
 * @param {Done} done
 * @param {{ shown?: number }} [options]
 */
export function actionBar(run, actions, done, options = {}) {
  const shown = options.shown ?? 3;
  const [first, rest] = actions.length > shown + 1 ? [actions.slice(0, shown), actions.slice(shown)] : [actions, []];
  const list = h("ul", { class: "menu-list" }, rest.map((action) => h("li", null, actionButton(run, action, done, "quiet"))));
  return h("div", { class: "actions" },
    first.map((action, at) => actionButton(run, action, done, at === 0 && !action.danger ? "primary" : "")),
    rest.length > 0 && dismissable(h("details", { class: "menu" }, h("summary", { class: "button" }, icon("more"), `${rest.length} more`), list)));
}

/**
 * @param {Run} run
 * @param {NextAction} action
 * @param {Done} done
 * @param {string} [look]
 */
export function actionButton(run, action, done, look = "") {
  const classes = `${look} ${action.danger ? "danger" : ""}`.trim();
  const button = h("button", { type: "button", class: classes || null, data: { action: action.id, step: action.step_id }, title: action.who.length ? `For ${action.who.join(", ")}` : null },
    action.title);
  button.addEventListener("click", () => {
    const menu = button.closest("details");
    if (menu) menu.open = false;
    void begin(run, action, done, button);
  });
  return button;
}

/** Whether a call goes out at once, without a question. @param {NextAction} action */
function isReady(action) {
  return !action.danger && !asked(action).length && !action.form;
}

/** What has to be filled in, without what the server knows from the session. @param {NextAction} action */
function asked(action) {
  return (action.needs ?? []).filter((name) => !(name === "decision_by" && session()?.uses_keys));
}

/**
 * Does what an action says, asking first where it must.
 * @param {Run} run @param {NextAction} action @param {Done} done @param {HTMLButtonElement | null} [button]
 */
export async function begin(run, action, done, button = null) {
  if (!isReady(action)) {
    ask(run, action, done, await inputOf(run, action));
    return;
  }
  if (button) button.disabled = true;
  try {
    finish(action, await call(action, {}, newKey()), done);
  } catch (error) {
    toast(error instanceof Error ? error.message : String(error), "bad");
  } finally {
    if (button) button.disabled = false;
  }
}

/** @param {NextAction} action @param {{ [field: string]: Json }} given @param {string} key @returns {Promise<Run>} */
function call(action, given, key) {
  const body = { ...action.body, ...given };
  // With keys the session's own principal decides.
  if (session()?.uses_keys) delete body.decision_by;
  return post(action.href, body, { key });
}

/** @param {NextAction} action @param {Run} run @param {Done} done */
function finish(action, run, done) {
  toast(`${action.title}: ${run?.summary ?? "done"}`, "good");
  done(run);
}

/** What a correction begins with: the input that was refused, where the reader may see it. @param {Run} run @param {NextAction} action */
async function inputOf(run, action) {
  if (!action.needs?.includes("input") || !action.step_id) return undefined;
  const step = await getText(`/v1/runs/${encodeURIComponent(run.run_id)}/steps/${encodeURIComponent(action.step_id)}`).catch(() => "{}");
  const input = fieldText(step, "input");
  return input === undefined || input === "null" ? undefined : new Written(input);
}

/** The dialog before an action. @param {Run} run @param {NextAction} action @param {Done} done @param {Json | undefined} input */
function ask(run, action, done, input) {
  const form = formOf(schemaOf(action), startOf(action, input));
  const told = h("div", { role: "alert" });
  // One key for this dialog: pressing twice, or again after a lost answer, acts once.
  const key = newKey();
  const send = h("button", { type: "button", class: action.danger ? "primary danger" : "primary", data: { confirm: action.id } }, action.title);
  const submit = async () => {
    const read = form.read();
    if ("faults" in read) return;
    send.disabled = true;
    try {
      const after = await call(action, bodyOf(action, read.value), key);
      dialog.close();
      finish(action, after, done);
    } catch (error) {
      refuse(error, form, told);
    } finally {
      send.disabled = false;
    }
  };
  send.addEventListener("click", () => void submit());
  const dialog = openDialog({
    title: action.title,
    name: action.id,
    body: h("form", { on: { submit: (/** @type {Event} */ event) => { event.preventDefault(); void submit(); } } },
      h("p", { class: "said" }, run.summary), form.element, told, h("input", { type: "submit", hidden: true })),
    actions: [
      copyMenu("Copy this call", () => ways(run, action)),
      h("span", { class: "grow" }),
      h("button", { type: "button", on: { click: () => dialog.close() } }, "Not now"),
      send,
    ],
  });
  const first = dialog.element.querySelector(".form input, .form textarea, .form select");
  (first instanceof HTMLElement ? first : send).focus();
}

/** @param {unknown} error @param {import("../lib/form.js").Form} form @param {HTMLElement} told */
function refuse(error, form, told) {
  const faults = error instanceof ApiError ? error.fields : [];
  if (faults.length) form.show(faults);
  fill(told, h("p", { class: "fault" }, error instanceof Error ? error.message : String(error)));
}

/** @param {Run} run @param {NextAction} action */
export function ways(run, action) {
  const cli = asCli(run, action);
  return [{ title: "Copy as curl", text: asCurl(action.method, action.href, action.body) }, ...(cli ? [{ title: "Copy as command", text: cli }] : [])];
}

/** Which field of the body a form fills. @param {NextAction} action */
function formField(action) {
  return action.id === "signal" ? "payload" : "form";
}

/**
 * Everything that can be said with an action as one schema, by the names of the body.
 * @param {NextAction} action
 * @returns {Schema}
 */
function schemaOf(action) {
  const needs = asked(action);
  /** @type {{ [name: string]: Schema }} */
  const properties = {};
  if (needs.includes("decision_by")) properties.decision_by = { type: "string", title: "Who decides", minLength: 1 };
  if (action.form) properties[formField(action)] = { title: "", ...action.form };
  if (action.id === "approve" || action.id === "reject") properties.comment = { type: "string", title: "Comment", format: "textarea" };
  if (needs.includes("input")) properties.input = { title: "Corrected input", description: "As JSON." };
  if (needs.includes("output") || action.body.output !== undefined) properties.output = { title: "Result", description: "As JSON. Steps that come after read it." };
  if (action.id === "signal" && !action.form) properties.payload = { title: "Payload", description: "As JSON." };
  if (typeof action.body.reason === "string") properties.reason = { type: "string", title: "Reason", description: "It stands in the log." };
  for (const name of needs) properties[name] ??= { title: name };
  return { type: "object", properties, required: [...needs, ...(properties.reason ? ["reason"] : [])] };
}

const DECIDER = "abide.decides_as";

/** @param {NextAction} action @param {Json | undefined} input @returns {Json} */
function startOf(action, input) {
  /** @type {{ [field: string]: Json }} */
  const start = { ...action.body, ...(input === undefined ? {} : { input }) };
  if (asked(action).includes("decision_by")) {
    const before = localStorage.getItem(DECIDER);
    if (before) start.decision_by = before;
  }
  return start;
}

/** @param {NextAction} action @param {Json} value @returns {{ [field: string]: Json }} */
function bodyOf(action, value) {
  const given = value !== null && typeof value === "object" && !Array.isArray(value) && !(value instanceof Written) ? value : {};
  if (typeof given.decision_by === "string" && action.needs?.includes("decision_by")) localStorage.setItem(DECIDER, given.decision_by);
  return given;
}
