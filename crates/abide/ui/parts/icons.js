// Small drawings, each a shape of its own so that no meaning hangs on colour.

import { s } from "../lib/dom.js";

/** Strokes on a field of 16 by 16; a leading `*` fills the shape. @type {{ [name: string]: string[] }} */
const SHAPES = {
  // States.
  queued: ["M3 5h10", "M3 8h10", "M3 11h6"],
  running: ["*M5.5 3.6v8.8L12.6 8z"],
  tool: ["M9.8 3.2a3 3 0 0 0-3.9 3.9L2.9 10.1a1.5 1.5 0 0 0 2.1 2.1l3-3a3 3 0 0 0 3.9-3.9L10 7.2 8 5.2z"],
  key: ["M6.2 12.4a2.6 2.6 0 1 1 0-5.2 2.6 2.6 0 0 1 0 5.2z", "M8.2 8 13 3.2", "M11 5.2l1.8 1.8"],
  person: ["M8 8a2.6 2.6 0 1 0 0-5.2A2.6 2.6 0 0 0 8 8z", "M3.2 13.4c.6-2.4 2.5-3.6 4.8-3.6s4.2 1.2 4.8 3.6"],
  child: ["M4 3v6a2 2 0 0 0 2 2h6", "M9.6 8.4 12.2 11l-2.6 2.6"],
  timer: ["M8 13.6a5.2 5.2 0 1 0 0-10.4 5.2 5.2 0 0 0 0 10.4z", "M8 5.6v3l2 1.2", "M6.4 1.6h3.2"],
  hand: ["M8 2v7", "M8 12.6v.8", "M2.8 8a5.2 5.2 0 1 0 10.4 0"],
  operator: ["M8 1.8 14.4 13H1.6z", "M8 6v3.4", "M8 11.2v.4"],
  retry: ["M12.8 8a4.8 4.8 0 1 1-1.5-3.5", "M12.9 2.2v2.6h-2.6"],
  stalled: ["M8 13.6A5.6 5.6 0 1 0 8 2.4a5.6 5.6 0 0 0 0 11.2z", "M4.2 4.2l7.6 7.6"],
  paused: ["M5.6 3.6v8.8", "M10.4 3.6v8.8"],
  undo: ["M3 6.6h6.6a3.2 3.2 0 0 1 0 6.4H6", "M5.6 4 3 6.6l2.6 2.6"],
  stopping: ["M8 13.6A5.6 5.6 0 1 0 8 2.4a5.6 5.6 0 0 0 0 11.2z", "*M6 6h4v4H6z"],
  done: ["M3 8.6l3.2 3.2L13 4.6"],
  warned: ["M2.6 9l2.8 2.8L9.6 6.4", "M13 4v4.6", "M13 11.2v.6"],
  failed: ["M4 4l8 8", "M12 4l-8 8"],
  canceled: ["M3.4 8h9.2"],
  pending: ["M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6z"],
  // Places and deeds.
  runs: ["M3 4h10", "M3 8h10", "M3 12h10", "M1.4 4h.2"],
  inbox: ["M2.4 9.4V12a1.4 1.4 0 0 0 1.4 1.4h8.4a1.4 1.4 0 0 0 1.4-1.4V9.4L11.4 3H4.6z", "M2.4 9.4h3.2l1 1.8h2.8l1-1.8h3.2"],
  workflows: ["M3 2.8h4v3H3z", "M9 10.2h4v3H9z", "M5 5.8v3.4a2.4 2.4 0 0 0 2.4 2.4H9"],
  workers: ["M2.6 3.4h10.8v3.4H2.6z", "M2.6 9.2h10.8v3.4H2.6z", "M5 5.1h.1", "M5 10.9h.1"],
  insights: ["M3 13V8.6", "M6.4 13V4", "M9.8 13V6.8", "M13.2 13V2.8"],
  contract: ["M8 4.4a1.8 1.8 0 1 0 0-3.6 1.8 1.8 0 0 0 0 3.6z", "M3.4 14a1.8 1.8 0 1 0 0-3.6 1.8 1.8 0 0 0 0 3.6z", "M12.6 14a1.8 1.8 0 1 0 0-3.6 1.8 1.8 0 0 0 0 3.6z", "M7.2 4.2 4.2 10.6", "M8.8 4.2l3 6.4", "M5.2 12.2h5.6"],
  search: ["M7 11.4A4.4 4.4 0 1 0 7 2.6a4.4 4.4 0 0 0 0 8.8z", "M10.2 10.2l3.4 3.4"],
  close: ["M4.4 4.4l7.2 7.2", "M11.6 4.4l-7.2 7.2"],
  copy: ["M5.6 5.6h7v7h-7z", "M10.4 5.6V3.4h-7v7h2.2"],
  link: ["M6.8 9.2a2.4 2.4 0 0 0 3.5 0l2.1-2.1a2.5 2.5 0 0 0-3.5-3.5l-.8.8", "M9.2 6.8a2.4 2.4 0 0 0-3.5 0L3.6 8.9a2.5 2.5 0 0 0 3.5 3.5l.8-.8"],
  down: ["M4 6.2 8 10.2l4-4"],
  right: ["M6 4l4 4-4 4"],
  left: ["M10 4 6 8l4 4"],
  more: ["M3.4 8h.1", "M8 8h.1", "M12.6 8h.1"],
  plus: ["M8 3.4v9.2", "M3.4 8h9.2"],
  download: ["M8 2.6v7.6", "M4.8 7.2 8 10.4l3.2-3.2", "M2.8 13.2h10.4"],
  heart: ["M1.6 8.4h3l1.6-4 2.8 7.6 1.8-3.6h3.6"],
  group: ["M2.6 4.2h10.8", "M4.6 8h6.8", "M6.6 11.8h2.8"],
};

/**
 * A drawing that says nothing to a screen reader: the word beside it does.
 * @param {string} name
 * @param {string} [extra] further classes
 */
export function icon(name, extra = "") {
  const strokes = (SHAPES[name] ?? SHAPES.pending ?? []).map((path) =>
    path.startsWith("*") ? s("path", { d: path.slice(1), class: "filled" }) : s("path", { d: path }));
  return s("svg", { viewBox: "0 0 16 16", class: `icon ${extra}`.trim(), "aria-hidden": "true", focusable: "false" }, strokes);
}
