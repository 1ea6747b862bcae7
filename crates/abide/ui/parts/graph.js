// Draws a graph whose nodes and edges the server has placed.

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
 * @typedef {object} Graph
 * @property {GraphNode[]} nodes
 * @property {{ from: string, to: string, kind: string, points: [number, number][] }[]} edges
 * @property {number} width
 * @property {number} height
 * @property {number} left_out
 */

const MARGIN = 24;

/**
 * @param {Graph} graph
 * @param {{ link?: (id: string) => string, current?: string | null }} [options]
 */
export function drawGraph(graph, options = {}) {
  const [width, height] = [graph.width + 2 * MARGIN + 24, graph.height + 2 * MARGIN];
  const edges = s("svg", { class: "graph-edges", width, height, viewBox: `${-MARGIN} ${-MARGIN} ${width} ${height}`, "aria-hidden": "true" },
    s("defs", null, s("marker", { id: "arrow", viewBox: "0 0 8 8", refX: "7", refY: "4", markerWidth: "8", markerHeight: "8", orient: "auto" }, s("path", { d: "M0 0.5 7.5 4 0 7.5z", class: "arrow" }))),
    graph.edges.map((edge) => s("path", { d: curve(edge.points), class: `edge edge-${edge.kind}`, "marker-end": "url(#arrow)" })));
  const nodes = h("ol", { class: "graph-nodes", "aria-label": "Steps" }, graph.nodes.map((node) => drawNode(node, options)));
  return h("div", { class: "graph", style: { width: `${width}px`, height: `${height}px` } }, edges, nodes);
}

/** @param {GraphNode} node @param {{ link?: (id: string) => string, current?: string | null }} options */
function drawNode(node, options) {
  const look = node.state ? stepLook(node.state) : { word: words(node.kind), icon: "pending", tone: "calm" };
  const counted = Object.entries(node.counts ?? {});
  const inside = [
    h("span", { class: "node-title cut" }, node.title ?? node.id),
    h("span", { class: "node-state" }, icon(look.icon), look.word, h("span", { class: "faint cut" }, node.state ? ` · ${node.id}` : "")),
    counted.length > 0 && h("span", { class: "node-counts cut" }, counted.map(([state, count]) => `${count} ${words(state).toLowerCase()}`).join(", ")),
  ];
  const style = { left: `${node.x + MARGIN}px`, top: `${node.y + MARGIN}px`, width: `${node.width}px`, height: `${node.height}px` };
  const classes = `node tone-${look.tone}${node.state ? "" : " node-plain"}${node.id === options.current ? " node-current" : ""}`;
  return h("li", { class: classes, style, data: { node: node.id, state: node.state ?? "" }, title: counted.length ? counted.map(([state, count]) => `${count} ${words(state).toLowerCase()}`).join(", ") : null },
    options.link ? h("a", { class: "node-link", href: options.link(node.id) }, inside) : h("div", { class: "node-link" }, inside));
}

/** A line through its points with its corners rounded. @param {[number, number][] | null} points */
function curve(points) {
  const [first, ...rest] = points ?? [];
  if (!first) return "";
  let path = `M${first[0]} ${first[1]}`;
  rest.forEach(([x, y], at) => {
    const [fromX, fromY] = at ? /** @type {[number, number]} */ (rest[at - 1]) : first;
    const middle = (fromY + y) / 2;
    path += fromX === x || fromY === y ? ` L${x} ${y}` : ` C${fromX} ${middle} ${x} ${middle} ${x} ${y}`;
  });
  return path;
}
