// Workers and queues: what waits, whether anybody listens for it, and who holds what. Three proofs are kept apart: a worker
// is alive by its heartbeats, listening by its calls for work, progressing by what it reports.

/** @import { Child, Progress } from "../lib/types.js" */

import { fill, h } from "../lib/dom.js";
import { get } from "../lib/api.js";
import { when } from "../lib/time.js";
import { empty, loading, refused } from "../parts/rest.js";
import { icon } from "../parts/icons.js";

export const title = "Workers";

/**
 * @typedef {{ handler: string, depth: number, oldest_at: string | null, listeners: number }} Handler
 * @typedef {{ queue: string, depth: number, oldest_at: string | null, listeners: string[], handlers: Handler[] }} Queue
 * @typedef {{ run_id: string, step_id: string, handler: string, granted_at: string, expires_at: string | null, last_heartbeat_at: string | null, progress: Omit<Progress, "step_id"> | null }} Lease
 * @typedef {{ worker: string, queue: string, handlers: string[] | null, last_poll_at: string, listening: boolean, lease_count: number, leases: Lease[] }} Worker
 */

/** These facts are no records of runs, so that they are asked for. */
const EVERY = 5_000;
/** More handlers of a worker are behind a number. */
const SHOWN_HANDLERS = 6;
/** More workers than this are a number. */
const MOST_WORKERS = 200;
/** The server counts so far. */
const MOST_COUNTED = 10_000;

/** @type {import("../lib/types.js").Screen["mount"]} */
export function mount(place) {
  const queues = h("div", null, loading(3));
  const workers = h("div", null, loading(4));
  fill(place, h("header", { class: "screen-head" }, h("h1", null, "Workers and queues")),
    h("section", { class: "part" }, h("h2", null, "Queues"), queues),
    h("section", { class: "part" }, h("h2", null, "Workers"), workers));
  let before = "";
  const read = async () => {
    try {
      /** @type {[{ queues: Queue[] }, { workers: Worker[] }]} */
      const [one, other] = await Promise.all([get("/v1/queues"), get("/v1/workers")]);
      // What is the same is not drawn again: a selection or an open list stays.
      const now = JSON.stringify([one, other]);
      if (now === before || place.contains(document.activeElement?.closest("details") ?? null)) return;
      before = now;
      fill(queues, one.queues.length ? queueTable(one.queues) : empty("No queue has work or listeners", h("p", null, "A queue is there as soon as a task waits in it or a worker asks for it.")));
      fill(workers, other.workers.length ? workerList(other.workers) : noWorkers());
    } catch (error) {
      if (!before) fill(place, h("h1", null, "Workers and queues"), refused(error, () => location.reload()));
    }
  };
  void read();
  const timer = setInterval(() => document.hidden || void read(), EVERY);
  return { resync: () => void read(), unmount: () => clearInterval(timer) };
}

function noWorkers() {
  return empty("No worker has asked for work lately",
    h("p", null, "Any program can be one: ", h("code", null, "abide worker --handler NAME=COMMAND")));
}

/** @param {number} depth */
function counted(depth) {
  return depth >= MOST_COUNTED ? `${MOST_COUNTED.toLocaleString()}+` : depth.toLocaleString();
}

/** @param {Queue[]} queues */
function queueTable(queues) {
  return h("div", { class: "panel table-frame" }, h("table", { class: "queues" },
    h("thead", null, h("tr", null, h("th", null, "Queue and handler"), h("th", { class: "num" }, "Waiting"), h("th", null, "Oldest"), h("th", null, "Listening"))),
    h("tbody", null, queues.flatMap((queue) => [
      h("tr", { class: "queue-row" },
        h("th", { scope: "row" }, queue.queue),
        h("td", { class: "num" }, counted(queue.depth)),
        h("td", null, queue.oldest_at ? when(queue.oldest_at, "age") : "–"),
        h("td", null, queue.listeners.length ? `${queue.listeners.length} ${queue.listeners.length === 1 ? "worker" : "workers"}` : queue.depth ? nobody() : "nobody")),
      ...queue.handlers.map((handler) => h("tr", { class: handler.listeners ? null : "unheard" },
        h("td", { class: "handler" }, h("code", null, handler.handler)),
        h("td", { class: "num" }, counted(handler.depth)),
        h("td", null, handler.oldest_at ? when(handler.oldest_at, "age") : "–"),
        h("td", null, handler.listeners ? `${handler.listeners} ${handler.listeners === 1 ? "worker" : "workers"}` : nobody()))),
    ]))));
}

function nobody() {
  return h("span", { class: "nobody" }, icon("operator"), "No listener");
}

/** @param {Worker[]} workers */
function workerList(workers) {
  /** @type {Map<string, Worker[]>} */
  const byName = new Map();
  for (const one of workers) byName.set(one.worker, [...(byName.get(one.worker) ?? []), one]);
  // Those who hold something come first, then those who asked last.
  const held = (/** @type {Worker[]} */ rows) => rows.reduce((sum, row) => sum + row.lease_count, 0);
  const all = [...byName].sort(([, one], [, other]) => held(other) - held(one) || String(newest(other.map((row) => row.last_poll_at))).localeCompare(String(newest(one.map((row) => row.last_poll_at)))));
  return [h("ul", { class: "workers" }, all.slice(0, MOST_WORKERS).map(([name, rows]) => workerView(name, rows))),
    all.length > MOST_WORKERS && h("p", { class: "note" }, `${(all.length - MOST_WORKERS).toLocaleString()} more hold nothing or asked earlier; `, h("code", null, "abide workers"), " lists all.")];
}

/** @param {string} name @param {Worker[]} rows */
function workerView(name, rows) {
  const leases = rows.flatMap((row) => row.leases);
  const count = rows.reduce((sum, row) => sum + row.lease_count, 0);
  const poll = newest(rows.map((row) => row.last_poll_at));
  const beat = newest(leases.map((lease) => lease.last_heartbeat_at));
  const step = newest(leases.map((lease) => lease.progress?.at));
  const listening = rows.some((row) => row.listening);
  return h("li", { class: "panel worker" },
    h("header", { class: "worker-head" }, h("h3", null, name), h("span", { class: "faint small" }, rows.map((row) => row.queue).join(", "))),
    h("dl", { class: "proofs" },
      proof("Alive", beat ? "heart" : "pending", beat ? ["heartbeat ", when(beat)] : "holds nothing", beat ? "good" : "calm"),
      proof("Listening", listening ? "done" : "failed", [listening ? "asked " : "last asked ", when(poll)], listening ? "good" : "bad"),
      proof("Progressing", step ? "running" : "pending", step ? ["reported ", when(step)] : leases.length ? "reports no progress" : "holds nothing", step ? "good" : "calm")),
    handlersView(rows),
    count > 0 && h("div", { class: "leases" },
      h("h4", { class: "small faint" }, `${count} ${count === 1 ? "task" : "tasks"} held${count > leases.length ? `, the newest ${leases.length} here` : ""}`),
      h("ul", null, leases.map(leaseView))));
}

/** @param {(string | null | undefined)[]} instants @returns {string | null} */
function newest(instants) {
  return instants.reduce((/** @type {string | null} */ best, one) => (one && (!best || one > best) ? one : best), null);
}

/** @param {string} name @param {string} shape @param {Child} what @param {string} tone */
function proof(name, shape, what, tone) {
  return h("div", { class: `proof tone-${tone}` }, h("dt", null, icon(shape), name), h("dd", null, what));
}

/** @param {Worker[]} rows */
function handlersView(rows) {
  if (rows.some((row) => row.handlers === null)) return h("p", { class: "small soft" }, "Takes every handler of its queues.");
  const names = [...new Set(rows.flatMap((row) => row.handlers ?? []))];
  const chip = (/** @type {string} */ name) => h("code", { class: "label-chip" }, name);
  const [first, rest] = names.length > SHOWN_HANDLERS + 1 ? [names.slice(0, SHOWN_HANDLERS), names.slice(SHOWN_HANDLERS)] : [names, []];
  return h("div", { class: "handlers" }, first.map(chip),
    rest.length > 0 && h("details", null, h("summary", { class: "small" }, `${rest.length} more`), rest.map(chip)));
}

/** @param {Lease} lease */
function leaseView(lease) {
  const progress = lease.progress;
  return h("li", { class: "lease" },
    h("a", { href: `/runs/${encodeURIComponent(lease.run_id)}`, class: "cut" }, lease.run_id),
    h("span", { class: "cut" }, lease.step_id),
    h("span", { class: "faint" }, when(lease.granted_at, "age")),
    h("span", { class: "lease-progress" }, progress ? [
      progress.total ? h("progress", { max: progress.total, value: progress.done, "aria-label": `Progress of ${lease.step_id}` }) : null,
      h("span", { class: "faint small cut", title: progress.message ?? null }, progress.total ? `${progress.done} of ${progress.total}` : String(progress.done), progress.message ? ` ${progress.message}` : ""),
    ] : null));
}
