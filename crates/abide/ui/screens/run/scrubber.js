// The past: a slider over the events of a run. Wherever it stands, the whole page shows the run as it was.

/** @import { Run } from "../../lib/types.js" */
/** @import { RunContext } from "../run.js" */

import { h } from "../../lib/dom.js";
import { icon } from "../../parts/icons.js";

/** While it is dragged the page follows not more often than this. */
const FOLLOW = 120;

/** @param {RunContext} context */
export function scrubber(context) {
  let last = 1;
  let timer = 0;
  const slider = h("input", { type: "range", min: "1", max: "1", value: "1", class: "scrubber-range", "aria-label": "Event of the run's past" });
  const label = h("output", { class: "scrubber-label" });
  const button = (/** @type {string} */ name, /** @type {string} */ title, /** @type {number} */ step) =>
    h("button", { type: "button", class: "quiet square", "aria-label": title, title, on: { click: () => move(step) } }, icon(name));
  const element = h("div", { class: "scrubber" }, button("left", "One event back", -1), slider, button("right", "One event on", 1), label);

  const go = () => {
    const seq = Number(slider.value);
    context.travel(seq >= last ? null : seq);
  };
  /** @param {number} step */
  const move = (step) => {
    slider.value = String(Math.max(1, Math.min(last, Number(slider.value) + step)));
    go();
  };
  slider.addEventListener("input", () => {
    label.textContent = `event ${slider.value} of ${last}`;
    clearTimeout(timer);
    timer = window.setTimeout(go, FOLLOW);
  });
  return {
    element,
    move,
    /** @param {Run} now @param {Run} shown @param {number | null} at */
    show(now, shown, at) {
      last = now.as_of_seq;
      slider.max = String(last);
      // A slider that is being dragged is not pulled away.
      if (!slider.matches(":active")) slider.value = String(at === null ? last : shown.as_of_seq);
      label.textContent = at === null ? `${last} events` : `event ${shown.as_of_seq} of ${last}`;
      slider.setAttribute("aria-valuetext", label.textContent);
    },
  };
}
