// Times: relative to the server's clock, ticking from one timer, absolute on hover.

let offset = 0;
let doubt = Infinity;

/**
 * Learns how far the server's clock is from ours. The header has whole seconds, so the answer that came fastest is kept,
 * and less than two seconds is taken for none.
 * @param {string | null} header
 * @param {number} asked
 * @param {number} answered
 */
export function noteServerTime(header, asked, answered) {
  const told = header ? Date.parse(header) : NaN;
  if (Number.isNaN(told) || answered - asked > doubt) return;
  doubt = answered - asked;
  const difference = told + 500 - (asked + answered) / 2;
  offset = Math.abs(difference) < 2_000 ? 0 : difference;
}

/** The server's time, in milliseconds. */
export function now() {
  return Date.now() + offset;
}

const UNITS = /** @type {const} */ ([
  ["d", 86_400_000],
  ["h", 3_600_000],
  ["m", 60_000],
  ["s", 1_000],
]);

/**
 * A length of time in at most two units: `3d 4h`, `12m`, `45s`.
 * @param {number} milliseconds
 */
export function span(milliseconds) {
  const length = Math.max(0, milliseconds);
  if (length < 1_000) return length > 0 && length < 950 ? `${Math.round(length)}ms` : length === 0 ? "0s" : "1s";
  const first = UNITS.findIndex(([, size]) => length >= size);
  const [unit, size] = UNITS[first] ?? UNITS[3];
  const whole = Math.floor(length / size);
  const next = UNITS[first + 1];
  if (!next || whole >= 10 || unit === "m") return `${whole}${unit}`;
  const rest = Math.floor((length - whole * size) / next[1]);
  return rest ? `${whole}${unit} ${rest}${next[0]}` : `${whole}${unit}`;
}

/**
 * How long ago, in words.
 * @param {number} at
 */
function since(at) {
  const age = now() - at;
  return age < 1_000 ? "just now" : `${span(age)} ago`;
}

/** @param {number} at */
function until(at) {
  const left = at - now();
  return left > 0 ? `in ${span(left)}` : left > -1_000 ? "now" : `${span(-left)} overdue`;
}

/** @param {number} at */
function age(at) {
  const length = now() - at;
  return length < 1_000 ? "0s" : span(length);
}

const KINDS = { ago: since, until, age };

/** @typedef {keyof typeof KINDS} Kind */

/**
 * The instant in the reader's own zone, in full.
 * @param {string} instant
 */
export function absolute(instant) {
  const date = new Date(instant);
  if (Number.isNaN(date.getTime())) return instant;
  return date.toLocaleString(undefined, { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, timeZoneName: "short" });
}

/** Hours, minutes, seconds. @param {string | number} instant */
export function clock(instant) {
  return new Date(instant).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
}

/**
 * An instant that ticks: `ago` (3m ago), `until` (in 3m, 3m overdue), `age` (3m).
 * @param {string | null | undefined} instant
 * @param {Kind} [kind]
 * @returns {HTMLElement}
 */
export function when(instant, kind = "ago") {
  const element = document.createElement("time");
  setWhen(element, instant, kind);
  return element;
}

/**
 * Moves an element that `when` made to another instant.
 * @param {HTMLElement} element
 * @param {string | null | undefined} instant
 * @param {Kind} [kind]
 */
export function setWhen(element, instant, kind = "ago") {
  if (!instant) {
    delete element.dataset.tick;
    element.removeAttribute("datetime");
    element.removeAttribute("title");
    element.textContent = "–";
    return;
  }
  if (element.getAttribute("datetime") !== instant || element.dataset.tick !== kind) {
    element.dataset.tick = kind;
    element.setAttribute("datetime", instant);
    element.title = absolute(instant);
  }
  tick(element);
}

/** @param {HTMLElement} element */
function tick(element) {
  const at = Date.parse(element.getAttribute("datetime") ?? "");
  const text = KINDS[/** @type {Kind} */ (element.dataset.tick)](at);
  // Writing the same text would still cost the browser a layout.
  if (element.textContent !== text) element.textContent = text;
}

/** @type {Set<() => void>} */
const everySecond = new Set();

/**
 * Something that is done every second while the page is seen, and stops with the function that comes back.
 * @param {() => void} act
 * @returns {() => void}
 */
export function onTick(act) {
  everySecond.add(act);
  return () => everySecond.delete(act);
}

/** Starts the one timer of the page. */
export function startTicking() {
  const all = () => {
    if (document.hidden) return;
    for (const element of document.querySelectorAll("time[data-tick]")) tick(/** @type {HTMLElement} */ (element));
    for (const act of everySecond) act();
  };
  setInterval(all, 1_000);
  document.addEventListener("visibilitychange", all);
}
