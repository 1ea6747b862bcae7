// The list of runs: the filter is the address and the query of the API; rows change as they happen.

/** @import { Counts, Mounted, Run, Runs, Visit } from "../lib/types.js" */

import { fill, h } from "../lib/dom.js";
import { get, withQuery } from "../lib/api.js";
import { bind } from "../lib/keys.js";
import { navigate, setPageTitle } from "../lib/router.js";
import { onTick, setWhen, when } from "../lib/time.js";
import { asCurl, copyMenu, quoted } from "../lib/copy.js";
import { virtualList } from "../parts/list.js";
import { empty, loading, refused } from "../parts/rest.js";
import { lookOf, stateBadge } from "../parts/states.js";
import { icon } from "../parts/icons.js";
import { PRESETS } from "../parts/presets.js";
import { filterBar, describe } from "./runs/filters.js";
import { causes } from "./runs/causes.js";
import { openBulk } from "./runs/bulk.js";

export const title = "Runs";

/** Few at first, so that something is seen at once; then as many as an answer may hold without being felt. */
const FIRST = 40;
const MORE = 100;
/** How often a busy list is read again at most. */
const READ_EVERY = 1_500;
/** How often a quiet one is: sentences with a time in them grow old, and heartbeats are not events. */
const REREAD_EVERY = 20_000;

/** @param {HTMLElement} place @param {Visit} visit @returns {Mounted} */
export function mount(place, visit) {
  return new RunList(place, visit);
}

/** @implements {Mounted} */
class RunList {
  /** @param {HTMLElement} place @param {Visit} visit */
  constructor(place, visit) {
    this.place = place;
    this.query = visit.url.searchParams;
    /** @type {Run[]} */
    this.runs = [];
    /** @type {string | null} */
    this.cursor = null;
    this.reading = new AbortController();
    this.loadingMore = false;
    this.timer = 0;
    this.readAt = 0;
    this.filters = filterBar((query) => navigate(`/${query}`));
    this.causes = causes(() => this.resync());
    this.note = h("p", { class: "list-note faint", role: "status" });
    this.body = h("div", { class: "list-body" }, loading(8));
    this.list = virtualList({ label: "Runs", rowHeight, render: row, key: (/** @type {Run} */ run) => run.run_id, onEnd: () => void this.more() });
    this.unbind = bind([
      { keys: "j", about: "Next run", act: () => this.list.move(1) },
      { keys: "k", about: "Previous run", act: () => this.list.move(-1) },
      { keys: "enter", about: "Open the run", act: () => this.open() },
      { keys: "/", about: "Filter", act: () => this.filters.focus() },
    ]);
    this.stopTicking = onTick(() => {
      if (this.runs.length && Date.now() - this.readAt > REREAD_EVERY) void this.refreshTop();
    });
    fill(place, this.head(), presetTabs(this.query), this.filters.element, this.causes.element, this.note, columns(), this.body);
    void this.load();
  }

  head() {
    return h("header", { class: "screen-head" },
      h("h1", null, title),
      h("span", { class: "grow" }),
      copyMenu("Copy this list", () => [
        { title: "Copy link", text: location.href },
        { title: "Copy as curl", text: asCurl("GET", withQuery("/v1/runs", this.query)) },
        { title: "Copy as command", text: asCommand(this.query) },
      ]),
      h("button", { type: "button", class: "bulk-button", on: { click: () => openBulk(this.query, () => this.resync()) } }, icon("group"), "Act on all of these"));
  }

  /** @param {Visit} visit */
  update(visit) {
    this.query = visit.url.searchParams;
    const tabs = this.place.querySelector(".presets");
    tabs?.replaceWith(presetTabs(this.query));
    fill(this.body, loading(8));
    void this.load();
  }

  /** Reads the list from its beginning. */
  async load() {
    this.reading.abort();
    const reading = new AbortController();
    this.reading = reading;
    setPageTitle(this.query.size ? `Runs: ${describe(this.query)}` : title);
    this.filters.show(this.query);
    try {
      const page = await this.page(null, FIRST);
      if (reading.signal.aborted) return;
      this.runs = page.runs;
      this.cursor = page.next_cursor;
      this.show();
      performance.mark("abide-rows");
      // Numbers come after the rows that people look for.
      void this.count();
    } catch (error) {
      if (!reading.signal.aborted) fill(this.body, refused(error, () => void this.load()));
    }
  }

  /** @param {string | null} cursor @param {number} limit @returns {Promise<Runs>} */
  page(cursor, limit) {
    const query = new URLSearchParams(this.query);
    query.set("limit", String(limit));
    if (cursor) query.set("cursor", cursor);
    this.readAt = Date.now();
    return get(withQuery("/v1/runs", query), { signal: this.reading.signal });
  }

  async more() {
    if (this.loadingMore || !this.cursor) return;
    this.loadingMore = true;
    const cursor = this.cursor;
    try {
      const page = await this.page(cursor, MORE);
      const known = new Set(this.runs.map((run) => run.run_id));
      this.runs = [...this.runs, ...page.runs.filter((run) => !known.has(run.run_id))];
      this.cursor = page.next_cursor;
      this.loadingMore = false;
      this.show();
    } catch (error) {
      this.loadingMore = false;
      if (!this.reading.signal.aborted) this.note.textContent = error instanceof Error ? error.message : "";
    }
  }

  show() {
    if (!this.runs.length) {
      fill(this.body, this.nothing());
      return;
    }
    if (!this.list.element.isConnected) fill(this.body, this.list.element);
    this.list.set(this.runs);
  }

  nothing() {
    if (this.query.size) return empty("No run is like this now.", h("p", null, describe(this.query)), h("a", { class: "button", href: "/" }, "Show all runs"));
    return empty("No runs yet.", h("p", null, "A run appears here as soon as it is started."), h("p", null, h("code", null, "abide start WORKFLOW --input '{}'")));
  }

  /** @param {Run[]} changed */
  records(changed) {
    const news = new Map(changed.map((run) => [run.run_id, run]));
    let seen = 0;
    let again = false;
    const states = wantedStates(this.query);
    const runs = this.runs.flatMap((run) => {
      const now = news.get(run.run_id);
      if (!now) return [run];
      seen += 1;
      if (now.as_of_seq < run.as_of_seq) return [run];
      if (now.state !== run.state) again = true;
      return states && !states.has(now.state) ? [] : [now];
    });
    if (seen) {
      this.runs = runs;
      this.show();
    }
    if (again || seen < news.size) this.readSoon();
  }

  /** What came or went is the server's to say: the beginning of the list is read again, not more often than is felt. */
  readSoon() {
    if (this.timer) return;
    const wait = Math.max(50, this.readAt + READ_EVERY - Date.now());
    this.timer = window.setTimeout(() => {
      this.timer = 0;
      void this.refreshTop();
    }, wait);
  }

  async refreshTop() {
    void this.count();
    try {
      const page = await this.page(null, Math.max(FIRST, Math.min(MORE, this.runs.length)));
      this.merge(page);
      this.show();
    } catch {
      // The chip says that the server is away; the rows stay as they are.
    }
  }

  /** The first page as it is now, then what was loaded beyond it. @param {Runs} page */
  merge(page) {
    const held = new Map(this.runs.map((run) => [run.run_id, run]));
    // A record that the stream brought meanwhile is not taken back.
    const first = page.runs.map((run) => {
      const known = held.get(run.run_id);
      return known && known.as_of_seq > run.as_of_seq ? known : known && same(known, run) ? known : run;
    });
    const listed = new Set(first.map((run) => run.run_id));
    const last = first.at(-1);
    const beyond = page.next_cursor && last ? this.runs.filter((run) => run.created_at < last.created_at && !listed.has(run.run_id)) : [];
    if (!beyond.length) this.cursor = page.next_cursor;
    this.runs = [...first, ...beyond];
  }

  async count() {
    const workflow = this.query.get("workflow") ?? undefined;
    try {
      /** @type {Counts} */
      const { counts } = await get(withQuery("/v1/runs/counts", { by: "state", workflow }));
      this.filters.count(counts);
      this.showTotal(counts);
      this.causes.soon();
    } catch {
      // Numbers come again with the next change.
    }
  }

  /** @param {{ [state: string]: number }} counts */
  showTotal(counts) {
    const states = wantedStates(this.query);
    const total = Object.entries(counts).reduce((sum, [state, count]) => sum + (!states || states.has(state) ? count : 0), 0);
    const exact = [...this.query.keys()].every((name) => name === "state" || name === "workflow");
    this.note.textContent = exact ? `${total.toLocaleString()} ${total === 1 ? "run" : "runs"}` : "";
    for (const tab of this.place.querySelectorAll(".preset")) countPreset(/** @type {HTMLElement} */ (tab), counts);
  }

  open() {
    const focused = document.activeElement;
    // Enter on a link or a button is theirs.
    if (focused instanceof HTMLElement && focused.matches("a, button, summary")) return false;
    const run = this.runs[Math.max(0, this.list.at())];
    if (run) navigate(`/runs/${encodeURIComponent(run.run_id)}`);
    return undefined;
  }

  resync() {
    void this.refreshTop();
  }

  commands() {
    return [
      { title: "Act on all runs of this list", hint: "cancel, retry, pause, resume", run: () => openBulk(this.query, () => this.resync()) },
      { title: "Filter the list", hint: "/", run: () => this.filters.focus() },
    ];
  }

  unmount() {
    this.reading.abort();
    clearTimeout(this.timer);
    this.stopTicking();
    this.causes.stop();
    this.list.stop();
    this.unbind();
  }
}

/** The states that a filter asks for, where it names them one by one. @param {URLSearchParams} query */
function wantedStates(query) {
  const named = query.getAll("state");
  return named.length && !named.some((state) => state === "open" || state === "terminal") ? new Set(named) : null;
}

/** Nothing that a row shows is different. @param {Run} one @param {Run} other */
function same(one, other) {
  return one.as_of_seq === other.as_of_seq && one.summary === other.summary && one.last_heartbeat_at === other.last_heartbeat_at;
}

function rowHeight() {
  return matchMedia("(max-width: 48rem)").matches ? 92 : 56;
}

function columns() {
  return h("div", { class: "row-columns", "aria-hidden": "true" }, ["State", "What it is doing", "Workflow", "Heard of", "In state", "Age"].map((name) => h("span", null, name)));
}

/** One run. @param {Run} run */
function row(run) {
  const labels = Object.entries(run.labels).slice(0, 3);
  const age = when(run.created_at, "age");
  const inState = when(run.ended_at ?? run.since, "age");
  const heard = when(null);
  setWhen(heard, run.last_heartbeat_at, "ago");
  if (run.ended_at) heard.textContent = "–";
  return h("li", { class: "row", data: { state: run.state } },
    h("a", { class: "row-link", href: `/runs/${encodeURIComponent(run.run_id)}`, "aria-label": `${lookOf(run.state).word}: ${run.summary}` },
      h("span", { class: "row-state" }, stateBadge(run.state)),
      h("span", { class: "row-what" },
        h("span", { class: labels.length ? "row-summary cut" : "row-summary", title: run.summary }, run.summary),
        labels.length > 0 && h("span", { class: "row-labels" }, labels.map(([name, value]) => h("span", { class: "label-chip cut" }, `${name}: ${value}`)))),
      h("span", { class: "row-workflow" }, h("span", { class: "cut" }, run.workflow_id, run.step_id && h("span", { class: "faint" }, ` · ${run.step_id}`)), h("code", { class: "faint cut" }, run.run_id)),
      h("span", { class: "row-time num", data: { name: "heard" } }, heard),
      h("span", { class: "row-time num", data: { name: "in state" } }, inState),
      h("span", { class: "row-time num", data: { name: "age" } }, age)));
}

/** @param {URLSearchParams} query */
function presetTabs(query) {
  const here = query.toString();
  return h("nav", { class: "presets", "aria-label": "Presets" }, PRESETS.map((preset) => {
    const chosen = new URLSearchParams(preset.query).toString() === here;
    return h("a", { class: "preset", href: `/${preset.query}`, "aria-current": chosen ? "true" : null, data: { query: preset.query } }, preset.title, h("span", { class: "count faint" }));
  }));
}

/** @param {HTMLElement} tab @param {{ [state: string]: number }} counts */
function countPreset(tab, counts) {
  const states = wantedStates(new URLSearchParams(tab.dataset.query));
  const total = Object.entries(counts).reduce((sum, [state, count]) => sum + (!states || states.has(state) ? count : 0), 0);
  const shown = tab.querySelector(".count");
  if (shown) shown.textContent = total ? short(total) : "";
}

/** @param {number} count */
function short(count) {
  return count >= 10_000 ? `${Math.floor(count / 1_000)}k` : String(count);
}

/** @param {URLSearchParams} query */
function asCommand(query) {
  const words = [...query].map(([name, value]) => (name.startsWith("label.") ? `--label ${quoted(`${name.slice(6)}=${value}`)}` : `--${name.replaceAll("_", "-")} ${quoted(value)}`));
  return ["abide runs", ...words].join(" ");
}
