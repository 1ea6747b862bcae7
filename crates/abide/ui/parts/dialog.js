// Dialogs: the browser keeps the focus inside and closes them with Escape; the focus returns to where it came from.

/** @import { Child } from "../lib/types.js" */

import { fill, freshId, h } from "../lib/dom.js";
import { icon } from "./icons.js";

/**
 * @typedef {object} Dialog
 * @property {HTMLDialogElement} element
 * @property {(...children: Child[]) => void} setBody
 * @property {() => void} close
 */

/**
 * Opens a dialog over the page.
 * @param {{ title: string, body: Child, actions?: Child, wide?: boolean, name?: string, onClose?: () => void }} content
 * @returns {Dialog}
 */
export function openDialog(content) {
  const before = document.activeElement;
  const heading = freshId("dialog");
  const body = h("div", { class: "dialog-body" }, content.body);
  const close = () => element.close();
  const element = h("dialog", { class: content.wide ? "dialog wide" : "dialog", "aria-labelledby": heading, data: { name: content.name } },
    h("header", { class: "dialog-head" },
      h("h2", { id: heading }, content.title),
      h("button", { class: "quiet square", type: "button", "aria-label": "Close", on: { click: close } }, icon("close"))),
    body,
    content.actions ? h("footer", { class: "dialog-foot" }, content.actions) : null);
  element.addEventListener("close", () => {
    element.remove();
    if (before instanceof HTMLElement && before.isConnected) before.focus();
    content.onClose?.();
  });
  // A click on the backdrop is a click on the dialog's own box, outside of its content.
  element.addEventListener("mousedown", (event) => {
    if (event.target === element && outside(element, event)) close();
  });
  document.body.append(element);
  element.showModal();
  /** @type {HTMLElement | null} */ (element.querySelector("[autofocus]"))?.focus();
  return { element, setBody: (...children) => void fill(body, ...children), close };
}

/** @param {HTMLElement} element @param {MouseEvent} event */
function outside(element, event) {
  const box = element.getBoundingClientRect();
  return event.clientX < box.left || event.clientX > box.right || event.clientY < box.top || event.clientY > box.bottom;
}
