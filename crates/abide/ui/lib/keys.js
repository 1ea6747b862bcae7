// Keys: what is bound now, sequences that begin with g, and the overlay that lists them.

import { h } from "./dom.js";
import { openDialog } from "../parts/dialog.js";

/**
 * @typedef {object} Binding
 * @property {string} keys as it is shown: `j`, `g i`, `ctrl k`
 * @property {string} about
 * @property {(event: KeyboardEvent) => void | false} act `false` leaves the key to the browser
 */

/** @type {Binding[][]} */
const scopes = [];
let pending = "";
let pendingTimer = 0;

/**
 * Binds keys until the function that comes back is called. What was bound last wins.
 * @param {Binding[]} bindings
 * @returns {() => void}
 */
export function bind(bindings) {
  scopes.push(bindings);
  return () => {
    const at = scopes.indexOf(bindings);
    if (at >= 0) scopes.splice(at, 1);
  };
}

/** Listens to the keyboard, once for the page. */
export function startKeys() {
  document.addEventListener("keydown", pressed);
  bind([{ keys: "?", about: "Show these keys", act: showKeys }]);
}

/** @param {KeyboardEvent} event */
function pressed(event) {
  if (event.defaultPrevented || event.isComposing) return;
  const name = nameOf(event);
  const typing = isTyping(event.target);
  // In a field only what carries a modifier is ours; in a dialog nothing but its own keys.
  if ((typing && !name.startsWith("ctrl ")) || event.altKey) return;
  if (document.querySelector("dialog[open]") && !name.startsWith("ctrl ")) return;
  const sequence = pending ? `${pending} ${name}` : name;
  setPending("");
  const found = find(sequence) ?? find(name);
  if (found) {
    if (found.act(event) !== false) event.preventDefault();
  } else if (begins(name)) {
    setPending(name);
    event.preventDefault();
  }
}

/** @param {string} name */
function setPending(name) {
  pending = name;
  clearTimeout(pendingTimer);
  if (name) pendingTimer = window.setTimeout(() => setPending(""), 1_500);
}

/** @param {string} keys */
function find(keys) {
  for (let at = scopes.length - 1; at >= 0; at -= 1) {
    const found = scopes[at]?.find((binding) => binding.keys === keys);
    if (found) return found;
  }
  return undefined;
}

/** @param {string} name */
function begins(name) {
  return scopes.some((scope) => scope.some((binding) => binding.keys.startsWith(`${name} `) && name !== "ctrl"));
}

/** @param {KeyboardEvent} event */
function nameOf(event) {
  const key = event.key.length === 1 ? event.key : event.key.toLowerCase();
  return event.ctrlKey || event.metaKey ? `ctrl ${key.toLowerCase()}` : key;
}

/** @param {EventTarget | null} target */
function isTyping(target) {
  if (!(target instanceof HTMLElement)) return false;
  if (target instanceof HTMLInputElement) return !["checkbox", "radio", "range", "button", "submit"].includes(target.type);
  return target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement || target.isContentEditable;
}

/** The overlay behind `?`. */
export function showKeys() {
  const seen = new Set();
  const rows = scopes.flat().reverse().filter((binding) => binding.about && !seen.has(binding.keys) && seen.add(binding.keys));
  const list = rows.reverse().map((binding) =>
    h("div", { class: "key-row" }, h("dt", null, binding.keys.split(" ").map((key) => h("kbd", null, shown(key)))), h("dd", null, binding.about)));
  openDialog({ title: "Keys", body: h("dl", { class: "keys" }, list) });
}

/** @param {string} key */
function shown(key) {
  const names = /** @type {{ [key: string]: string }} */ ({ ctrl: "Ctrl", enter: "Enter", escape: "Esc", arrowleft: "←", arrowright: "→", k: "k" });
  return names[key] ?? key;
}
