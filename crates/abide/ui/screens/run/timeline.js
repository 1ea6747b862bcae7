// The run's time as a picture: one lane for each step, attempts as segments, waits hatched with their reason, idle time
// folded away. Only lanes in sight exist, so that ten thousand scroll like ten.

/** @import { Run } from "../../lib/types.js" */
/** @import { RunContext, Tab } from "../run.js" */

import { fill, h } from "../../lib/dom.js";
import { get } from "../../lib/api.js";
import { now, onTick, span } from "../../lib/time.js";
import { bind } from "../../lib/keys.js";
import { icon } from "../../parts/icons.js";
import { virtualList } from "../../parts/list.js";
import { empty, loading, refused } from "../../parts/rest.js";
import { lookOf, stepLook, words } from "../../parts/states.js";
import { axisOf, ticksOf } from "./axis.js";

/** @import { Axis } from "./axis.js" */

/**
 * @typedef {object} Segment
 * @property {"in_line" | "executing" | "probing" | "undoing" | "waiting"} kind
 * @property {number} from_ms
 * @property {number} [to_ms]
 * @property {number} [attempt]
 * @property {string} [worker]
 * @property {string} [reason]
 * @property {string} [message]
 * @property {string} [outcome]
 *
 * @typedef {object} Lane
 * @property {string} step_id
 * @property {string} [title]
 * @property {string | null} state
 * @property {number} from_ms
 * @property {number} [to_ms]
 * @property {Segment[]} segments
 *
 * @typedef {object} Timeline
 * @property {string} began_at
 * @property {string | null} ended_at
 * @property {string} now
 * @property {{ seq: number, at_ms: number, state: string }[]} states
 * @property {Lane[]} rows
 * @property {number} left_out
 * @property {number} as_of_seq
 */

const LANE = 32;
/** A picture is not drawn more often than this, and the less often the longer reading it takes. */
const READ_EVERY = 700;

/** @param {RunContext} context @returns {Tab} */
export function timelineTab(context) {
  const note = h("p", { class: "faint small" });
  const rule = h("div", { class: "tl-rule", "aria-hidden": "true" });
  const strip = h("div", { class: "tl-strip" });
  const lines = h("div", { class: "tl-lines", "aria-hidden": "true" });
  const scroller = h("div", { class: "tl-scroll", tabindex: "0", role: "region", "aria-label": "Lanes of steps" });
  const body = h("div", { class: "tl-body" }, loading(4));
  const element = h("section", { class: "timeline panel" }, h("header", { class: "panel-head tl-head" }, legend(), h("span", { class: "grow" }), note), body);
  /** @type {Timeline | null} */
  let timeline = null;
  /** @type {Axis | null} */
  let axis = null;
  /** @type {Run | null} */
  let run = null;
  /** @type {number | null} */
  let at = null;
  let reading = false;
  let readAt = 0;
  let cost = 0;
  let stopped = false;
  let timer = 0;

  const list = virtualList({ label: "Steps", rowHeight: () => LANE, scroller, key: (/** @type {Lane} */ lane) => lane.step_id, render: (lane) => drawLane(lane, /** @type {Axis} */ (axis), /** @type {Run} */ (run)) });
  const unbind = bind([
    { keys: "j", about: "Next step", act: () => list.move(1) },
    { keys: "k", about: "Previous step", act: () => list.move(-1) },
  ]);
  const stopTicking = onTick(() => {
    if (timeline && !timeline.ended_at && at === null) draw();
  });

  const elapsed = () => {
    if (!timeline) return 0;
    const end = timeline.ended_at ? Date.parse(timeline.ended_at) : Math.max(now(), Date.parse(timeline.now));
    return Math.max(1, end - Date.parse(timeline.began_at));
  };

  const draw = () => {
    if (!timeline || !run) return;
    axis = axisOf(timeline.rows, elapsed());
    drawRule(rule, axis, timeline.began_at);
    drawStrip(strip, timeline, axis, context);
    drawLines(lines, axis, timeline, at === null ? null : run.updated_at);
    list.repaint();
  };

  const show = () => {
    if (!timeline) return;
    if (!timeline.rows.length) {
      fill(body, empty("No step has begun.", h("p", null, run?.summary)));
      return;
    }
    const rows = timeline.rows.length + timeline.left_out;
    note.textContent = `${rows.toLocaleString()} ${rows === 1 ? "step" : "steps"} in ${span(elapsed())}${timeline.left_out ? `; the first ${timeline.rows.length.toLocaleString()} are drawn` : ""}`;
    if (!scroller.isConnected) {
      fill(scroller, list.element);
      fill(body, h("div", { class: "tl-frame" }, h("div", { class: "tl-top" }, h("span", { class: "tl-name faint" }, "Run"), h("div", { class: "tl-lane" }, strip)), h("div", { class: "tl-top tl-times" }, h("span", { class: "tl-name" }), h("div", { class: "tl-lane" }, rule)), h("div", { class: "tl-main" }, scroller, h("div", { class: "tl-over" }, lines))));
    }
    axis = axisOf(timeline.rows, elapsed());
    list.set(timeline.rows);
    draw();
  };

  const read = async () => {
    if (reading || stopped) return;
    reading = true;
    const began = performance.now();
    try {
      timeline = await get(`${context.path}/timeline`);
      if (!stopped) show();
    } catch (error) {
      if (!timeline && !stopped) fill(body, refused(error, () => void read()));
    }
    readAt = Date.now();
    cost = performance.now() - began;
    reading = false;
    if (run && timeline && run.as_of_seq > timeline.as_of_seq) soon();
  };
  const soon = () => {
    clearTimeout(timer);
    timer = window.setTimeout(() => void read(), Math.max(0, readAt + Math.max(READ_EVERY, 5 * cost) - Date.now()));
  };

  return {
    element,
    show(next, past) {
      run = next;
      at = past;
      if (!timeline || (past === null && next.as_of_seq > timeline.as_of_seq)) soon();
      else draw();
    },
    stop() {
      stopped = true;
      clearTimeout(timer);
      list.stop();
      unbind();
      stopTicking();
    },
  };
}

/** @param {Lane} lane @param {Axis} axis @param {Run} run */
function drawLane(lane, axis, run) {
  const look = stepLook(lane.state ?? "pending");
  const name = lane.title ? `${lane.title} (${lane.step_id})` : lane.step_id;
  return h("li", { class: "tl-row" },
    h("a", { class: `tl-name row-link tone-${look.tone}`, href: `/runs/${encodeURIComponent(run.run_id)}?tab=events&step=${encodeURIComponent(lane.step_id)}`, title: `${name}: ${look.word}`, "aria-label": `${name}: ${look.word}` },
      icon(look.icon), h("span", { class: "cut" }, lane.step_id)),
    h("div", { class: "tl-lane" },
      lane.segments.length === 0 || spans(lane) ? h("i", { class: "seg seg-span", style: box(axis, lane.from_ms, lane.to_ms) }) : null,
      lane.segments.map((segment) => h("i", { class: `seg seg-${segment.kind}${segment.outcome ? ` seg-${segment.outcome}` : ""}`, style: box(axis, segment.from_ms, segment.to_ms), title: describe(segment, axis.total), data: { kind: segment.kind } },
        segment.kind === "waiting" ? words(segment.reason ?? "waiting") : segment.attempt && segment.attempt > 1 ? String(segment.attempt) : ""))));
}

/** A group of items has a time of its own. @param {Lane} lane */
function spans(lane) {
  return lane.segments.every((segment) => segment.kind === "in_line");
}

/** @param {Axis} axis @param {number} from @param {number | undefined} to */
function box(axis, from, to) {
  const [left, right] = [axis.place(from), axis.place(to ?? axis.total)];
  return { left: `${left * 100}%`, width: `${Math.max(0, right - left) * 100}%` };
}

/** @param {Segment} segment @param {number} total */
function describe(segment, total) {
  const length = span((segment.to_ms ?? total) - segment.from_ms);
  const parts = [segment.kind === "waiting" ? words(segment.reason ?? "waiting") : words(segment.kind), length];
  if (segment.attempt) parts.push(`attempt ${segment.attempt}`);
  if (segment.worker) parts.push(segment.worker);
  if (segment.outcome) parts.push(segment.outcome);
  if (segment.to_ms === undefined) parts.push("goes on");
  return segment.message ? `${parts.join(" · ")}\n${segment.message}` : parts.join(" · ");
}

/** @param {HTMLElement} rule @param {Axis} axis @param {string} began */
function drawRule(rule, axis, began) {
  const start = Date.parse(began);
  const { ticks, step } = ticksOf(axis);
  fill(rule,
    ticks.map((ms) => h("span", { class: "tl-tick", style: { left: `${axis.place(ms) * 100}%` }, title: new Date(start + ms).toLocaleString() }, tickLabel(ms, step))),
    axis.folds.map((fold) => h("span", { class: "tl-fold", style: { left: `${((axis.place(fold.from) + axis.place(fold.to)) / 2) * 100}%` }, title: `${span(fold.to - fold.from)} in which nothing was executed` }, `⋯ ${span(fold.to - fold.from)}`)));
}

/** As exact as the distance to the next one asks for. @param {number} ms @param {number} step */
function tickLabel(ms, step) {
  if (ms === 0) return "0";
  if (ms < 1_000) return `${ms}ms`;
  if (step >= 1_000) return span(ms);
  return ms < 60_000 ? `${(ms / 1_000).toFixed(step >= 100 ? 1 : 2)}s` : `${span(ms)} ${((ms % 60_000) / 1_000).toFixed(1)}s`;
}

/** The states of the run itself; each leads to the event with which it was entered. @param {HTMLElement} strip @param {Timeline} timeline @param {Axis} axis @param {RunContext} context */
function drawStrip(strip, timeline, axis, context) {
  const key = `${timeline.as_of_seq} ${axis.total}`;
  if (strip.dataset.key === key) return;
  strip.dataset.key = key;
  fill(strip, timeline.states.map((entered, index) => {
    const next = timeline.states[index + 1]?.at_ms ?? axis.total;
    const look = lookOf(entered.state);
    return h("button", { type: "button", class: `strip-part tone-${look.tone}`, style: box(axis, entered.at_ms, next), title: `${look.word} for ${span(next - entered.at_ms)}`, "aria-label": `${look.word} for ${span(next - entered.at_ms)}, event ${entered.seq}`, tabindex: "-1", on: { click: () => context.travel(entered.seq) } }, h("span", { class: "cut" }, look.word));
  }));
}

/** @param {HTMLElement} lines @param {Axis} axis @param {Timeline} timeline @param {string | null} past */
function drawLines(lines, axis, timeline, past) {
  const then = past === null ? null : Date.parse(past) - Date.parse(timeline.began_at);
  fill(lines,
    axis.folds.map((fold) => h("i", { class: "tl-gap", style: box(axis, fold.from, fold.to) })),
    !timeline.ended_at && then === null && h("i", { class: "tl-now", style: { left: `${axis.place(axis.total) * 100}%` } }),
    then !== null && h("i", { class: "tl-then", style: { left: `${axis.place(then) * 100}%` } }));
}

function legend() {
  const one = (/** @type {string} */ kind, /** @type {string} */ word) => h("span", { class: "tl-key" }, h("i", { class: `seg seg-${kind}` }), word);
  return h("div", { class: "tl-legend", "aria-hidden": "true" }, one("in_line", "In line"), one("executing", "Executing"), one("executing seg-lost", "Lost or failed"), one("waiting", "Waiting"), one("undoing", "Undoing"));
}
