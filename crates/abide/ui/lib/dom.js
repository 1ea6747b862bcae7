// Elements, made of text nodes and known attributes only: nothing that comes from a run is ever read as markup.

/** @import { Child } from "./types.js" */

/**
 * @typedef {object} Special
 * @property {{ [event: string]: (event: any) => void }} [on] listeners
 * @property {{ [name: string]: string | number | undefined }} [data] data-* attributes
 * @property {{ [name: string]: string }} [style] properties, set one by one because the page allows no inline styles
 * @typedef {Special & { [name: string]: any }} Props
 */

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element. `false`, `null` and `undefined` attributes are left out, `true` ones are empty.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Props | null} [props]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  if (props) dress(element, props);
  append(element, children);
  return element;
}

/**
 * The same for drawings.
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Props | null} [props]
 * @param {...Child} children
 * @returns {SVGElementTagNameMap[Tag]}
 */
export function s(tag, props, ...children) {
  const element = document.createElementNS(SVG, tag);
  if (props) dress(element, props);
  append(element, children);
  return element;
}

/**
 * Puts children in the place of what an element holds.
 * @template {Element} E
 * @param {E} element
 * @param {...Child} children
 * @returns {E}
 */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/**
 * @param {Element} element
 * @param {Child[]} children
 */
function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/**
 * @param {HTMLElement | SVGElement} element
 * @param {Props} props
 */
function dress(element, props) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, /** @type {any} */ (listener));
    else if (name === "data") for (const [key, text] of Object.entries(value)) text !== undefined && (element.dataset[key] = String(text));
    else if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, String(text));
    else if (name === "href") link(element, String(value));
    else if (name.startsWith("on")) throw new Error(`${name}: listeners go into "on"`);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
}

/**
 * Only addresses of this server, and web addresses that then learn nothing of us. Anything else stays text.
 * @param {Element} element
 * @param {string} address
 */
function link(element, address) {
  const safe = safeAddress(address);
  if (!safe) return;
  element.setAttribute("href", address);
  if (safe.origin !== location.origin) {
    element.setAttribute("rel", "noopener noreferrer");
    element.setAttribute("target", "_blank");
  }
}

/**
 * The address when it may be followed.
 * @param {string} address
 * @returns {URL | null}
 */
export function safeAddress(address) {
  const url = URL.canParse(address, location.href) ? new URL(address, location.href) : null;
  return url && (url.protocol === "http:" || url.protocol === "https:") ? url : null;
}

/**
 * Something that must be there.
 * @template T
 * @param {T | null | undefined} value
 * @param {string} what
 * @returns {T}
 */
export function must(value, what) {
  if (value === null || value === undefined) throw new Error(`${what} is missing`);
  return value;
}

let ids = 0;

/** An id that no other element has. @param {string} name */
export function freshId(name) {
  ids += 1;
  return `${name}-${ids}`;
}
