// One run.

import { fill, h } from "../lib/dom.js";

export const title = "Run";

/** @type {import("../lib/types.js").Screen["mount"]} */
export function mount(place) {
  fill(place, h("h1", null, title));
  return { unmount() {} };
}
