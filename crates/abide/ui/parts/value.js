// A value as people read it: short things in a line, objects as names and values, anything else as JSON. Text only.

/** @import { Json } from "../lib/types.js" */

import { h } from "../lib/dom.js";
import { Written, indented, write } from "../lib/json.js";

/** Objects with more fields than this are shown as JSON. */
const MOST_FIELDS = 40;

/** @param {Json} value */
function isSimple(value) {
  return value === null || typeof value !== "object" || value instanceof Written;
}

/** @param {Json} value */
function inLine(value) {
  return typeof value === "string" ? value : write(value);
}

/**
 * @param {Json} value
 * @returns {HTMLElement}
 */
export function valueTable(value) {
  if (!isSimple(value) && !Array.isArray(value)) {
    const fields = Object.entries(/** @type {{ [name: string]: Json }} */ (value));
    if (fields.length > 0 && fields.length <= MOST_FIELDS) {
      return h("dl", { class: "value" }, fields.map(([name, one]) =>
        h("div", null, h("dt", null, name), h("dd", null, isSimple(one) ? inLine(one) : jsonText(one)))));
    }
  }
  return isSimple(value) ? h("p", { class: "value-line" }, inLine(value)) : jsonText(value);
}

/** @param {Json} value */
export function jsonText(value) {
  return h("pre", { class: "json", tabindex: "0" }, indented(write(value)));
}
