// Workflows: which there are, and of each its versions, its document, its picture, its warnings and its runs.

/** @import { Visit } from "../lib/types.js" */

import { fill, h } from "../lib/dom.js";
import { get, withQuery } from "../lib/api.js";
import { when } from "../lib/time.js";
import { navigate } from "../lib/router.js";
import { copyMenu, asCurl } from "../lib/copy.js";
import { empty, loading, refused } from "../parts/rest.js";
import { GROUPS, lookOf } from "../parts/states.js";
import { icon } from "../parts/icons.js";
import { drawGraph } from "../parts/graph.js";

export const title = "Workflows";

/**
 * @typedef {{ workflow_id: string, version: number, title: string | null, definition_hash: string, created_at: string }} Workflow
 * @typedef {{ version: number, definition_hash: string, created_at: string, runs: number }} Version
 * @typedef {{ code: string, message: string, pointer: string, line: number | null, column: number | null, hint: string | null }} Fault
 * @typedef {Workflow & { document: string, warnings: Fault[] }} Document
 */

/** @type {import("../lib/types.js").Screen["mount"]} */
export function mount(place, visit) {
  const id = visit.params.workflow_id;
  return id === undefined ? mountList(place) : mountOne(place, visit, id);
}

/** @param {HTMLElement} place @returns {import("../lib/types.js").Mounted} */
function mountList(place) {
  const read = async () => {
    try {
      const [{ workflows }, { counts }] = await Promise.all([get("/v1/workflows"), get("/v1/runs/counts?by=workflow")]);
      fill(place, h("header", { class: "screen-head" }, h("h1", null, title), h("p", { class: "faint" }, String(workflows.length))),
        workflows.length ? h("div", { class: "panel table-frame" }, table(workflows, counts)) : none());
    } catch (error) {
      fill(place, h("h1", null, title), refused(error, read));
    }
  };
  fill(place, h("h1", null, title), loading());
  void read();
  return { resync: () => void read(), unmount() {} };
}

function none() {
  return empty("There are no workflows yet", h("p", null, "Upload a document: ", h("code", null, "abide apply FILE")),
    h("p", { class: "faint" }, "abide dev brings examples."));
}

/** @param {Workflow[]} workflows @param {{ [id: string]: number }} counts */
function table(workflows, counts) {
  return h("table", null,
    h("thead", null, h("tr", null, h("th", null, "Workflow"), h("th", { class: "num" }, "Version"), h("th", { class: "num" }, "Runs"), h("th", null, "Uploaded"))),
    h("tbody", null, workflows.map((one) => h("tr", null,
      h("td", null, h("a", { href: hrefOf(one.workflow_id), class: "strong" }, one.title ?? one.workflow_id), one.title && h("div", { class: "faint small" }, one.workflow_id)),
      h("td", { class: "num" }, String(one.version)),
      h("td", { class: "num" }, h("a", { href: withQuery("/", { workflow: one.workflow_id }) }, (counts[one.workflow_id] ?? 0).toLocaleString())),
      h("td", null, when(one.created_at))))));
}

/** @param {string} id */
function hrefOf(id) {
  return `/workflows/${encodeURIComponent(id)}`;
}

/** @param {HTMLElement} place @param {Visit} visit @param {string} id @returns {import("../lib/types.js").Mounted} */
function mountOne(place, visit, id) {
  let wanted = visit.url.searchParams.get("version");
  const counts = h("div", { class: "workflow-counts" });
  let turn = 0;

  const readCounts = async () => {
    const told = await get(withQuery("/v1/runs/counts", { by: "state", workflow: id })).catch(() => null);
    if (told) fill(counts, countsView(id, told.counts));
  };

  const read = async () => {
    turn += 1;
    const mine = turn;
    const path = `/v1${hrefOf(id)}`;
    try {
      /** @type {[Document, { versions: Version[] }, import("../parts/graph.js").Graph]} */
      const [document, { versions }, graph] = await Promise.all([
        get(wanted ? `${path}/versions/${encodeURIComponent(wanted)}` : path), get(`${path}/versions`), get(withQuery(`${path}/graph`, { version: wanted })),
      ]);
      if (mine !== turn) return;
      dispatchEvent(new CustomEvent("abide:title", { detail: document.title ?? id }));
      fill(place, head(document, versions, id), counts,
        h("div", { class: "workflow" },
          h("section", { class: "panel workflow-graph" }, h("header", { class: "panel-head" }, h("h2", null, "Steps")),
            graph.nodes.length ? picture(graph, document.title ?? id) : h("p", { class: "panel-body faint" }, "A coded workflow: its steps are known when a run takes them.")),
          h("div", { class: "workflow-side" }, warnings(document.warnings), versionList(id, versions, document.version))),
        documentView(document));
      showBeginning(place, graph);
    } catch (error) {
      if (mine === turn) fill(place, crumbs(), refused(error, read));
    }
  };

  fill(place, loading());
  void read();
  void readCounts();
  let timer = 0;
  return {
    update(next) {
      wanted = next.url.searchParams.get("version");
      void read();
    },
    records(runs) {
      if (timer || !runs.some((run) => run.workflow_id === id)) return;
      timer = window.setTimeout(() => {
        timer = 0;
        void readCounts();
      }, 1_000);
    },
    resync() {
      void read();
      void readCounts();
    },
    commands: () => [{ title: "Runs of this workflow", hint: "runs", run: () => navigate(withQuery("/", { workflow: id })) }],
    unmount() {
      clearTimeout(timer);
    },
  };
}

function crumbs() {
  return h("nav", { class: "crumbs", "aria-label": "Where this is" }, h("a", { href: "/workflows" }, "Workflows"));
}

/** @param {Document} document @param {Version[]} versions @param {string} id */
function head(document, versions, id) {
  const newest = versions[0]?.version;
  return h("header", { class: "screen-head" },
    h("div", null, crumbs(), h("h1", null, document.title ?? id),
      h("p", { class: "faint small" }, `${id} · version ${document.version}${newest === document.version ? ", the newest" : ` of ${newest}`}`)),
    h("span", { class: "grow" }),
    copyMenu("Copy", () => [
      { title: "Copy link", text: location.href },
      { title: "Copy as curl", text: asCurl("GET", `/v1${hrefOf(id)}/versions/${document.version}`) },
      { title: "Copy the document", text: document.document },
    ]),
    h("a", { class: "button", href: withQuery("/", { workflow: id }) }, icon("runs"), "Runs"));
}

/** @param {import("../parts/graph.js").Graph} graph @param {string} name */
function picture(graph, name) {
  return h("div", { class: "graph-view", tabindex: "0", role: "region", "aria-label": `Steps of ${name}` }, drawGraph(graph),
    graph.left_out > 0 && h("p", { class: "note panel-body" }, `${graph.left_out} more steps are not drawn; the document has them all.`));
}

/** Of a picture that is wider than its frame, shows where it begins. @param {HTMLElement} place @param {import("../parts/graph.js").Graph} graph */
function showBeginning(place, graph) {
  const [view, first] = [place.querySelector(".graph-view"), graph.nodes[0]];
  if (view && first) view.scrollLeft = first.x + first.width / 2 - view.clientWidth / 2;
}

/** How many runs are in which state; each number leads to them. @param {string} id @param {{ [state: string]: number }} counts */
function countsView(id, counts) {
  const states = GROUPS.flatMap((group) => group.states).filter((state) => counts[state]);
  if (!states.length) return h("p", { class: "faint" }, "It has no runs yet.");
  return h("ul", { class: "count-chips", "aria-label": "Runs by state" }, states.map((state) => {
    const look = lookOf(state);
    return h("li", null, h("a", { class: `chip tone-${look.tone} count-chip`, href: withQuery("/", { workflow: id, state }) },
      icon(look.icon), look.word, h("strong", null, (counts[state] ?? 0).toLocaleString())));
  }));
}

/** @param {Fault[]} faults */
function warnings(faults) {
  return h("section", { class: "panel" },
    h("header", { class: "panel-head" }, h("h2", null, "Warnings"), faults.length > 0 && h("span", { class: "badge" }, String(faults.length))),
    faults.length === 0
      ? h("p", { class: "panel-body faint" }, "None: the validator has nothing to say.")
      : h("ul", { class: "faults", tabindex: "0", "aria-label": "Warnings" }, faults.map((fault) => h("li", null, icon("operator"),
        h("div", null, h("p", null, fault.message), fault.hint && h("p", { class: "note" }, fault.hint),
          fault.line !== null && h("p", { class: "note" }, h("a", { href: `#line-${fault.line}`, on: { click: toLine } }, `line ${fault.line}`)))))));
}

/** @param {MouseEvent} event */
function toLine(event) {
  event.preventDefault();
  const name = /** @type {HTMLAnchorElement} */ (event.currentTarget).hash.slice(1);
  const line = document.getElementById(name);
  line?.closest("details")?.setAttribute("open", "");
  line?.scrollIntoView({ block: "center" });
  line?.focus();
}

/** @param {string} id @param {Version[]} versions @param {number} current */
function versionList(id, versions, current) {
  return h("section", { class: "panel" }, h("header", { class: "panel-head" }, h("h2", null, "Versions")),
    h("ol", { class: "versions" }, versions.map((one) => h("li", null,
      h("a", { class: "version", href: withQuery(hrefOf(id), { version: one.version }), "aria-current": one.version === current ? "true" : null },
        h("strong", { class: "num" }, String(one.version)),
        h("span", { class: "faint" }, when(one.created_at)),
        h("code", { class: "cut faint", title: one.definition_hash }, one.definition_hash.slice(0, 12)),
        h("span", { class: "num" }, `${one.runs.toLocaleString()} ${one.runs === 1 ? "run" : "runs"}`))))));
}

/** The document as it was uploaded, with its lines numbered and those with a warning marked. @param {Document} document */
function documentView(document) {
  const marked = new Set(document.warnings.map((fault) => fault.line));
  const lines = document.document.replace(/\n$/, "").split("\n");
  return h("section", { class: "panel document" },
    h("header", { class: "panel-head" }, h("h2", null, "Document"), h("span", { class: "faint small" }, `${lines.length} lines`)),
    h("div", { class: "document-frame", tabindex: "0", role: "region", "aria-label": "Document" },
      h("ol", { class: "lines" }, lines.map((line, at) => h("li", { id: `line-${at + 1}`, tabindex: marked.has(at + 1) ? "-1" : null, class: marked.has(at + 1) ? "marked" : null }, h("code", null, line || " "))))));
}
