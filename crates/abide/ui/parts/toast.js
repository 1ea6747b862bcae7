// Short news at the edge of the page, also for those who listen.

import { h } from "../lib/dom.js";
import { icon } from "./icons.js";

const STAYS = 6_000;
/** @type {HTMLElement | null} */
let region = null;

/** The place where toasts appear; it must be there before the first, or screen readers miss it. */
export function toastRegion() {
  region = h("div", { class: "toasts", role: "status", "aria-live": "polite" });
  return region;
}

/**
 * Tells something that was done, or refused.
 * @param {string} text
 * @param {"good" | "bad" | "calm"} [tone]
 */
export function toast(text, tone = "calm") {
  const close = () => element.remove();
  const element = h("div", { class: `toast tone-${tone}`, role: tone === "bad" ? "alert" : null },
    icon(tone === "bad" ? "failed" : "done"), h("p", null, text),
    h("button", { class: "quiet square", type: "button", "aria-label": "Dismiss", on: { click: close } }, icon("close")));
  region?.append(element);
  // What was refused stays until it is read.
  if (tone !== "bad") setTimeout(close, STAYS);
}

/** @param {unknown} error */
export function toastError(error) {
  toast(error instanceof Error ? error.message : String(error), "bad");
}
