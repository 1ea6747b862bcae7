// A list of very many rows of one height, of which only those in sight exist.

import { h } from "../lib/dom.js";

/**
 * @template T
 * @typedef {object} VirtualList
 * @property {HTMLElement} element
 * @property {(items: T[]) => void} set shows these items
 * @property {() => void} repaint makes the rows in sight again
 * @property {(step: number) => void} move moves the focus by rows
 * @property {(index: number) => void} reveal scrolls until a row is in sight
 * @property {() => number} at which row has the focus; -1 for none
 * @property {() => void} stop
 */

/** Rows that exist beyond what is in sight, so that scrolling has something to show. */
const SPARE = 8;

/**
 * @template T
 * @param {object} options
 * @param {string} options.label
 * @param {() => number} options.rowHeight asked again when the window changes
 * @param {(item: T, index: number) => HTMLElement} options.render a row; what is to be focused in it has the class `row-link`
 * @param {(item: T) => string} options.key the same key keeps the row's element while its item is the same object
 * @param {HTMLElement | null} [options.scroller] what scrolls; without it the page does
 * @param {(() => void) | null} [options.onEnd] the last rows are in sight
 * @returns {VirtualList<T>}
 */
export function virtualList({ label, rowHeight, render, key, scroller = null, onEnd = null }) {
  const element = h("ol", { class: "vlist", "aria-label": label });
  /** @type {T[]} */
  let items = [];
  /** @type {Map<string, { item: T, index: number, row: HTMLElement }>} */
  let shown = new Map();
  let height = rowHeight();
  let frame = 0;
  let focused = -1;
  let again = false;

  const paint = () => {
    frame = 0;
    const { first, last } = range();
    /** @type {typeof shown} */
    const next = new Map();
    for (let index = first; index < last; index += 1) {
      const item = /** @type {T} */ (items[index]);
      const name = key(item);
      const held = shown.get(name);
      const kept = held && held.item === item && !again;
      const row = kept ? held.row : place(render(item, index), name, held);
      if (!kept || held.index !== index) position(row, index);
      next.set(name, { item, index, row });
    }
    for (const [name, { row }] of shown) if (next.get(name)?.row !== row && row.isConnected && !next.has(name)) row.remove();
    shown = next;
    again = false;
    if (onEnd && items.length && last >= items.length - SPARE) onEnd();
  };

  /** @param {HTMLElement} row @param {string} name @param {{ row: HTMLElement } | undefined} held */
  const place = (row, name, held) => {
    row.dataset.key = name;
    if (!held) {
      element.append(row);
      return row;
    }
    // The focus stays on the row although its content changed.
    const had = held.row.contains(document.activeElement);
    held.row.replaceWith(row);
    if (had) /** @type {HTMLElement | null} */ (row.querySelector(".row-link"))?.focus({ preventScroll: true });
    return row;
  };

  /** @param {HTMLElement} row @param {number} index */
  const position = (row, index) => {
    row.style.transform = `translateY(${index * height}px)`;
    row.setAttribute("aria-posinset", String(index + 1));
    row.setAttribute("aria-setsize", String(items.length));
  };

  const range = () => {
    const box = element.getBoundingClientRect();
    const top = scroller ? scroller.getBoundingClientRect().top : 0;
    const size = scroller ? scroller.clientHeight : innerHeight;
    const from = Math.floor((top - box.top) / height) - SPARE;
    const first = Math.max(0, Math.min(from, items.length));
    return { first, last: Math.min(items.length, Math.max(first, from + Math.ceil(size / height) + 2 * SPARE)) };
  };

  const later = () => {
    frame ||= requestAnimationFrame(paint);
  };
  const resized = () => {
    height = rowHeight();
    element.style.height = `${items.length * height}px`;
    shown.forEach(({ row, index }) => position(row, index));
    later();
  };
  const source = scroller ?? window;
  source.addEventListener("scroll", later, { passive: true });
  addEventListener("resize", resized);

  /** @param {number} index */
  const reveal = (index) => {
    const top = element.getBoundingClientRect().top + index * height;
    const [from, size] = scroller ? [scroller.getBoundingClientRect().top, scroller.clientHeight] : [0, innerHeight];
    const margin = Math.min(size / 4, 120);
    if (top < from + margin) (scroller ?? window).scrollBy(0, top - from - margin);
    else if (top + height > from + size - margin) (scroller ?? window).scrollBy(0, top + height - from - size + margin);
    paint();
  };

  element.addEventListener("focusin", (event) => {
    const row = event.target instanceof Element ? event.target.closest("li") : null;
    const name = row instanceof HTMLElement ? row.dataset.key : undefined;
    focused = name === undefined ? -1 : shown.get(name)?.index ?? -1;
  });

  return {
    element,
    set(next) {
      items = next;
      element.style.height = `${items.length * height}px`;
      focused = Math.min(focused, items.length - 1);
      paint();
    },
    repaint() {
      again = true;
      paint();
    },
    move(step) {
      if (!items.length) return;
      const index = Math.max(0, Math.min(items.length - 1, focused + step));
      reveal(index);
      const row = shown.get(key(/** @type {T} */ (items[index])))?.row;
      /** @type {HTMLElement | null | undefined} */ (row?.querySelector(".row-link"))?.focus({ preventScroll: true });
    },
    reveal,
    at: () => focused,
    stop() {
      cancelAnimationFrame(frame);
      source.removeEventListener("scroll", later);
      removeEventListener("resize", resized);
    },
  };
}
