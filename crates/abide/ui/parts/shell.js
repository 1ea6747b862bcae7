// The frame around every screen: where one can go, how fresh it is, who looks.

/** @import { LiveState, Session } from "../lib/types.js" */

import { fill, h } from "../lib/dom.js";
import { get, post } from "../lib/api.js";
import { onLiveState, onRecords, onResync } from "../lib/live.js";
import { clock, onTick, span } from "../lib/time.js";
import { icon } from "./icons.js";
import { toastRegion } from "./toast.js";

const PLACES = /** @type {const} */ ([
  ["runs", "/", "Runs"],
  ["inbox", "/inbox", "Inbox"],
  ["workflows", "/workflows", "Workflows"],
  ["workers", "/workers", "Workers"],
  ["insights", "/insights", "Insights"],
  ["contract", "/contract", "Contract"],
]);

/** Builds the frame, once. */
export function makeShell() {
  const badge = h("span", { class: "badge", hidden: true });
  const links = PLACES.map(([name, href, title]) =>
    h("a", { href, class: "place", data: { place: name } }, icon(name), h("span", null, title), name === "inbox" ? badge : null));
  const who = h("div", { class: "who" });
  const chip = liveChip();
  const search = h("button", { type: "button", class: "search-button", "aria-label": "Search or do, Ctrl K" }, icon("search"), h("span", null, "Search"), h("kbd", null, "Ctrl K"));
  const content = h("div", { class: "content" });
  const element = h("div", { class: "shell" },
    h("a", { class: "skip", href: "#main", on: { click: skip } }, "Skip to content"),
    h("header", { class: "side" },
      h("a", { class: "brand", href: "/" }, mark(), h("span", null, "Abide")),
      search,
      h("nav", { "aria-label": "Screens" }, links),
      h("div", { class: "side-foot" }, chip, who)),
    content,
    toastRegion());
  countInbox(badge);
  return {
    element,
    /** @param {string} name */
    select(name) {
      const of = name === "run" ? "runs" : name;
      for (const link of links) {
        if (link.dataset.place === of) link.setAttribute("aria-current", "page");
        else link.removeAttribute("aria-current");
      }
    },
    /** An empty place for a screen. @param {string} name */
    freshPlace(name) {
      const place = h("main", { id: "main", class: `screen screen-${name}`, tabindex: "-1" });
      fill(content, place);
      return place;
    },
    /** @param {Session} session */
    setSession(session) {
      fill(who, h("span", { class: "who-namespace", title: "Namespace" }, session.namespace),
        h("span", { class: "faint" }, session.uses_keys ? `${session.principal} · ${session.role}` : "no keys, everybody is admin"),
        session.uses_keys && h("button", { class: "quiet small", type: "button", on: { click: () => void logOut() } }, "Log out"));
    },
    /** @param {() => void} open */
    onPalette(open) {
      search.addEventListener("click", open);
    },
  };
}

async function logOut() {
  await post("/v1/session", {}, { method: "DELETE" }).catch(() => {});
  location.assign("/");
}

function mark() {
  return h("img", { src: "/ui/icon.svg", alt: "", width: "24", height: "24" });
}

/** @param {Event} event */
function skip(event) {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

/** Live, reconnecting, or stale since. */
function liveChip() {
  const chip = h("div", { class: "live", role: "status" });
  /** @type {LiveState} */
  let live = { state: "reconnecting", since: Date.now() };
  const show = () => {
    const text = live.state === "live" ? "Live" : live.state === "reconnecting" ? "Reconnecting" : `Stale since ${clock(live.since)}`;
    if (chip.dataset.live !== live.state || live.state === "stale") {
      chip.dataset.live = live.state;
      const shown = chip.querySelector("span")?.textContent;
      if (shown !== text) fill(chip, h("i", { class: "dot", "aria-hidden": "true" }), h("span", null, text));
      chip.title = live.state === "live" ? "Changes appear as they happen" : `No news from the server for ${span(Date.now() - live.since)}`;
    }
  };
  onLiveState((next) => {
    live = next;
    show();
  });
  onTick(show);
  return chip;
}

/** How many decisions wait; read again when a run enters or leaves that state. @param {HTMLElement} badge */
function countInbox(badge) {
  let timer = 0;
  const read = async () => {
    /** @type {{ counts: { [state: string]: number } }} */
    const { counts } = await get("/v1/runs/counts?by=state");
    const waiting = counts.waiting_on_approval ?? 0;
    badge.hidden = waiting === 0;
    badge.textContent = waiting > 999 ? "999+" : String(waiting);
    badge.setAttribute("aria-label", `${waiting} wait for a decision`);
  };
  const soon = () => {
    clearTimeout(timer);
    timer = window.setTimeout(() => void read().catch(() => {}), 400);
  };
  /** @type {Set<string>} */
  const waiting = new Set();
  onRecords((runs) => {
    for (const run of runs) {
      const waits = run.state === "waiting_on_approval";
      if (waits !== waiting.has(run.run_id)) soon();
      if (waits) waiting.add(run.run_id);
      else waiting.delete(run.run_id);
    }
  });
  onResync(soon);
  soon();
}
