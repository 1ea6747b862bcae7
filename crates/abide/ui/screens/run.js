// One run: what it is doing, why, since when and what can be done, always in the same order; then its time, its graph, its
// log, its data and its explanation; and all of that at any event of its past.

/** @import { Mounted, Run, Visit } from "../lib/types.js" */

import { fill, h } from "../lib/dom.js";
import { get, withQuery } from "../lib/api.js";
import { bind } from "../lib/keys.js";
import { navigate, setPageTitle } from "../lib/router.js";
import { onTick } from "../lib/time.js";
import { begin } from "../parts/actions.js";
import { loading, refused } from "../parts/rest.js";
import { lookOf } from "../parts/states.js";
import { header } from "./run/header.js";
import { scrubber } from "./run/scrubber.js";
import { timelineTab } from "./run/timeline.js";
import { graphTab } from "./run/graph.js";
import { eventsTab } from "./run/events.js";
import { dataTab } from "./run/data.js";
import { explainTab } from "./run/explain.js";
import { handoffTab } from "./run/handoff.js";

export const title = "Run";

/**
 * A tab fills its place and is told of every new record.
 * @typedef {object} Tab
 * @property {HTMLElement} element
 * @property {(run: Run, at: number | null) => void} show
 * @property {() => void} [stop]
 *
 * @typedef {object} RunContext
 * @property {string} path of the run in the API
 * @property {(run: Run) => void} done an action was taken; this is the record after it
 * @property {(seq: number | null) => void} travel shows the run at an event, or now
 */

/** @type {{ [name: string]: { title: string, make: (context: RunContext) => Tab } }} */
const TABS = {
  timeline: { title: "Timeline", make: timelineTab },
  graph: { title: "Graph", make: graphTab },
  events: { title: "Events", make: eventsTab },
  data: { title: "Data", make: dataTab },
  explain: { title: "Explain", make: explainTab },
  handoff: { title: "Handoff", make: handoffTab },
};

/** While a lease lives its heartbeats show; otherwise only sentences grow older. */
const POLL_LEASED = 3_000;
const POLL_OPEN = 15_000;

/** @param {HTMLElement} place @param {Visit} visit @returns {Mounted} */
export function mount(place, visit) {
  return new RunScreen(place, visit);
}

/** @implements {Mounted} */
class RunScreen {
  /** @param {HTMLElement} place @param {Visit} visit */
  constructor(place, visit) {
    this.place = place;
    this.runId = visit.params.run_id ?? "";
    this.path = `/v1/runs/${encodeURIComponent(this.runId)}`;
    this.url = visit.url;
    /** The run as it is. @type {Run | null} */
    this.now = null;
    /** What is shown: now, or the past. @type {Run | null} */
    this.shown = null;
    this.readAt = 0;
    this.asked = 0;
    /** @type {{ name: string, tab: Tab } | null} */
    this.tab = null;
    this.context = { path: this.path, done: (/** @type {Run} */ run) => this.done(run), travel: (/** @type {number | null} */ seq) => this.travel(seq) };
    this.head = header(this.context);
    this.scrubber = scrubber(this.context);
    this.tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "Views of the run" });
    this.body = h("div", { class: "tab-body", role: "tabpanel" });
    const names = Object.keys(TABS);
    this.unbind = bind([
      { keys: "[", about: "Previous view", act: () => this.step(-1, names) },
      { keys: "]", about: "Next view", act: () => this.step(1, names) },
      { keys: "a", about: "First action of the run", act: () => this.act() },
      { keys: ",", about: "One event back", act: () => this.scrubber.move(-1) },
      { keys: ".", about: "One event on", act: () => this.scrubber.move(1) },
    ]);
    this.stopTicking = onTick(() => this.poll());
    setPageTitle(this.runId);
    fill(place, loading(5));
    void this.read();
  }

  get at() {
    const at = Number(this.url.searchParams.get("at"));
    return Number.isInteger(at) && at > 0 ? at : null;
  }

  /** @param {Visit} visit */
  update(visit) {
    this.url = visit.url;
    void this.read();
  }

  /** Reads what the address asks for. */
  async read() {
    this.asked += 1;
    const asked = this.asked;
    this.readAt = Date.now();
    try {
      /** @type {Run} */
      const now = await get(this.path);
      /** @type {Run} */
      const shown = this.at ? await get(withQuery(this.path, { at: this.at })) : now;
      if (asked === this.asked) this.take(now, shown);
    } catch (error) {
      if (asked === this.asked && !this.now) fill(this.place, refused(error, () => void this.read()));
    }
  }

  /** @param {Run} now @param {Run} shown */
  take(now, shown) {
    if (this.now && !this.at && now.as_of_seq < this.now.as_of_seq) return;
    this.now = now;
    this.shown = shown;
    if (!this.head.element.isConnected) fill(this.place, this.head.element, this.scrubber.element, this.tabs, this.body);
    setPageTitle(`${lookOf(now.state).word}: ${this.runId}`);
    this.head.show(shown, this.at);
    this.scrubber.show(now, shown, this.at);
    this.showTab();
  }

  showTab() {
    if (!this.now || !this.shown) return;
    const wanted = this.url.searchParams.get("tab") ?? "timeline";
    const name = TABS[wanted] ? wanted : "timeline";
    this.paintTabs(name);
    if (this.tab?.name !== name) {
      this.tab?.tab.stop?.();
      const made = /** @type {{ make: (context: RunContext) => Tab }} */ (TABS[name]).make(this.context);
      this.tab = { name, tab: made };
      this.body.setAttribute("aria-labelledby", `tab-${name}`);
      fill(this.body, made.element);
    }
    this.tab.tab.show(this.shown, this.at);
  }

  /** @param {string} chosen */
  paintTabs(chosen) {
    const names = Object.keys(TABS).filter((name) => name !== "handoff" || chosen === name || this.now?.handoff);
    const key = `${names.join()} ${chosen} ${this.at}`;
    if (this.tabs.dataset.key === key) return;
    this.tabs.dataset.key = key;
    const focused = this.tabs.contains(document.activeElement);
    fill(this.tabs, names.map((name) =>
      h("a", { role: "tab", id: `tab-${name}`, class: "tab", href: this.address({ tab: name === "timeline" ? null : name }), "aria-selected": String(name === chosen), tabindex: name === chosen ? "0" : "-1",
        on: { keydown: (/** @type {KeyboardEvent} */ event) => this.arrow(event, names, name) } }, TABS[name]?.title ?? name)));
    if (focused) /** @type {HTMLElement | null} */ (this.tabs.querySelector("[aria-selected=true]"))?.focus();
  }

  /** @param {KeyboardEvent} event @param {string[]} names @param {string} name */
  arrow(event, names, name) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    this.go(names[(names.indexOf(name) + step + names.length) % names.length] ?? name);
  }

  /** @param {number} step @param {string[]} names */
  step(step, names) {
    const known = names.filter((name) => name !== "handoff" || this.now?.handoff);
    const at = known.indexOf(this.tab?.name ?? "timeline");
    this.go(known[(at + step + known.length) % known.length] ?? "timeline");
  }

  /** @param {string} tab */
  go(tab) {
    navigate(this.address({ tab: tab === "timeline" ? null : tab }), { replace: true });
  }

  /** This page with other words in its query. @param {{ [name: string]: string | null }} changes */
  address(changes) {
    const query = new URLSearchParams(this.url.searchParams);
    for (const [name, value] of Object.entries(changes)) {
      if (value === null) query.delete(name);
      else query.set(name, value);
    }
    const text = query.toString();
    return text ? `${this.url.pathname}?${text}` : this.url.pathname;
  }

  /** @param {number | null} seq */
  travel(seq) {
    navigate(this.address({ at: seq ? String(seq) : null }), { replace: true });
  }

  /** @param {Run} run */
  done(run) {
    // A retry of a run that ended is another run.
    if (run && run.run_id !== this.runId) navigate(`/runs/${encodeURIComponent(run.run_id)}`);
    else if (run && !this.at) this.take(run, run);
  }

  act() {
    const action = this.now?.next_actions[0];
    if (this.now && action) void begin(this.now, action, (run) => this.done(run));
  }

  /** @param {Run[]} runs */
  records(runs) {
    const own = runs.find((run) => run.run_id === this.runId);
    if (own && this.now && own.as_of_seq >= this.now.as_of_seq) {
      if (this.at && this.shown) this.take(own, this.shown);
      else this.take(own, own);
      return;
    }
    // A child that moved may be the reason for what this run says of itself.
    if (this.now?.state === "waiting_on_child" && runs.some((run) => run.parent?.run_id === this.runId)) void this.read();
  }

  /** Heartbeats are not events: while somebody looks they are read. */
  poll() {
    const run = this.now;
    if (!run || run.ended_at || this.at) return;
    const every = run.lease_owner ? POLL_LEASED : POLL_OPEN;
    if (Date.now() - this.readAt >= every) void this.read();
  }

  resync() {
    void this.read();
  }

  commands() {
    const run = this.now;
    if (!run) return [];
    const deeds = run.next_actions.map((action) => ({ title: action.title, hint: "this run", run: () => void begin(run, action, (after) => this.done(after)) }));
    const views = Object.entries(TABS).filter(([name]) => name !== "handoff" || run.handoff).map(([name, tab]) => ({ title: tab.title, hint: "view of this run", run: () => this.go(name) }));
    return [...deeds, ...views];
  }

  unmount() {
    this.asked += 1;
    this.tab?.tab.stop?.();
    this.stopTicking();
    this.unbind();
  }
}
