// Plots: bars and ranges as drawings, each with its numbers as a table behind it, so that nothing hangs on seeing.

/** @import { Child } from "../lib/types.js" */

import { freshId, h, s } from "../lib/dom.js";

/**
 * @typedef {object} Bar
 * @property {string} name
 * @property {string | null} [href]
 * @property {number} value
 * @property {string} shown the value as it is read
 * @property {number} [part] a darker part of the bar
 * @property {string} [note]
 */

/** Bars beyond this many are only in the table. */
const MOST_BARS = 12;

/**
 * A figure: a title, a drawing, and the same as a table.
 * @param {object} options
 * @param {string} options.title
 * @param {string} [options.note] what the numbers are
 * @param {Child} options.drawing
 * @param {string[]} options.columns
 * @param {(string | number)[][]} options.rows
 */
export function figure({ title, note, drawing, columns, rows }) {
  const id = freshId("plot");
  return h("figure", { class: "panel plot", "aria-labelledby": id },
    h("figcaption", null, h("h3", { id }, title), note && h("p", { class: "note" }, note)),
    drawing,
    rows.length > 0 && h("details", { class: "plot-table" }, h("summary", { class: "small" }, "As a table"),
      h("div", { class: "table-frame" }, h("table", null,
        h("thead", null, h("tr", null, columns.map((name, at) => h("th", { class: at ? "num" : null, scope: "col" }, name)))),
        h("tbody", null, rows.map((row) => h("tr", null, row.map((cell, at) => at ? h("td", { class: "num" }, String(cell)) : h("th", { scope: "row" }, String(cell))))))))));
}

/**
 * Horizontal bars, each with its name and its number in words.
 * @param {Bar[]} bars
 * @param {{ most?: number, tone?: string }} [options] `most`: what the whole width stands for
 */
export function bars(bars, options = {}) {
  const most = options.most ?? Math.max(...bars.map((bar) => bar.value), 0);
  const shown = bars.slice(0, MOST_BARS);
  const share = (/** @type {number} */ value) => `${most > 0 ? Math.max(value > 0 ? 0.6 : 0, Math.min(100, (100 * value) / most)) : 0}%`;
  return h("div", null,
    h("ul", { class: `bars tone-${options.tone ?? "go"}` }, shown.map((bar) => h("li", { class: "bar-row", title: bar.note ?? null },
      bar.href ? h("a", { class: "cut bar-name", href: bar.href }, bar.name) : h("span", { class: "cut bar-name" }, bar.name),
      h("span", { class: "bar-field", "aria-hidden": "true" },
        h("span", { class: "bar", style: { width: share(bar.value) } }, bar.part ? h("span", { class: "bar-part", style: { width: `${bar.value > 0 ? (100 * bar.part) / bar.value : 0}%` } }) : null)),
      h("span", { class: "num bar-number" }, bar.shown)))),
    bars.length > shown.length && h("p", { class: "note" }, `${bars.length - shown.length} more are in the table.`));
}

/**
 * @typedef {{ name: Child, label: string, tone: string, low: number, middle: number, high: number, shown: string }} Range
 */

/**
 * Ranges on a logarithmic axis: a line from the low to the high value, with a mark for each of the three.
 * @param {Range[]} ranges
 * @param {(value: number) => string} scale the words of the axis
 * @param {number[]} steps where the axis may have lines
 */
export function ranges(ranges, scale, steps) {
  const low = Math.min(...ranges.map((range) => Math.max(range.low, 1)));
  const high = Math.max(...ranges.map((range) => range.high), low * 10);
  const ticks = steps.filter((step) => step >= low / 10 && step <= high * 10);
  const [from, to] = [Math.log10(Math.max(1, ticks.filter((tick) => tick <= low).at(-1) ?? low)), Math.log10(ticks.find((tick) => tick >= high) ?? high)];
  const at = (/** @type {number} */ value) => `${Math.max(0, Math.min(100, (100 * (Math.log10(Math.max(value, 1)) - from)) / Math.max(to - from, 1e-9)))}%`;
  const inside = ticks.filter((tick) => Math.log10(tick) >= from && Math.log10(tick) <= to);
  const few = inside.filter((_, n) => inside.length <= 7 || n % Math.ceil(inside.length / 7) === 0);
  const row = (/** @type {Range} */ range) => h("li", { class: `range-row tone-${range.tone}` },
    h("span", { class: "range-name" }, range.name),
    s("svg", { class: "range", role: "img", "aria-label": `${range.label}: ${range.shown}` },
      few.map((tick) => s("line", { class: "range-grid", x1: at(tick), x2: at(tick), y1: "0", y2: "100%" })),
      s("line", { class: "range-line", x1: at(range.low), x2: at(range.high), y1: "50%", y2: "50%" }),
      s("circle", { class: "range-low", cx: at(range.low), cy: "50%", r: "4.5" }),
      s("circle", { class: "range-middle", cx: at(range.middle), cy: "50%", r: "4" }),
      s("rect", { class: "range-high", x: at(range.high), y: "50%", width: "3", height: "12", transform: "translate(-1.5 -6)" })),
    h("span", { class: "num range-number small" }, range.shown));
  return h("div", { class: "ranges" }, h("ul", null, ranges.map(row)),
    h("div", { class: "range-row range-axis", "aria-hidden": "true" }, h("span"), h("div", { class: "range-ticks" }, few.map((tick) => h("span", { class: "faint", style: { left: at(tick) } }, scale(tick)))), h("span")));
}
