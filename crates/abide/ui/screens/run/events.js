// The log of a run: by step or by time, who did what, from which state to which; the stored event is one key away.

/** @import { RunEvent, Events } from "../../lib/types.js" */
/** @import { RunContext, Tab } from "../run.js" */

import { fill, h } from "../../lib/dom.js";
import { getExact, withQuery } from "../../lib/api.js";
import { bind } from "../../lib/keys.js";
import { copyText } from "../../lib/copy.js";
import { Written, indented, write } from "../../lib/json.js";
import { absolute } from "../../lib/time.js";
import { currentVisit, navigate } from "../../lib/router.js";
import { openDialog } from "../../parts/dialog.js";
import { icon } from "../../parts/icons.js";
import { virtualList } from "../../parts/list.js";
import { loading, refused } from "../../parts/rest.js";
import { lookOf } from "../../parts/states.js";
import { evidenceLinks } from "./header.js";

/** A row is an event, or the heading of a step. @typedef {{ event: RunEvent } | { step: string, count: number, fresh: object }} Row */

const PAGE = 500;
/** So many are read by themselves; more come when the end is in sight. */
const AT_ONCE = 5_000;

/** @param {RunContext} context @returns {Tab} */
export function eventsTab(context) {
  /** @type {RunEvent[]} */
  let events = [];
  let wanted = 0;
  /** @type {number | null} */
  let at = null;
  let byStep = currentVisit().url.searchParams.get("by") !== "time";
  let step = "";
  let reading = false;
  let stopped = false;
  let allowed = AT_ONCE;
  const list = virtualList({ label: "Events", rowHeight: () => (matchMedia("(max-width: 48rem)").matches ? 56 : 36), key: keyOf, render: (/** @type {Row} */ row) => ("event" in row ? drawEvent(row.event) : drawStep(row)), onEnd: () => {
    allowed = Math.max(allowed, events.length + PAGE);
    void read();
  } });
  const body = h("div", { class: "ev-body" }, loading(6));
  const note = h("span", { class: "faint small", role: "status" });
  const chosen = h("span", { class: "chips" });
  const order = h("div", { class: "segmented", role: "group", "aria-label": "Order" });
  const unbind = bind([
    { keys: "j", about: "Next event", act: () => list.move(1) },
    { keys: "k", about: "Previous event", act: () => list.move(-1) },
    { keys: "x", about: "The event as it is stored", act: () => raw(focused()) },
    { keys: "t", about: "Events by step or by time", act: () => arrange(!byStep) },
  ]);

  const focused = () => {
    const row = rows[list.at()];
    return row && "event" in row ? row.event : events[0];
  };
  /** @param {boolean} steps */
  const arrange = (steps) => {
    byStep = steps;
    change({ by: steps ? null : "time" });
    paint();
  };
  /** @type {Row[]} */
  let rows = [];

  const paint = () => {
    const shown = events.filter((event) => (at === null || event.seq <= at) && (!step || belongs(event, step)));
    rows = byStep ? grouped(shown) : shown.map((event) => ({ event }));
    note.textContent = `${shown.length.toLocaleString()} ${events.length < wanted ? `of ${wanted.toLocaleString()} ` : ""}events`;
    fill(order, orderButton("By step", true), orderButton("By time", false));
    fill(chosen, step && h("span", { class: "chip filter-chip" }, h("span", { class: "faint" }, "step"), step, h("button", { type: "button", class: "quiet remove", "aria-label": "Show all steps", on: { click: () => change({ step: null }) } }, icon("close"))));
    if (!list.element.isConnected) fill(body, list.element);
    list.set(rows);
  };
  /** @param {string} title @param {boolean} steps */
  const orderButton = (title, steps) => h("button", { type: "button", class: "small", "aria-pressed": String(byStep === steps), on: { click: () => arrange(steps) } }, title);

  const read = async () => {
    if (reading || stopped || events.length >= Math.min(wanted, allowed)) return;
    reading = true;
    try {
      /** @type {Events} */
      const page = await getExact(withQuery(`${context.path}/events`, { after: events.at(-1)?.seq ?? 0, limit: PAGE }));
      if (stopped) return;
      events = [...events, ...page.events];
      wanted = Math.max(wanted, events.at(-1)?.seq ?? 0);
      paint();
      reading = false;
      if (page.events.length) void read();
    } catch (error) {
      if (!events.length) fill(body, refused(error, () => void read()));
    } finally {
      reading = false;
    }
  };

  return {
    element: h("section", { class: "events" }, h("header", { class: "ev-head" }, order, chosen, note, h("span", { class: "grow" }), h("span", { class: "faint small" }, h("kbd", null, "x"), " shows an event as it is stored")), body),
    show(run, past) {
      wanted = Math.max(wanted, run.as_of_seq);
      step = currentVisit().url.searchParams.get("step") ?? "";
      at = past;
      if (events.length) paint();
      void read();
    },
    stop() {
      stopped = true;
      list.stop();
      unbind();
    },
  };
}

/** The address with other words, without another step in the history. @param {{ [name: string]: string | null }} changes */
function change(changes) {
  const { url } = currentVisit();
  for (const [name, value] of Object.entries(changes)) {
    if (value === null) url.searchParams.delete(name);
    else url.searchParams.set(name, value);
  }
  navigate(url.pathname + url.search, { replace: true });
}

/** A step, its items, rounds, probes and undos. @param {RunEvent} event @param {string} step */
function belongs(event, step) {
  return event.step_id === step || (event.step_id?.startsWith(`${step}.`) ?? false);
}

/** @param {Row} row */
function keyOf(row) {
  return "event" in row ? String(row.event.seq) : `step ${row.step}`;
}

/** Steps in the order of their first event; what is about the whole run comes first. @param {RunEvent[]} events @returns {Row[]} */
function grouped(events) {
  /** @type {Map<string, RunEvent[]>} */
  const groups = new Map();
  for (const event of events) {
    const name = event.step_id?.replace(/\.(probe|undo)$/, "") ?? "";
    const group = groups.get(name);
    if (group) group.push(event);
    else groups.set(name, [event]);
  }
  return [...groups].flatMap(([step, own]) => [{ step, count: own.length, fresh: own }, ...own.map((event) => ({ event }))]);
}

/** @param {{ step: string, count: number }} row */
function drawStep({ step, count }) {
  return h("li", { class: "ev-step" }, h("h3", null, step ? h("code", null, step) : "The run"), h("span", { class: "faint small" }, `${count} ${count === 1 ? "event" : "events"}`));
}

/** @param {RunEvent} event */
function drawEvent(event) {
  const row = h("li", { class: "ev-row" },
    h("button", { type: "button", class: "row-link ev-open", "aria-label": `Event ${event.seq}, ${event.kind}`, on: { click: () => raw(event) } },
      h("span", { class: "num faint ev-seq" }, event.seq),
      h("time", { class: "ev-at", datetime: event.at, title: absolute(event.at) }, timeOf(event.at)),
      h("code", { class: "ev-kind cut" }, event.kind),
      h("span", { class: "ev-change" }, event.to_state ? [event.from_state && [small(event.from_state), icon("right")], small(event.to_state)] : h("span", { class: "faint cut" }, gist(event))),
      h("span", { class: "faint ev-attempt" }, event.attempt ? `attempt ${event.attempt}` : ""),
      h("span", { class: "ev-actor cut" }, icon(event.actor.type === "worker" ? "workers" : event.actor.type === "user" ? "person" : "contract"), event.actor.id || event.actor.type)),
    h("span", { class: "ev-evidence" }, event.evidence?.length ? evidenceIcons(event) : null));
  return row;
}

/** @param {RunEvent} event */
function evidenceIcons(event) {
  return h("button", { type: "button", class: "quiet small", "aria-label": `Evidence of event ${event.seq}`, on: { click: () => openDialog({ title: `Evidence of event ${event.seq}`, body: evidenceLinks(event.evidence) }) } }, icon("link"), String(event.evidence.length));
}

/** @param {string} state */
function small(state) {
  const look = lookOf(state);
  return h("span", { class: `ev-state tone-${look.tone}` }, icon(look.icon), look.word);
}

/** Words of the payload that say the most, as they stand there. @param {RunEvent} event */
function gist(event) {
  const payload = event.payload;
  if (payload === null || typeof payload !== "object" || Array.isArray(payload) || payload instanceof Written) return "";
  const block = /** @type {any} */ (payload).block;
  const failure = /** @type {any} */ (payload).failure;
  const told = block?.message ?? failure?.message ?? payload.reason ?? payload.why ?? payload.owner ?? payload.message ?? payload.name ?? payload.by ?? "";
  return typeof told === "string" ? told : "";
}

/** @param {string} instant */
function timeOf(instant) {
  const date = new Date(instant);
  const two = (/** @type {number} */ number) => String(number).padStart(2, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

/** @param {RunEvent | undefined} event */
function raw(event) {
  if (!event) return;
  const text = indented(write(event));
  openDialog({
    title: `Event ${event.seq}: ${event.kind}`,
    wide: true,
    name: "raw",
    body: h("pre", { class: "raw", tabindex: "0" }, text),
    actions: [h("button", { type: "button", on: { click: () => void copyText(text, `Event ${event.seq}`) } }, icon("copy"), "Copy")],
  });
}
