// A graph as the server laid it out: nodes with their state in an icon and a word, edges through the points it gave.

/** @import { Child } from "../lib/types.js" */

import { h, s } from "../lib/dom.js";
import { icon } from "./icons.js";
import { stepLook, words } from "./states.js";

/**
 * @typedef {object} GraphNode
 * @property {string} id
 * @property {string | null} title
 * @property {string} kind
 * @property {boolean} finally
 * @property {string | null} state
 * @property {number | null} instances
 * @property {{ [state: string]: number }} counts
 * @property {number} x
 * @property {number} y
 * @property {number} width
 * @property {number} height
 *
 * @typedef {{ from: string, to: string, kind: "after" | "go_to" | "finally", points: [number, number][] }} GraphEdge
 * @typedef {{ workflow_id: string, nodes: GraphNode[], edges: GraphEdge[], width: number, height: number, left_out: number }} Graph
 */

/** Around the drawing, so that strokes and arrows are not cut. */
const MARGIN = 24;

/**
 * @param {Graph} graph
 * @param {{ label?: string, link?: (node: GraphNode) => string | null, current?: string | null }} [options]
 * @returns {HTMLElement}
 */
export function graphView(graph, options = {}) {
  const width = graph.width + 2 * MARGIN + (graph.edges.some((edge) => edge.kind === "go_to") ? 16 : 0);
  const height = graph.height + 2 * MARGIN;
  const drawing = s("svg", { class: "graph", width, height, viewBox: `${-MARGIN} ${-MARGIN} ${width} ${height}`, role: "group", "aria-label": options.label ?? "Steps" },
    s("defs", null, arrow("graph-arrow"), arrow("graph-arrow-soft")),
    graph.edges.map(edgeView),
    graph.nodes.map((node) => nodeView(node, options)));
  return h("div", { class: "graph-frame", tabindex: "0", role: "region", "aria-label": options.label ?? "Steps" }, drawing,
    graph.left_out > 0 && h("p", { class: "note" }, `${graph.left_out} more steps are not drawn; the list of steps has them all.`));
}

/** @param {string} id */
function arrow(id) {
  return s("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" },
    s("path", { d: "M0 0.8 7 4 0 7.2z", class: id }));
}

/** @param {GraphEdge} edge */
function edgeView(edge) {
  const soft = edge.kind !== "after";
  return s("path", { class: `graph-edge graph-${edge.kind}`, d: edge.kind === "go_to" ? corners(edge.points) : curve(edge.points), "marker-end": `url(#graph-arrow${soft ? "-soft" : ""})` });
}

/** Straight where it can be, bent only between layers. @param {[number, number][]} points */
function curve(points) {
  const [first, ...rest] = points;
  if (!first) return "";
  let path = `M${first[0]} ${first[1]}`;
  let [x, y] = first;
  for (const [nextX, nextY] of rest) {
    const half = (y + nextY) / 2;
    path += x === nextX ? `V${nextY}` : `C${x} ${half} ${nextX} ${half} ${nextX} ${nextY}`;
    [x, y] = [nextX, nextY];
  }
  return path;
}

/** @param {[number, number][]} points */
function corners(points) {
  return points.map(([x, y], at) => `${at ? "L" : "M"}${x} ${y}`).join("");
}

/** @param {GraphNode} node @param {{ link?: (node: GraphNode) => string | null, current?: string | null }} options */
function nodeView(node, options) {
  const look = node.state ? stepLook(node.state) : null;
  const counts = Object.entries(node.counts ?? {});
  const body = h("div", { class: `graph-node ${look ? `tone-${look.tone}` : ""}`, data: { state: node.state ?? undefined, node: node.id, current: node.id === options.current ? "" : undefined }, style: { width: `${node.width}px`, height: `${node.height}px` } },
    h("span", { class: "graph-title cut", title: node.title ?? node.id }, node.title ?? node.id),
    h("span", { class: "graph-state" }, look ? [icon(look.icon), look.word] : words(node.kind)),
    counts.length > 0 && h("span", { class: "graph-counts cut" }, counts.map(([state, count]) => countView(state, count))));
  const href = options.link?.(node);
  return s("foreignObject", { x: node.x, y: node.y, width: node.width, height: node.height },
    href ? h("a", { class: "graph-link", href }, body) : body);
}

/** @param {string} state @param {number} count @returns {Child} */
function countView(state, count) {
  const look = stepLook(state);
  return h("span", { class: `graph-count tone-${look.tone}`, title: `${count} ${look.word.toLowerCase()}` }, icon(look.icon), String(count), h("span", { class: "visually-hidden" }, ` ${look.word.toLowerCase()} `));
}
