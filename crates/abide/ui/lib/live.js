// One stream for the whole browser: the tab that holds the lock listens to the server and tells the others.
//
// A tab that closes gives the lock back and the next one takes over; what may have been missed in between is read again.
// Browsers do not put a tab to sleep while it holds a lock, so that a leader in the background goes on.

/** @import { LiveState, Run } from "./types.js" */

/** Without an answer for so long the screens say since when they are stale. */
const STALE_AFTER = 10_000;
/** The server speaks at least this often; silence beyond it means that the connection is dead. */
const SILENCE = 40_000;
const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 15_000;

/**
 * @typedef {{ type: "run", run: Run } | { type: "resync" } | { type: "hello" } | { type: "state", live: LiveState }} Message
 */

/** @type {Set<(runs: Run[]) => void>} */
const recordListeners = new Set();
/** @type {Set<() => void>} */
const resyncListeners = new Set();
/** @type {Set<(live: LiveState) => void>} */
const stateListeners = new Set();

/** @type {LiveState} */
let live = { state: "reconnecting", since: Date.now() };
/** @type {BroadcastChannel | null} */
let channel = null;
/** @type {EventSource | null} */
let source = null;
let leading = false;
let pause = FIRST_PAUSE;
let heardAt = 0;

/** Records that changed, the newest of each run, at most once a frame. @param {(runs: Run[]) => void} tell @returns {() => void} */
export function onRecords(tell) {
  recordListeners.add(tell);
  return () => recordListeners.delete(tell);
}

/** Something may have been missed. @param {() => void} tell @returns {() => void} */
export function onResync(tell) {
  resyncListeners.add(tell);
  return () => resyncListeners.delete(tell);
}

/** How fresh the screens are, now and on every change. @param {(live: LiveState) => void} tell @returns {() => void} */
export function onLiveState(tell) {
  stateListeners.add(tell);
  tell(live);
  return () => stateListeners.delete(tell);
}

/** Joins the browser's one stream. @param {string} namespace so that two sessions never mix */
export function startLive(namespace) {
  if ("BroadcastChannel" in window) {
    channel = new BroadcastChannel(`abide-live ${namespace}`);
    channel.addEventListener("message", (event) => receive(event.data));
    channel.postMessage({ type: "hello" });
  }
  if (navigator.locks && channel) void waitForTurn(`abide-live ${namespace}`);
  else lead();
  setInterval(watchSilence, 5_000);
}

/** @param {string} name */
async function waitForTurn(name) {
  const stop = new AbortController();
  // A page that rests in the history must not hold what others wait for.
  addEventListener("pagehide", () => {
    stop.abort();
    follow();
  }, { once: true });
  addEventListener("pageshow", (event) => {
    if (event.persisted) {
      void waitForTurn(name);
      resync();
    }
  }, { once: true });
  try {
    await navigator.locks.request(name, { signal: stop.signal }, () => {
      lead();
      return new Promise((resolve) => stop.signal.addEventListener("abort", () => resolve(undefined), { once: true }));
    });
  } catch {
    // Asked to stop while waiting.
  }
}

function lead() {
  leading = true;
  connect();
}

function follow() {
  leading = false;
  source?.close();
  source = null;
}

function connect() {
  source?.close();
  const stream = new EventSource("/v1/stream");
  source = stream;
  let fresh = true;
  stream.addEventListener("open", () => {
    heard();
    pause = FIRST_PAUSE;
    tellState({ state: "live", since: Date.now() });
    // A connection that the browser resumed goes on where it was; a new one begins now.
    if (fresh) tellAll({ type: "resync" });
    fresh = false;
  });
  stream.addEventListener("run", (event) => {
    heard();
    tellAll({ type: "run", run: JSON.parse(event.data) });
  });
  stream.addEventListener("here", heard);
  stream.addEventListener("gap", () => reconnect(0));
  stream.addEventListener("error", () => {
    if (source !== stream) return;
    tellState({ state: "reconnecting", since: live.state === "live" ? Date.now() : live.since });
    if (stream.readyState === EventSource.CLOSED) reconnect(pause);
  });
}

/** @param {number} wait */
function reconnect(wait) {
  source?.close();
  source = null;
  pause = Math.min(LONGEST_PAUSE, pause * 2);
  window.setTimeout(() => leading && !source && connect(), wait);
}

function heard() {
  heardAt = Date.now();
}

function watchSilence() {
  if (leading && live.state === "live" && Date.now() - heardAt > SILENCE) {
    tellState({ state: "reconnecting", since: heardAt });
    reconnect(0);
  }
  if (live.state === "reconnecting" && Date.now() - live.since > STALE_AFTER) setState({ state: "stale", since: live.since });
}

/** @param {Message} message */
function tellAll(message) {
  channel?.postMessage(message);
  receive(message);
}

/** @param {LiveState} next */
function tellState(next) {
  // What is stale stays stale until it is live again.
  if (live.state === "stale" && next.state === "reconnecting") return;
  channel?.postMessage({ type: "state", live: next });
  setState(next);
}

/** @param {LiveState} next */
function setState(next) {
  live = next;
  for (const tell of stateListeners) tell(live);
}

/** @param {Message} message */
function receive(message) {
  if (message.type === "run") keep(message.run);
  else if (message.type === "resync") resync();
  else if (message.type === "state") setState(message.live);
  else if (message.type === "hello" && leading) channel?.postMessage({ type: "state", live });
}

/** @type {Map<string, Run>} */
const waiting = new Map();
let scheduled = false;

/** @param {Run} run */
function keep(run) {
  const held = waiting.get(run.run_id);
  if (!held || held.as_of_seq <= run.as_of_seq) waiting.set(run.run_id, run);
  if (scheduled) return;
  scheduled = true;
  // A hidden tab has no frames; it need not be in a hurry either.
  if (document.hidden) window.setTimeout(flush, 200);
  else requestAnimationFrame(flush);
}

function flush() {
  scheduled = false;
  const runs = [...waiting.values()];
  waiting.clear();
  for (const tell of recordListeners) tell(runs);
}

let resyncTimer = 0;

/** Many reasons to read again within a moment are one. */
export function resync() {
  clearTimeout(resyncTimer);
  resyncTimer = window.setTimeout(() => resyncListeners.forEach((tell) => tell()), 50);
}
