// Addresses: links and the history without loading the page anew.

/** @import { Visit } from "./types.js" */

/** @type {(visit: Visit) => void} */
let arrive = () => {};

/** @param {(visit: Visit) => void} arrived told of every address, also the first */
export function startRouter(arrived) {
  arrive = arrived;
  addEventListener("popstate", () => arrive(currentVisit()));
  document.addEventListener("click", followed);
  arrive(currentVisit());
}

/** Where the reader is; the parts of the path are known to the screen. @returns {Visit} */
export function currentVisit() {
  return { url: new URL(location.href), params: {} };
}

/**
 * Goes to an address of this page.
 * @param {string} address
 * @param {{ replace?: boolean }} [options] `replace` leaves no step in the history, for what is typed or dragged
 */
export function navigate(address, options = {}) {
  const url = new URL(address, location.href);
  if (url.href === location.href) return arrive(currentVisit());
  if (options.replace) history.replaceState(null, "", url);
  else history.pushState(null, "", url);
  arrive(currentVisit());
}

/** The title of the page, from a screen that knows more than its name. @param {string} title */
export function setPageTitle(title) {
  dispatchEvent(new CustomEvent("abide:title", { detail: title }));
}

/** Paths that are the server's own and not a screen. */
const OUTSIDE = /^\/(v1|ui|links|problems|metrics|openapi\.json|login|logout|healthz|readyz)(\/|$)/;

/** @param {MouseEvent} event */
function followed(event) {
  if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const anchor = event.target instanceof Element ? event.target.closest("a[href]") : null;
  if (!(anchor instanceof HTMLAnchorElement) || anchor.target || anchor.hasAttribute("download")) return;
  const url = new URL(anchor.href);
  if (url.origin !== location.origin || OUTSIDE.test(url.pathname)) return;
  event.preventDefault();
  navigate(url.href);
}
