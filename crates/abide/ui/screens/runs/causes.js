// What many runs have in common: one line for each root cause, and one button where one deed helps them all.

/** @import { NextAction } from "../../lib/types.js" */

import { fill, h } from "../../lib/dom.js";
import { get, post } from "../../lib/api.js";
import { icon } from "../../parts/icons.js";
import { lookOf } from "../../parts/states.js";
import { toast, toastError } from "../../parts/toast.js";

/** @typedef {{ cause: string, state: string, count: number, sentence: string, query: string, action?: NextAction }} Cause */

/** More would push the list away. */
const SHOWN = 4;

/** @param {() => void} changed */
export function causes(changed) {
  const element = h("section", { class: "causes", "aria-label": "What runs wait for", hidden: true });
  let before = "";
  return {
    element,
    async read() {
      /** @type {{ groups?: Cause[] }} */
      const { groups = [] } = await get("/v1/runs/counts?by=root_cause");
      const text = JSON.stringify(groups);
      if (text === before) return;
      before = text;
      element.hidden = groups.length === 0;
      fill(element, h("h2", { class: "visually-hidden" }, "What runs wait for"), h("ul", null, groups.slice(0, SHOWN).map((group) => cause(group, changed))));
    },
  };
}

/** @param {Cause} group @param {() => void} changed */
function cause(group, changed) {
  const look = lookOf(group.state);
  return h("li", { class: `cause tone-${look.tone}`, data: { cause: group.cause } },
    icon(look.icon),
    h("a", { href: `/?${group.query}`, class: "cause-sentence" }, group.sentence),
    group.action && once(group.action, changed));
}

/** @param {NextAction} action @param {() => void} changed */
function once(action, changed) {
  const button = h("button", { type: "button", data: { action: action.id } }, action.title);
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      /** @type {{ released?: number }} */
      const done = await post(action.href, action.body);
      toast(`${action.title}: ${done.released ?? 0} released`, "good");
      changed();
    } catch (error) {
      toastError(error);
    } finally {
      button.disabled = false;
    }
  });
  return button;
}
