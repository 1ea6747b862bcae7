// Ctrl-K: everywhere one can go and everything one can do, by typing.

/** @import { Command } from "./types.js" */

import { fill, freshId, h } from "./dom.js";
import { openDialog } from "../parts/dialog.js";

const MOST = 12;

/**
 * @param {() => Command[]} commands asked each time it opens
 * @param {(text: string) => Command[]} typed what the text itself may mean, such as a run's id
 * @param {Promise<Command[]>} later what takes a moment to know
 */
export function openPalette(commands, typed, later) {
  if (document.querySelector("dialog[data-name=palette]")) return;
  let known = commands();
  /** @type {Command[]} */
  let found = [];
  let chosen = 0;
  const listId = freshId("palette");
  const list = h("ul", { id: listId, class: "palette-list", role: "listbox", "aria-label": "Results" });
  const input = h("input", { type: "text", class: "palette-input", placeholder: "Go to a screen, a run, a workflow; or do something", role: "combobox", "aria-expanded": "true", "aria-controls": listId, "aria-label": "Search", autocomplete: "off", spellcheck: "false" });
  const show = () => {
    const text = input.value.trim();
    found = [...known.filter((command) => matches(command, text)), ...typed(text)].slice(0, MOST);
    chosen = Math.min(chosen, Math.max(0, found.length - 1));
    paint();
  };
  const paint = () => {
    fill(list, found.length ? found.map(option) : h("li", { class: "faint palette-none" }, "Nothing fits. A run is found by its id."));
    input.setAttribute("aria-activedescendant", found.length ? `${listId}-${chosen}` : "");
    list.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  };
  /** @param {Command} command @param {number} at */
  const option = (command, at) =>
    h("li", { id: `${listId}-${at}`, role: "option", class: "palette-option", "aria-selected": String(at === chosen), on: { click: () => run(at), mousemove: () => at !== chosen && ((chosen = at), paint()) } },
      h("span", null, command.title), command.hint ? h("span", { class: "faint" }, command.hint) : null);
  /** @param {number} at */
  const run = (at) => {
    const command = found[at];
    dialog.close();
    command?.run();
  };
  input.addEventListener("input", () => {
    chosen = 0;
    show();
  });
  input.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      chosen = (chosen + step + found.length) % Math.max(1, found.length);
      paint();
    } else if (event.key === "Enter") run(chosen);
    else return;
    event.preventDefault();
  });
  const dialog = openDialog({ title: "Go to or do", name: "palette", body: [input, list] });
  dialog.element.classList.add("palette");
  input.focus();
  show();
  void later.then((more) => {
    known = [...known, ...more];
    if (dialog.element.isConnected) show();
  });
}

/** Every word that was typed stands somewhere in it. @param {Command} command @param {string} text */
function matches(command, text) {
  const where = `${command.title} ${command.hint ?? ""}`.toLowerCase();
  return text.toLowerCase().split(/\s+/).every((word) => where.includes(word));
}
