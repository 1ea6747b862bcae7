// Copies: a link, the call as curl, the same on the command line.

/** @import { NextAction, Run } from "./types.js" */

import { h } from "./dom.js";
import { icon } from "../parts/icons.js";
import { dismissable } from "../parts/menu.js";
import { toast } from "../parts/toast.js";

/**
 * @param {string} text
 * @param {string} [what]
 */
export async function copyText(text, what = "Copied") {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without a secure context there is only the old way.
    const area = h("textarea", { class: "off-screen", "aria-hidden": "true" }, text);
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  toast(`${what}: ${text.length > 120 ? `${text.slice(0, 117)}…` : text}`);
}

/** A word that a shell reads as one. @param {string} text */
export function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/**
 * @param {string} method
 * @param {string} href
 * @param {unknown} [body]
 */
export function asCurl(method, href, body) {
  const address = quoted(new URL(href, location.origin).href);
  if (method === "GET") return `curl ${address}`;
  return `curl -X ${method} ${address} -H 'content-type: application/json' -d ${quoted(JSON.stringify(body ?? {}))}`;
}

/**
 * The command that does what an action does; nothing where there is none.
 * @param {Run} run
 * @param {NextAction} action
 * @returns {string | null}
 */
export function asCli(run, action) {
  const id = quoted(run.run_id);
  const step = action.step_id ? ` --step ${quoted(action.step_id)}` : "";
  const text = (/** @type {unknown} */ value) => quoted(typeof value === "string" ? value : JSON.stringify(value ?? null));
  switch (action.id) {
    case "approve":
    case "reject":
      return `abide ${action.id} ${id}${step} --by ${text(action.body.decision_by ?? "YOU")}`;
    case "signal":
      return `abide signal ${id} ${text(decodeURIComponent(action.href.split("/").pop() ?? ""))} --payload ${text(action.body.payload)}`;
    case "reconnect":
      return `abide reconnect ${text(`${action.body.tool}/${action.body.account}`)}`;
    case "retry":
    case "retry_now":
      return `abide retry ${id}`;
    case "rerun":
      return `abide rerun ${id} --from ${text(action.body.from_step)}`;
    case "pause":
    case "cancel":
      return `abide ${action.id} ${id} --reason ${text(action.body.reason)}`;
    case "resume":
      return `abide resume ${id}`;
    default:
      return action.id.startsWith("resolve_") && action.step_id
        ? `abide resolve ${id} ${quoted(action.step_id)} ${action.id.slice("resolve_".length)}`
        : null;
  }
}

/**
 * A small menu of ways to take something away.
 * @param {string} label
 * @param {() => { title: string, text: string }[]} ways asked when it opens
 */
export function copyMenu(label, ways) {
  const list = h("ul", { class: "menu-list" });
  const details = h("details", { class: "menu" }, h("summary", { class: "button quiet", "aria-label": label }, icon("copy"), h("span", null, "Copy")), list);
  details.addEventListener("toggle", () => {
    if (!details.open) return;
    list.replaceChildren(...ways().map(({ title, text }) =>
      h("li", null, h("button", { type: "button", class: "quiet", on: { click: () => { details.open = false; void copyText(text, title); } } }, title))));
  });
  return dismissable(details);
}
