// The numbers people need: how long runs stay in each state, how often they wait for a connection, retry, stall or end with
// warnings; of all workflows or of one.

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

/**
 * @typedef {object} Insights
 * @property {number} runs
 * @property {{ [state: string]: { count: number, p50_ms: number, p95_ms: number, p99_ms: number } }} time_in_state
 * @property {{ [tool: string]: number }} auth_blocked
 * @property {number} auth_blocked_rate
 * @property {number} retry_rate
 * @property {number} retry_success_rate
 * @property {number} stalls_per_1000_runs
 * @property {number} completed_with_warnings_rate
 * @property {{ [handler: string]: { issued: number, again: number } }} handlers
 */

/** @typedef {{ queue: string, depth: number, oldest_at: string | null }} Queue */

const percent = (/** @type {number} */ share) => `${(100 * share).toLocaleString(undefined, { maximumFractionDigits: share < 0.1 && share > 0 ? 1 : 0 })} %`;
const perRun = (/** @type {number} */ rate) => rate.toLocaleString(undefined, { maximumFractionDigits: 2 });
const whole = (/** @type {number} */ number) => number.toLocaleString(undefined, { maximumFractionDigits: number < 10 ? 1 : 0 });

/** Each rate: its name, what it says, how it is read and how it is drawn. */
const RATES = /** @type {const} */ ([
  { key: "auth_blocked_rate", name: "Waited for a connection", note: "Times that runs waited for a connection, per run started.", read: perRun, tone: "wait", most: undefined },
  { key: "retry_rate", name: "Back-offs per run", note: "Times that runs waited to try again, per run started.", read: perRun, tone: "trouble", most: undefined },
  { key: "retry_success_rate", name: "Retries that helped", note: "Of the steps that needed another attempt, how many were completed.", read: percent, tone: "good", most: 1 },
  { key: "stalls_per_1000_runs", name: "Stalls per 1,000 runs", note: "Times that expected progress did not occur.", read: whole, tone: "trouble", most: undefined },
  { key: "completed_with_warnings_rate", name: "Ended with warnings", note: "Of the runs that ended, how many had warnings.", read: percent, tone: "wait", most: 1 },
]);

/** Marks of an axis of time, in milliseconds. */
const MARKS = [1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 86_400_000, 864_000_000, 8_640_000_000];

/** @type {import("../lib/types.js").Screen["mount"]} */
export function mount(place, visit) {
  let workflow = visit.url.searchParams.get("workflow") ?? "";
  const body = h("div", null, loading());
  const choose = h("select", { "aria-label": "Workflow", on: { change: () => navigate(withQuery("/insights", { workflow: choose.value })) } }, h("option", { value: "" }, "All workflows"));
  fill(place, h("header", { class: "screen-head" }, h("h1", null, title), h("span", { class: "grow" }), h("div", { class: "insights-choose" }, choose)), body);
  let turn = 0;

  const read = async () => {
    turn += 1;
    const mine = turn;
    try {
      /** @type {[Insights, { workflows: { [id: string]: Insights } }, { queues: Queue[] }]} */
      const [whole, { workflows }, { queues }] = await Promise.all([get(withQuery("/v1/insights", { workflow })), get("/v1/insights?by=workflow"), get("/v1/queues")]);
      if (mine !== turn) return;
      const known = [...new Set([...Object.keys(workflows), ...(workflow ? [workflow] : [])])].sort();
      fill(choose, h("option", { value: "" }, "All workflows"), known.map((id) => h("option", { value: id }, id)));
      choose.value = workflow;
      fill(body, whole.runs === 0 && !Object.keys(whole.time_in_state).length ? nothing() : plots(whole, workflow ? {} : workflows, workflow ? [] : queues));
    } catch (error) {
      if (mine === turn) fill(body, refused(error, read));
    }
  };
  void read();
  return {
    update(next) {
      workflow = next.url.searchParams.get("workflow") ?? "";
      void read();
    },
    resync: () => void read(),
    unmount() {},
  };
}

function nothing() {
  return empty("There is nothing to count yet", h("p", null, "Numbers appear as soon as runs were started."));
}

/** @param {Insights} of @param {{ [id: string]: Insights }} workflows @param {Queue[]} queues */
function plots(of, workflows, queues) {
  return h("div", { class: "insights" },
    h("ul", { class: "tiles" },
      tile("Runs started", whole(of.runs), "Since the first one."),
      RATES.map((rate) => tile(rate.name, rate.read(of[rate.key]), rate.note))),
    times(of),
    h("div", { class: "plots" },
      RATES.map((rate) => byWorkflow(rate, workflows)),
      byTool(of), byQueue(queues), byHandler(of)));
}

/** @param {string} name @param {string} number @param {string} note */
function tile(name, number, note) {
  return h("li", { class: "panel tile", title: note }, h("span", { class: "tile-number" }, number), h("span", { class: "tile-name" }, name));
}

/** @param {Insights} of */
function times(of) {
  const states = GROUPS.flatMap((group) => group.states).filter((state) => of.time_in_state[state]);
  const shown = states.map((state) => {
    const { p50_ms: low, p95_ms: middle, p99_ms: high } = /** @type {Insights["time_in_state"][string]} */ (of.time_in_state[state]);
    const look = lookOf(state);
    /** @type {Child} */
    const name = [icon(look.icon), look.word];
    return { name, label: look.word, tone: look.tone, low, middle, high, shown: `${span(low)} · ${span(middle)} · ${span(high)}` };
  });
  return figure({
    title: "Time in each state",
    note: "Half of all stays ended at the circle, 95 % at the ring, 99 % at the bar. The axis is logarithmic.",
    drawing: shown.length ? ranges(shown, span, MARKS) : h("p", { class: "faint" }, "No run has left a state yet."),
    columns: ["State", "Stays", "p50", "p95", "p99"],
    rows: states.map((state) => {
      const one = /** @type {Insights["time_in_state"][string]} */ (of.time_in_state[state]);
      return [lookOf(state).word, whole(one.count), span(one.p50_ms), span(one.p95_ms), span(one.p99_ms)];
    }),
  });
}

/** @param {typeof RATES[number]} rate @param {{ [id: string]: Insights }} workflows */
function byWorkflow(rate, workflows) {
  const rows = Object.entries(workflows).map(([id, one]) => ({ id, runs: one.runs, value: one[rate.key] })).sort((one, other) => other.value - one.value || one.id.localeCompare(other.id));
  if (!rows.length) return null;
  const some = rows.filter((row) => row.value > 0);
  return figure({
    title: rate.name,
    note: rate.note,
    drawing: some.length
      ? bars(some.map((row) => ({ name: row.id, href: withQuery("/insights", { workflow: row.id }), value: row.value, shown: rate.read(row.value) })), { tone: rate.tone, ...(rate.most ? { most: rate.most } : {}) })
      : h("p", { class: "faint plot-none" }, "None, in any workflow."),
    columns: ["Workflow", "Runs", rate.name],
    rows: rows.map((row) => [row.id, whole(row.runs), rate.read(row.value)]),
  });
}

/** @param {Insights} of */
function byTool(of) {
  const rows = Object.entries(of.auth_blocked).sort((one, other) => other[1] - one[1]);
  return figure({
    title: "Waited for a connection, by tool",
    note: "Times that runs waited until somebody reconnected it.",
    drawing: rows.length ? bars(rows.map(([tool, count]) => ({ name: tool, href: withQuery("/", { connection: tool }), value: count, shown: whole(count) })), { tone: "wait" }) : h("p", { class: "faint plot-none" }, "No run has waited for a connection."),
    columns: ["Tool", "Times"],
    rows: rows.map(([tool, count]) => [tool, whole(count)]),
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

/** @param {Insights} of */
function byHandler(of) {
  const rows = Object.entries(of.handlers).sort((one, other) => other[1].issued - one[1].issued);
  return figure({
    title: "Tasks, by handler",
    note: "The part on the left was issued again, because an attempt before had not succeeded.",
    drawing: rows.length ? bars(rows.map(([handler, one]) => ({ name: handler, value: one.issued, part: one.again, shown: one.again ? `${whole(one.issued)}, ${whole(one.again)} again` : whole(one.issued) })), { tone: "go" }) : h("p", { class: "faint plot-none" }, "No task was issued yet."),
    columns: ["Handler", "Issued", "Again"],
    rows: rows.map(([handler, one]) => [handler, whole(one.issued), whole(one.again)]),
  });
}
