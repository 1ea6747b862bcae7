// The contract: every state a run can be in, drawn from the table that the engine itself obeys, with how many runs are where
// right now. A state that is chosen shows its transitions; what is not drawn cannot happen.

import { fill, h, s } from "../lib/dom.js";
import { get, withQuery } from "../lib/api.js";
import { navigate } from "../lib/router.js";
import { bind } from "../lib/keys.js";
import { loading, refused } from "../parts/rest.js";
import { GROUPS, lookOf, stateBadge, words } from "../parts/states.js";
import { icon } from "../parts/icons.js";

export const title = "Contract";

/**
 * @typedef {{ state: string, terminal: boolean, means: string, requires: string[], lifecycle?: string }} State
 * @typedef {{ layer: string, from: string | null, to: string, causes: string[], actors: string[], owner: string, requires: string[] }} Transition
 * @typedef {{ states: State[], transitions: Transition[], limits: { [name: string]: number } }} Contract
 */

/** Where the groups stand: what is executed in the middle, where it comes to rest around it. */
const COLUMNS = [["waiting"], ["executing", "trouble"], ["held"], ["ended"]];
const WIDTH = 236;
const HEIGHT = 40;
const GAP = 14;
const COLUMN = 304;
const HEAD = 34;

/** @type {import("../lib/types.js").Screen["mount"]} */
export function mount(place, visit) {
  let chosen = visit.url.searchParams.get("state") ?? "";
  /** @type {Contract | null} */
  let contract = null;
  /** @type {{ [state: string]: number }} */
  let counts = {};
  let timer = 0;

  const paint = () => {
    if (!contract) return;
    const runs = contract.transitions.filter((row) => row.layer === "run");
    const focused = document.activeElement instanceof HTMLElement || document.activeElement instanceof SVGElement ? document.activeElement.dataset.state : undefined;
    fill(place,
      h("header", { class: "screen-head" }, h("h1", null, title),
        h("p", { class: "faint" }, `${contract.states.length} states, ${runs.length} transitions. What is not drawn cannot happen.`)),
      h("section", { class: "panel contract-diagram", role: "region", tabindex: "0", "aria-label": "State diagram" }, diagram(contract, runs, counts, chosen)),
      chosen ? explained(contract, runs, counts, chosen) : overview(contract.states),
      transitionTable(runs, chosen));
    if (focused) /** @type {HTMLElement | null} */ (place.querySelector(`.contract-node[data-state="${CSS.escape(focused)}"]`))?.focus();
  };

  const readCounts = async () => {
    const told = await get("/v1/runs/counts?by=state").catch(() => null);
    if (!told) return;
    counts = told.counts;
    // Only the numbers change: the rest keeps its place, its focus and what is selected in it.
    for (const node of place.querySelectorAll(".contract-node")) {
      const number = node.querySelector(".contract-count");
      if (number && node instanceof HTMLElement) number.textContent = shownCount(counts[node.dataset.state ?? ""]);
    }
  };

  const read = async () => {
    try {
      const [one, told] = await Promise.all([get("/v1/contract"), get("/v1/runs/counts?by=state")]);
      contract = one;
      counts = told.counts;
      paint();
    } catch (error) {
      fill(place, h("h1", null, title), refused(error, read));
    }
  };

  const unbind = bind([{ keys: "escape", about: "Show all transitions", act: () => (chosen ? navigate("/contract") : false) }]);
  fill(place, h("h1", null, title), loading());
  void read();
  return {
    update(next) {
      chosen = next.url.searchParams.get("state") ?? "";
      paint();
    },
    records() {
      timer ||= window.setTimeout(() => {
        timer = 0;
        void readCounts();
      }, 1_000);
    },
    resync: () => void readCounts(),
    unmount() {
      clearTimeout(timer);
      unbind();
    },
  };
}

/** @param {number | undefined} count */
function shownCount(count) {
  return count ? count.toLocaleString() : "";
}

/** @param {string} state */
function hrefOf(state) {
  return withQuery("/contract", { state });
}

/** Where each state stands. @param {State[]} states */
function places(states) {
  const known = new Set(states.map((one) => one.state));
  /** @type {Map<string, { x: number, y: number }>} */
  const at = new Map();
  /** @type {{ word: string, x: number, y: number }[]} */
  const heads = [];
  let bottom = 0;
  for (const [column, names] of COLUMNS.entries()) {
    let y = 0;
    for (const name of names) {
      const group = GROUPS.find((one) => one.id === name);
      if (!group) continue;
      heads.push({ word: group.word, x: column * COLUMN, y });
      y += HEAD;
      for (const state of group.states.filter((one) => known.has(one))) {
        at.set(state, { x: column * COLUMN, y });
        y += HEIGHT + GAP;
      }
      y += GAP;
    }
    bottom = Math.max(bottom, y);
  }
  // A state that this page does not know yet stands below all others.
  for (const { state } of states) {
    if (!at.has(state)) {
      at.set(state, { x: 0, y: bottom });
      bottom += HEIGHT + GAP;
    }
  }
  return { at, heads, width: (COLUMNS.length - 1) * COLUMN + WIDTH, height: bottom };
}

/** @param {Contract} contract @param {Transition[]} rows @param {{ [state: string]: number }} counts @param {string} chosen */
function diagram(contract, rows, counts, chosen) {
  const { at, heads, width, height } = places(contract.states);
  const edges = rows.flatMap((row) => {
    const [from, to] = [row.from ? at.get(row.from) : undefined, at.get(row.to)];
    if (!from || !to || (chosen && row.from !== chosen && row.to !== chosen)) return [];
    const kind = !chosen ? "" : row.from === chosen ? "leaves" : "enters";
    return [s("path", { class: `contract-edge ${kind}`, d: between(from, to), "marker-end": kind ? `url(#contract-${kind})` : null })];
  });
  return s("svg", { class: "contract-svg", viewBox: `-12 -8 ${width + 24} ${height + 8}`, width: width + 24, height: height + 8, role: "group", "aria-label": "States and transitions of a run" },
    s("defs", null, ["leaves", "enters"].map((name) => s("marker", { id: `contract-${name}`, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, s("path", { class: `contract-arrow ${name}`, d: "M0 0.8 7 4 0 7.2z" })))),
    edges,
    heads.map((head) => s("text", { class: "contract-head", x: head.x, y: head.y + 16 }, head.word)),
    contract.states.map((one) => nodeView(one, /** @type {{ x: number, y: number }} */ (at.get(one.state)), counts[one.state], chosen, rows)));
}

/** A line from side to side, bent so that lines between neighbours can be told apart. @param {{ x: number, y: number }} from @param {{ x: number, y: number }} to */
function between(from, to) {
  const [startY, endY] = [from.y + HEIGHT / 2, to.y + HEIGHT / 2];
  if (from.x === to.x) {
    const side = from.x + WIDTH;
    const bow = 18 + Math.min(40, Math.abs(endY - startY) / 6);
    const lift = startY < endY ? 4 : -4;
    return `M${side} ${startY + lift}C${side + bow} ${startY} ${side + bow} ${endY} ${side} ${endY + lift}`;
  }
  const right = to.x > from.x;
  const [startX, endX] = right ? [from.x + WIDTH, to.x] : [from.x, to.x + WIDTH];
  const half = (startX + endX) / 2;
  const lift = right ? -5 : 5;
  return `M${startX} ${startY + lift}C${half} ${startY + lift} ${half} ${endY + lift} ${endX} ${endY + lift}`;
}

/** @param {State} one @param {{ x: number, y: number }} at @param {number | undefined} count @param {string} chosen @param {Transition[]} rows */
function nodeView(one, at, count, chosen, rows) {
  const look = lookOf(one.state);
  const near = !chosen || one.state === chosen || rows.some((row) => (row.from === chosen && row.to === one.state) || (row.to === chosen && row.from === one.state));
  return s("foreignObject", { x: at.x, y: at.y, width: WIDTH, height: HEIGHT },
    h("a", { class: `contract-node tone-${look.tone}${near ? "" : " far"}`, href: one.state === chosen ? "/contract" : hrefOf(one.state), title: one.means, data: { state: one.state }, "aria-current": one.state === chosen ? "true" : null },
      icon(look.icon), h("span", { class: "cut" }, look.word), h("span", { class: "contract-count" }, shownCount(count))));
}

/** What each state means, in the contract's words. @param {State[]} states */
function overview(states) {
  return h("section", { class: "panel contract-overview" },
    h("header", { class: "panel-head" }, h("h2", null, "What each state means"), h("p", { class: "faint small" }, "The numbers are how many runs are there now. Choose a state to see how a run gets there and where it can go.")),
    h("dl", { class: "contract-means" }, states.map((one) => h("div", null,
      h("dt", null, h("a", { href: hrefOf(one.state) }, stateBadge(one.state))), h("dd", null, one.means)))));
}

/** @param {Contract} contract @param {Transition[]} rows @param {{ [state: string]: number }} counts @param {string} chosen */
function explained(contract, rows, counts, chosen) {
  const one = contract.states.find((state) => state.state === chosen);
  if (!one) return h("section", { class: "panel panel-body" }, h("h2", null, `There is no state ${chosen}`));
  const [enters, leaves] = [rows.filter((row) => row.to === chosen), rows.filter((row) => row.from === chosen)];
  const count = counts[chosen] ?? 0;
  return h("section", { class: "panel panel-body contract-about" },
    h("div", { class: "contract-facts" },
      h("div", null, stateBadge(chosen)),
      h("p", null, one.means),
      h("p", null, h("a", { href: withQuery("/", { state: chosen }) }, count === 1 ? "One run is here" : `${count.toLocaleString()} runs are here`)),
      h("div", null, h("h3", null, "Always carries"), h("p", { class: "handlers" }, one.requires.map((name) => h("code", { class: "label-chip" }, name))))),
    ways("Entered from", "enters", enters, (row) => row.from),
    one.terminal ? h("p", { class: "soft" }, "It is final: nothing leads out of it.") : ways("Left to", "leaves", leaves, (row) => row.to));
}

/** @param {string} name @param {string} kind @param {Transition[]} rows @param {(row: Transition) => string | null} other */
function ways(name, kind, rows, other) {
  return h("div", null, h("h3", { class: `contract-${kind}` }, name),
    h("ul", { class: "contract-ways" }, rows.map((row) => {
      const state = other(row);
      return h("li", null, state ? h("a", { href: hrefOf(state) }, lookOf(state).word) : h("span", null, "the start"),
        h("span", { class: "faint" }, ` ${row.causes.map((cause) => words(cause).toLowerCase()).join(", ")}`));
    })));
}

/** Every row of the table, as text. @param {Transition[]} rows @param {string} chosen */
function transitionTable(rows, chosen) {
  const shown = chosen ? rows.filter((row) => row.from === chosen || row.to === chosen) : rows;
  return h("details", { class: "panel contract-table", open: chosen !== "" },
    h("summary", { class: "panel-head" }, icon("right"), h("h2", null, chosen ? `Transitions of ${lookOf(chosen).word}` : "All transitions"), h("span", { class: "faint" }, String(shown.length))),
    h("div", { class: "table-frame", tabindex: "0", role: "region", "aria-label": "Transitions" }, h("table", null,
      h("thead", null, h("tr", null, ["From", "To", "Because", "By", "Needs"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, shown.map((row) => h("tr", null,
        h("td", { class: "one-line" }, row.from ? lookOf(row.from).word : "–"), h("td", { class: "one-line" }, lookOf(row.to).word),
        h("td", null, row.causes.map(words).join(", ")), h("td", null, row.actors.join(", ")), h("td", { class: "faint" }, row.requires.join(", "))))))));
}
