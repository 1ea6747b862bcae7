// The data of a run: its input, its output and what each step gave, read when it is looked at.

/** @import { Json, Step, Steps } from "../../lib/types.js" */
/** @import { RunContext, Tab } from "../run.js" */

import { fill, h } from "../../lib/dom.js";
import { ApiError, getExact, getText, withQuery } from "../../lib/api.js";
import { indented, parse } from "../../lib/json.js";
import { icon } from "../../parts/icons.js";
import { empty, loading, refused } from "../../parts/rest.js";
import { stateBadge } from "../../parts/states.js";
import { size, tree } from "../../parts/tree.js";

const PAGE = 50;

/** @param {RunContext} context @returns {Tab} */
export function dataTab(context) {
  const input = payload("Input", `${context.path}/input`);
  const output = payload("Output", `${context.path}/output`);
  const steps = stepOutputs(context);
  let shown = -1;
  return {
    element: h("div", { class: "data" }, input.element, output.element, steps.element),
    show(run) {
      if (run.as_of_seq === shown) return;
      if (shown < 0) void input.read();
      shown = run.as_of_seq;
      if (run.state === "succeeded" || run.state === "completed_with_warnings") void output.read();
      else output.none(run.ended_at ? "It ended without one." : "There is none before it has ended.");
      void steps.read();
    },
  };
}

/** @param {string} title @param {string} path */
function payload(title, path) {
  const body = h("div", { class: "panel-body" }, loading(1));
  const link = h("a", { class: "button quiet", href: path, download: "" }, icon("download"), "Download");
  link.setAttribute("download", `${title.toLowerCase()}.json`);
  link.hidden = true;
  const note = h("span", { class: "faint small" });
  let before = "";
  return {
    element: h("section", { class: "panel" }, h("header", { class: "panel-head" }, h("h2", null, title), note, h("span", { class: "grow" }), link), body),
    /** @param {string} why */
    none: (why) => void fill(body, h("p", { class: "soft" }, why)),
    async read() {
      try {
        const text = await getText(path);
        if (text === before) return;
        before = text;
        link.hidden = false;
        note.textContent = size(new TextEncoder().encode(text).length);
        fill(body, tree(parse(text)));
      } catch (error) {
        link.hidden = true;
        fill(body, h("p", { class: "soft" }, error instanceof ApiError ? error.message : String(error)));
      }
    },
  };
}

/** @param {RunContext} context */
function stepOutputs(context) {
  const list = h("ul", { class: "outputs" });
  const more = h("button", { type: "button", class: "quiet", hidden: true }, "More steps");
  const body = h("div", null, loading(2));
  /** @type {string | null} */
  let cursor = null;
  let pages = 1;
  const page = async (/** @type {string | null} */ from) => {
    /** @type {Steps} */
    const read = await getExact(withQuery(`${context.path}/steps`, { limit: PAGE, cursor: from }));
    cursor = read.next_cursor;
    more.hidden = !cursor;
    return read.steps;
  };
  more.addEventListener("click", async () => {
    pages += 1;
    list.append(...(await page(cursor)).map((step) => stepOutput(step, context)));
  });
  return {
    element: h("section", { class: "panel" }, h("header", { class: "panel-head" }, h("h2", null, "Steps")), body, more),
    async read() {
      // Beyond the first page a reader is reading: nothing is taken away under their eyes.
      if (pages > 1) return;
      try {
        const steps = await page(null);
        if (!steps.length) {
          fill(body, empty("No step has begun."));
          return;
        }
        const open = new Set([...list.querySelectorAll("details[open]")].map((one) => /** @type {HTMLElement} */ (one).dataset.step));
        fill(list, steps.map((step) => stepOutput(step, context, open.has(step.step_id))));
        if (!list.isConnected) fill(body, list);
      } catch (error) {
        fill(body, refused(error));
      }
    },
  };
}

/** @param {Step} step @param {RunContext} context @param {boolean} [open] */
function stepOutput(step, context, open = false) {
  const place = h("div", { class: "panel-body" });
  const details = h("details", { class: "output", data: { step: step.step_id } },
    h("summary", null, h("code", null, step.step_id), step.title && h("span", { class: "soft cut" }, step.title), h("span", { class: "grow" }), h("span", { class: "faint small num" }, step.output_ref ? size(step.output_ref.size) : ""), stateBadge(step.state, "step")),
    place);
  const fillIn = () => {
    if (place.childElementCount) return;
    void showStep(place, step, context);
  };
  details.addEventListener("toggle", fillIn);
  if (open) {
    details.open = true;
    fillIn();
  }
  return h("li", null, details);
}

/** @param {HTMLElement} place @param {Step} listed @param {RunContext} context */
async function showStep(place, listed, context) {
  const path = `${context.path}/steps/${encodeURIComponent(listed.step_id)}`;
  fill(place, loading(1));
  try {
    /** @type {Step & { input?: Json }} */
    const step = await getExact(path);
    const unseen = step.output === null && step.output_ref ? step.output_ref : null;
    const named = [...step.resources.map((one) => (one.url ? h("a", { href: one.url }, `${one.type} ${one.id}`) : `${one.type} ${one.id}`)), ...step.receipts.map((one) => `${one.name ?? "receipt"} ${one.external_id ?? ""}`)];
    fill(place,
      step.input !== undefined && step.input !== null && [h("h3", null, "Input"), tree(step.input)],
      h("div", { class: "output-head" }, h("h3", null, "Output"), h("a", { class: "button quiet", href: unseen ? `${path}/output` : path, download: `${listed.step_id}.json` }, icon("download"), unseen ? "Download the output" : "Download the step")),
      unseen ? await beginning(`${path}/output`, unseen) : step.output === null ? h("p", { class: "soft" }, "None.") : tree(step.output),
      named.length > 0 && [h("h3", null, "Created"), h("ul", null, named.map((one) => h("li", null, one)))],
      step.failure && [h("h3", null, "Failure"), h("p", null, step.failure.message)]);
  } catch (error) {
    fill(place, refused(error));
  }
}

/** Letters of a large output that are shown before somebody asks for all of it. */
const BEGINNING = 2_000;

/**
 * The beginning of an output that is too large for the step's own answer, and all of it when asked for.
 * @param {string} path @param {{ digest: string, size: number }} stored
 */
async function beginning(path, stored) {
  try {
    const written = await getText(path);
    const text = indented(written);
    const all = h("button", { type: "button", class: "quiet", on: { click: () => part.replaceWith(tree(parse(written))) } }, `Show all ${size(stored.size)}`);
    const part = h("div", { class: "beginning" }, h("pre", null, text.slice(0, BEGINNING), text.length > BEGINNING && "…"), all);
    return part;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return h("p", { class: "soft" }, `${size(stored.size)} are not shown here: ${error.message} SHA-256 `, h("code", null, stored.digest));
  }
}
