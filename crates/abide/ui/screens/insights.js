// The numbers people need: how long runs stay in each state, how often they wait for a connection, retry, stall or end with
// warnings; of all workflows or of one, by workflow and by tool.

/** @import { Child } from "../lib/types.js" */

import { fill, h } from "../lib/dom.js";
import { get, withQuery } from "../lib/api.js";
import { now, span } from "../lib/time.js";
import { navigate } from "../lib/router.js";
import { empty, loading, refused } from "../parts/rest.js";
import { GROUPS, lookOf } from "../parts/states.js";
import { icon } from "../parts/icons.js";
import { bars, figure, ranges } from "../parts/plot.js";

export const title = "Insights";

/** @typedef {{ [state: string]: { count: number, p50_ms: number, p95_ms: number, p99_ms: number } }} Times */

/**
 * @typedef {object} Insights
 * @property {number} runs
 * @property {Times} time_in_state
 * @property {number} auth_blocked_rate
 * @property {number} retry_rate
 * @property {number | null} retry_success_rate
 * @property {number} stalls_per_1000_runs
 * @property {number} completed_with_warnings_rate
 * @property {{ [tool: string]: Tool }} tools
 */

/**
 * @typedef {object} Tool
 * @property {number} issued
 * @property {number} again
 * @property {Times} time_in_state
 * @property {number} auth_blocked
 * @property {number} auth_blocked_rate
 * @property {number} retries
 * @property {number | null} retry_rate
 * @property {number | null} retry_success_rate
 * @property {number} stalls
 * @property {number | null} stalls_per_1000_tasks
 * @property {number} warnings
 * @property {number | null} warnings_rate
 */

/** @typedef {{ queue: string, depth: number, oldest_at: string | null }} Queue */

const percent = (/** @type {number} */ share) => `${(100 * share).toLocaleString(undefined, { maximumFractionDigits: share < 0.1 && share > 0 ? 1 : 0 })} %`;
const perOne = (/** @type {number} */ rate) => rate.toLocaleString(undefined, { maximumFractionDigits: 2 });
const whole = (/** @type {number} */ number) => number.toLocaleString(undefined, { maximumFractionDigits: number < 10 ? 1 : 0 });

/**
 * How a rate is called, what it says, how it is read and drawn. `most` is what the whole width stands for; of some rates 0 is
 * worth a row, of the others it means that there is nothing to see.
 * @typedef {{ name: string, note: string, read: (rate: number) => string, tone: string, most?: number, zero?: boolean, none?: string }} Rate
 */

const HELPED = { name: "Retries that helped", note: "Of the steps that needed another attempt, how many were completed.", read: percent, tone: "good", most: 1, zero: true, none: "Nothing was tried again yet." };
const CONNECTION = { name: "Waited for a connection", note: "Times that runs waited for a connection, per run started.", read: perOne, tone: "wait" };

/** @type {(Rate & { of: (one: Insights) => number | null })[]} */
const RATES = [
  { ...CONNECTION, of: (one) => one.auth_blocked_rate },
  { name: "Back-offs per run", note: "Times that runs waited to try again, per run started.", read: perOne, tone: "trouble", of: (one) => one.retry_rate },
  { ...HELPED, of: (one) => one.retry_success_rate },
  { name: "Stalls per 1,000 runs", note: "Times that expected progress did not occur.", read: whole, tone: "trouble", of: (one) => one.stalls_per_1000_runs },
  { name: "Ended with warnings", note: "Of the runs that ended, how many had warnings.", read: percent, tone: "wait", most: 1, of: (one) => one.completed_with_warnings_rate },
];

/** The same of tools; what they do is counted in tasks. @type {(Rate & { of: (one: Tool) => number | null, times: (one: Tool) => number })[]} */
const TOOL_RATES = [
  { ...CONNECTION, of: (one) => one.auth_blocked_rate, times: (one) => one.auth_blocked },
  { name: "Back-offs per task", note: "Times that runs waited to try again, per task of the tool.", read: perOne, tone: "trouble", of: (one) => one.retry_rate, times: (one) => one.retries },
  { ...HELPED, of: (one) => one.retry_success_rate, times: (one) => one.again },
  { name: "Stalls per 1,000 tasks", note: "Times that expected progress did not occur, per 1,000 tasks of the tool.", read: whole, tone: "trouble", of: (one) => one.stalls_per_1000_tasks, times: (one) => one.stalls },
  { name: "Warnings per task", note: "Warnings of the steps that called it, per task of the tool.", read: perOne, tone: "wait", of: (one) => one.warnings_rate, times: (one) => one.warnings },
];

/** Marks of an axis of time, in milliseconds. */
const MARKS = [1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 86_400_000, 864_000_000, 8_640_000_000];
/** Workflows or tools beyond this many are only in the table. */
const MOST_RANGES = 12;

/** @type {import("../lib/types.js").Screen["mount"]} */
export function mount(place, visit) {
  let { searchParams: asked } = visit.url;
  const body = h("div", null, loading());
  const choose = h("select", { "aria-label": "Workflow", on: { change: () => navigate(withQuery("/insights", { workflow: choose.value, state: asked.get("state") ?? "" })) } }, h("option", { value: "" }, "All workflows"));
  fill(place, h("header", { class: "screen-head" }, h("h1", null, title), h("span", { class: "grow" }), h("div", { class: "insights-choose" }, choose)), body);
  let turn = 0;

  const read = async () => {
    turn += 1;
    const mine = turn;
    const workflow = asked.get("workflow") ?? "";
    try {
      /** @type {[Insights, { workflows: { [id: string]: Insights } }, { queues: Queue[] }]} */
      const [whole, { workflows }, { queues }] = await Promise.all([get(withQuery("/v1/insights", { workflow })), get("/v1/insights?by=workflow"), get("/v1/queues")]);
      if (mine !== turn) return;
      const known = [...new Set([...Object.keys(workflows), ...(workflow ? [workflow] : [])])].sort();
      fill(choose, h("option", { value: "" }, "All workflows"), known.map((id) => h("option", { value: id }, id)));
      choose.value = workflow;
      fill(body, whole.runs === 0 && !Object.keys(whole.time_in_state).length ? nothing() : plots(whole, workflow ? {} : workflows, workflow ? [] : queues, asked));
    } catch (error) {
      if (mine === turn) fill(body, refused(error, read));
    }
  };
  void read();
  return {
    update(next) {
      asked = next.url.searchParams;
      void read();
    },
    resync: () => void read(),
    unmount() {},
  };
}

function nothing() {
  return empty("There is nothing to count yet", h("p", null, "Numbers appear as soon as runs were started."));
}

/** @param {Insights} of @param {{ [id: string]: Insights }} workflows @param {Queue[]} queues @param {URLSearchParams} asked */
function plots(of, workflows, queues, asked) {
  const state = asked.get("state") ?? (of.time_in_state.running ? "running" : Object.keys(of.time_in_state)[0] ?? "running");
  const ids = Object.entries(workflows);
  const tools = Object.entries(of.tools);
  const toWorkflow = (/** @type {string} */ id) => withQuery("/insights", { workflow: id, state: asked.get("state") ?? "" });
  return h("div", { class: "insights" },
    h("ul", { class: "tiles" },
      tile("Runs started", whole(of.runs), "Since the first one."),
      RATES.map((rate) => tile(rate.name, said(rate, rate.of(of)), rate.note))),
    times(of.time_in_state, state, asked),
    section("By workflow", ids.length > 0 &&
      [timesBy("workflow", state, ids.map(([id, one]) => ({ name: id, href: toWorkflow(id), times: one.time_in_state }))),
        h("div", { class: "plots" }, RATES.map((rate) => rates("Workflow", rate, ids.map(([id, one]) => ({ name: id, href: toWorkflow(id), value: rate.of(one), cells: [whole(one.runs)] })), "Runs")), byQueue(queues))]),
    section("By tool", tools.length > 0 &&
      [h("p", { class: "note" }, "What happened because of a connection counts for its tool, everything else of a step for the handler that the step calls."),
        timesBy("tool", state, tools.map(([tool, one]) => ({ name: tool, href: null, times: one.time_in_state }))),
        h("div", { class: "plots" }, TOOL_RATES.map((rate) => rates("Tool", rate, tools.map(([tool, one]) => ({ name: tool, href: one.auth_blocked ? withQuery("/", { connection: tool }) : null, value: rate.of(one), cells: [whole(one.issued), whole(rate.times(one))] })), "Tasks", "Times")), byTask(tools))]));
}

/** @param {string} name @param {Child} content */
function section(name, content) {
  return content ? h("section", { class: "insights-by", "aria-label": name }, h("h2", null, name), content) : null;
}

/** @param {string} name @param {string} number @param {string} note */
function tile(name, number, note) {
  return h("li", { class: "panel tile", title: note }, h("span", { class: "tile-number" }, number), h("span", { class: "tile-name" }, name));
}

/** A rate in words; of nothing there is none. @param {Rate} rate @param {number | null} value */
function said(rate, value) {
  return value === null ? "–" : rate.read(value);
}

const NOTE = "Half of all stays ended at the circle, 95 % at the ring, 99 % at the bar. The axis is logarithmic.";

/** How long runs are in each state; the name of a state leads to who they are because of. @param {Times} of @param {string} chosen @param {URLSearchParams} asked */
function times(of, chosen, asked) {
  const rows = GROUPS.flatMap((group) => group.states).flatMap((state) => {
    const one = of[state];
    return one ? [{ state, look: lookOf(state), one }] : [];
  });
  const link = (/** @type {typeof rows[number]} */ { state, look }) =>
    h("a", { href: withQuery("/insights", { workflow: asked.get("workflow") ?? "", state }), "aria-current": state === chosen ? "true" : null }, icon(look.icon), look.word);
  return figure({
    title: "Time in each state",
    note: `${NOTE} Choose a state to see it by workflow and by tool.`,
    drawing: rows.length ? ranges(rows.map((row) => range(link(row), row.look.word, row.look.tone, row.one)), span, MARKS) : h("p", { class: "faint" }, "No run has left a state yet."),
    columns: ["State", "Stays", "p50", "p95", "p99"],
    rows: rows.map(({ look, one }) => [look.word, ...cells(one)]),
  });
}

/**
 * How long runs were in one state, by workflow or by tool; the longest first.
 * @param {string} by @param {string} state @param {{ name: string, href: string | null, times: Times }[]} of
 */
function timesBy(by, state, of) {
  const look = lookOf(state);
  const rows = of.flatMap(({ name, href, times }) => {
    const one = times[state];
    return one ? [{ name, href, one }] : [];
  }).sort((one, other) => other.one.p95_ms - one.one.p95_ms);
  const name = (/** @type {typeof rows[number]} */ row) => row.href ? h("a", { class: "cut", href: row.href }, row.name) : h("span", { class: "cut" }, row.name);
  return figure({
    title: `Time in ${look.word.toLowerCase()}, by ${by}`,
    note: NOTE,
    drawing: rows.length ? [ranges(rows.slice(0, MOST_RANGES).map((row) => range(name(row), row.name, look.tone, row.one)), span, MARKS), rows.length > MOST_RANGES && h("p", { class: "note" }, `${rows.length - MOST_RANGES} more are in the table.`)] : h("p", { class: "faint plot-none" }, `No ${by} was the reason for a stay in this state.`),
    columns: [by === "tool" ? "Tool" : "Workflow", "Stays", "p50", "p95", "p99"],
    rows: rows.map((row) => [row.name, ...cells(row.one)]),
  });
}

/** @param {Child} name @param {string} label @param {string} tone @param {Times[string]} one */
function range(name, label, tone, { p50_ms: low, p95_ms: middle, p99_ms: high }) {
  return { name, label, tone, low, middle, high, shown: `${span(low)} · ${span(middle)} · ${span(high)}` };
}

/** @param {Times[string]} one */
function cells(one) {
  return [whole(one.count), span(one.p50_ms), span(one.p95_ms), span(one.p99_ms)];
}

/**
 * One rate by workflow or by tool, the highest first.
 * @param {string} by @param {Rate} rate @param {{ name: string, href: string | null, value: number | null, cells: string[] }[]} of
 * @param {...string} columns the names of the cells
 */
function rates(by, rate, of, ...columns) {
  const rows = [...of].sort((one, other) => (other.value ?? -1) - (one.value ?? -1) || one.name.localeCompare(other.name));
  const some = rows.flatMap(({ name, href, value }) => value !== null && (value > 0 || rate.zero) ? [{ name, href, value, shown: rate.read(value) }] : []);
  return figure({
    title: rate.name,
    note: rate.note,
    drawing: some.length ? bars(some, { tone: rate.tone, ...(rate.most ? { most: rate.most } : {}) }) : h("p", { class: "faint plot-none" }, rate.none ?? (by === "Tool" ? "None with any tool." : "None in any workflow.")),
    columns: [by, ...columns, rate.name],
    rows: rows.map((row) => [row.name, ...row.cells, said(rate, row.value)]),
  });
}

/** How long the oldest task of each queue has waited. @param {Queue[]} queues */
function byQueue(queues) {
  const rows = queues.map((queue) => ({ queue: queue.queue, depth: queue.depth, age: queue.oldest_at ? Math.max(0, now() - Date.parse(queue.oldest_at)) : 0 })).sort((one, other) => other.age - one.age);
  if (!rows.length) return null;
  const some = rows.filter((row) => row.depth > 0);
  return figure({
    title: "Age of the oldest task, by queue",
    note: "How long work has waited for a worker, now.",
    drawing: some.length ? bars(some.map((row) => ({ name: row.queue, href: "/workers", value: row.age, shown: span(row.age) })), { tone: "trouble" }) : h("p", { class: "faint plot-none" }, "Nothing waits in any queue."),
    columns: ["Queue", "Waiting", "Oldest"],
    rows: rows.map((row) => [row.queue, whole(row.depth), row.depth ? span(row.age) : "–"]),
  });
}

/** @param {[string, Tool][]} tools */
function byTask(tools) {
  const rows = tools.filter(([, one]) => one.issued > 0).sort((one, other) => other[1].issued - one[1].issued);
  return figure({
    title: "Tasks",
    note: "The part on the left was issued again, because an attempt before had not succeeded.",
    drawing: rows.length ? bars(rows.map(([tool, one]) => ({ name: tool, value: one.issued, part: one.again, shown: one.again ? `${whole(one.issued)}, ${whole(one.again)} again` : whole(one.issued) })), { tone: "go" }) : h("p", { class: "faint plot-none" }, "No task was issued yet."),
    columns: ["Tool", "Issued", "Again"],
    rows: rows.map(([tool, one]) => [tool, whole(one.issued), whole(one.again)]),
  });
}
