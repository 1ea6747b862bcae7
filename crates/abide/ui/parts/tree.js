// A JSON value as a tree whose branches are made when they are opened. Everything in it is text.

/** @import { Json } from "../lib/types.js" */

import { h } from "../lib/dom.js";
import { Written } from "../lib/json.js";

/** Children that are shown at once; the rest comes in portions. */
const PORTION = 100;
const LONG_TEXT = 400;
/** Branches of the first levels are open when they are small. */
const OPEN_DEPTH = 2;
const OPEN_SIZE = 20;

/** @param {Json} value */
export function tree(value) {
  return h("div", { class: "tree" }, node(null, value, 0));
}

/** @param {string | null} name @param {Json} value @param {number} depth @returns {HTMLElement} */
function node(name, value, depth) {
  if (value === null || typeof value !== "object" || value instanceof Written) return h("div", { class: "leaf" }, key(name), leaf(value));
  const entries = Array.isArray(value) ? value.map((one, at) => /** @type {[string, Json]} */ ([String(at), one])) : Object.entries(value);
  const brackets = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  if (!entries.length) return h("div", { class: "leaf" }, key(name), h("span", { class: "faint" }, brackets.join("")));
  const branch = h("details", { class: "branch" },
    h("summary", null, key(name), h("span", { class: "faint" }, `${brackets[0]} ${entries.length} ${brackets[1]}`)));
  const open = () => {
    if (branch.childElementCount === 1) branch.append(portion(entries, 0, depth + 1));
  };
  branch.addEventListener("toggle", open);
  if (depth < OPEN_DEPTH && entries.length <= OPEN_SIZE) {
    branch.open = true;
    open();
  }
  return branch;
}

/** @param {[string, Json][]} entries @param {number} from @param {number} depth */
function portion(entries, from, depth) {
  const box = h("div", { class: "children" }, entries.slice(from, from + PORTION).map(([name, value]) => node(name, value, depth)));
  const left = entries.length - from - PORTION;
  if (left > 0) {
    const more = h("button", { type: "button", class: "quiet small", on: { click: () => more.replaceWith(portion(entries, from + PORTION, depth)) } }, `${left} more`);
    box.append(more);
  }
  return box;
}

/** @param {string | null} name */
function key(name) {
  return name === null ? null : h("span", { class: "key" }, name, ": ");
}

/** @param {Json} value */
function leaf(value) {
  if (typeof value === "string") return cut("string", value, JSON.stringify);
  return cut(value instanceof Written ? "number" : value === null ? "null" : typeof value, String(value), String);
}

/** The beginning of a long text, and all of it when asked for. @param {string} type @param {string} value @param {(text: string) => string} shown */
function cut(type, value, shown) {
  if (value.length <= LONG_TEXT) return h("span", { class: `value ${type}` }, shown(value));
  const text = h("span", { class: `value ${type}` }, shown(value.slice(0, LONG_TEXT)), "… ");
  const more = h("button", { type: "button", class: "quiet small", on: { click: () => text.replaceChildren(shown(value)) } }, `${value.length.toLocaleString()} characters`);
  text.append(more);
  return text;
}

/** A number of bytes as people read it. @param {number} bytes */
export function size(bytes) {
  if (bytes < 1_024) return `${bytes} B`;
  return bytes < 1_048_576 ? `${(bytes / 1_024).toFixed(1)} KiB` : `${(bytes / 1_048_576).toFixed(1)} MiB`;
}
