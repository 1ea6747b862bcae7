// Filters of the list: what is chosen as chips, every state with its count, and a field to say more.

import { fill, h } from "../../lib/dom.js";
import { get } from "../../lib/api.js";
import { navigate } from "../../lib/router.js";
import { icon } from "../../parts/icons.js";
import { GROUPS, lookOf, words } from "../../parts/states.js";

/** What can be asked beside states, as the API names it. */
const NAMES = ["workflow", "step", "connection", "blocking_reason", "failure_kind", "owner_id", "parent", "label.", "created_after", "updated_before", "data_region", "archived"];

/**
 * A filter in words: `Stalled; workflow hello`.
 * @param {URLSearchParams} query
 */
export function describe(query) {
  const states = query.getAll("state").map((state) => (state === "open" || state === "terminal" ? words(state) : lookOf(state).word));
  const rest = [...query].filter(([name]) => name !== "state").map(([name, value]) => `${nameOf(name)} ${value}`);
  return [...(states.length ? [states.join(", ")] : []), ...rest].join("; ");
}

/** @param {string} name */
function nameOf(name) {
  return name.startsWith("label.") ? name.slice("label.".length) : name.replaceAll("_", " ");
}

/** @param {(query: string) => void} choose */
export function filterBar(choose) {
  let query = new URLSearchParams();
  /** @type {{ [state: string]: number }} */
  let counts = {};
  const chips = h("div", { class: "chips" });
  const states = h("div", { class: "state-filter", role: "group", "aria-label": "States" });
  const list = h("datalist", { id: "filter-words" });
  const input = h("input", { type: "search", class: "filter-input", list: "filter-words", placeholder: "workflow=…  label.team=…  or a run id", "aria-label": "Add a filter", autocomplete: "off", spellcheck: "false" });
  const fault = h("p", { class: "fault", role: "alert" });
  const form = h("form", { class: "filter-form", role: "search" }, icon("search"), input, list);

  /** @param {URLSearchParams} next */
  const go = (next) => {
    next.delete("cursor");
    const text = next.toString();
    choose(text ? `?${text}` : "");
  };
  const add = () => {
    const text = input.value.trim();
    fault.textContent = "";
    if (!text) return;
    const at = text.search(/[=:\s]/);
    const [name, value] = at > 0 ? [text.slice(0, at), text.slice(at + 1).trim()] : [text, ""];
    if (!value && text.startsWith("run_")) return navigate(`/runs/${encodeURIComponent(text)}`);
    if (!value || !NAMES.some((known) => (known === "label." ? name.startsWith(known) && name.length > known.length : known === name))) {
      fault.textContent = `Write NAME=VALUE with one of: ${NAMES.join(", ").replace("label.", "label.NAME")}; or the id of a run.`;
      return;
    }
    const next = new URLSearchParams(query);
    if (name.startsWith("label.")) next.append(name, value);
    else next.set(name, value);
    input.value = "";
    go(next);
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    add();
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") input.blur();
  });
  input.addEventListener("focus", () => void suggest(list), { once: true });

  /** @param {string} state */
  const toggle = (state) => {
    const next = new URLSearchParams(query);
    const chosen = new Set(next.getAll("state"));
    if (!chosen.delete(state)) chosen.add(state);
    next.delete("state");
    chosen.forEach((one) => next.append("state", one));
    go(next);
  };

  const paintStates = () => {
    const chosen = new Set(query.getAll("state"));
    const focused = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.toggle : undefined;
    fill(states, GROUPS.map((group) => {
      const shown = group.states.filter((state) => counts[state] || chosen.has(state));
      return shown.length > 0 && h("div", { class: "state-group" }, h("span", { class: "group-word faint" }, group.word), shown.map((state) => stateToggle(state, counts[state] ?? 0, chosen.has(state), toggle)));
    }));
    if (focused) /** @type {HTMLElement | null} */ (states.querySelector(`[data-toggle="${focused}"]`))?.focus();
  };

  const paintChips = () => {
    const pairs = [...query].filter(([name, value]) => name !== "limit" && !(name === "state" && lookOf(value).icon !== "pending"));
    fill(chips, pairs.map(([name, value]) => h("span", { class: "chip filter-chip" },
      h("span", { class: "faint" }, nameOf(name)), h("span", { class: "cut" }, value),
      h("button", { type: "button", class: "quiet remove", "aria-label": `Remove ${nameOf(name)} ${value}`, on: { click: () => remove(name, value) } }, icon("close")))));
  };

  /** @param {string} name @param {string} value */
  const remove = (name, value) => {
    const next = new URLSearchParams([...query].filter(([key, text]) => key !== name || text !== value));
    go(next);
  };

  return {
    element: h("div", { class: "filters" }, h("div", { class: "filter-line" }, form, chips), fault, states),
    focus: () => input.focus(),
    /** @param {URLSearchParams} now */
    show(now) {
      query = new URLSearchParams(now);
      fault.textContent = "";
      paintChips();
      paintStates();
    },
    /** @param {{ [state: string]: number }} now */
    count(now) {
      counts = now;
      paintStates();
    },
  };
}

/** @param {string} state @param {number} count @param {boolean} chosen @param {(state: string) => void} toggle */
function stateToggle(state, count, chosen, toggle) {
  const look = lookOf(state);
  return h("button", { type: "button", class: `state-toggle tone-${look.tone}`, "aria-pressed": String(chosen), data: { toggle: state }, on: { click: () => toggle(state) } },
    icon(look.icon), h("span", null, look.word), h("span", { class: "count" }, count.toLocaleString()));
}

/** Words that can be typed, from what there is. @param {HTMLElement} list */
async function suggest(list) {
  /** @type {[{ workflows: { workflow_id: string }[] }, { connections: { tool: string, account: string }[] }]} */
  const [known, tools] = await Promise.all([
    get("/v1/workflows").catch(() => ({ workflows: [] })),
    get("/v1/connections").catch(() => ({ connections: [] })),
  ]);
  const values = [...known.workflows.map((one) => `workflow=${one.workflow_id}`), ...tools.connections.map((one) => `connection=${one.tool}/${one.account}`), "state=open", "archived=true"];
  fill(list, values.map((value) => h("option", { value })));
}
