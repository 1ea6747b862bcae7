// What stands where there is nothing to show yet, nothing at all, or a refusal.

/** @import { Child } from "../lib/types.js" */

import { h } from "../lib/dom.js";
import { ApiError } from "../lib/api.js";
import { icon } from "./icons.js";

/**
 * Nothing is there, and what would put something there.
 * @param {string} title
 * @param {...Child} more
 */
export function empty(title, ...more) {
  return h("div", { class: "rest" }, icon("done", "large"), h("h2", null, title), more);
}

/** Grey lines in the shape of what comes. @param {number} [rows] */
export function loading(rows = 6) {
  return h("div", { class: "skeleton", role: "status", "aria-label": "Loading" },
    Array.from({ length: rows }, () => h("div", { class: "bone" })));
}

/**
 * A refusal, with its words and a way to try again.
 * @param {unknown} error
 * @param {(() => void) | null} [again]
 */
export function refused(error, again = null) {
  const problem = error instanceof ApiError ? error.problem : null;
  const message = error instanceof Error ? error.message : String(error);
  return h("div", { class: "rest", role: "alert" },
    icon("failed", "large"),
    h("h2", null, problem?.title ?? "This could not be shown"),
    problem?.title !== message && h("p", null, message),
    problem?.request_id && h("p", { class: "faint" }, "Request ", h("code", null, problem.request_id)),
    again && h("button", { type: "button", on: { click: again } }, icon("retry"), "Try again"));
}
