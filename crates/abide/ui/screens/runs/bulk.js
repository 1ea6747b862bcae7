// The same deed for every run of a filter: first how many it would be, then done.

import { fill, h } from "../../lib/dom.js";
import { newKey, post } from "../../lib/api.js";
import { asCurl, copyMenu } from "../../lib/copy.js";
import { openDialog } from "../../parts/dialog.js";
import { toast } from "../../parts/toast.js";
import { words } from "../../parts/states.js";
import { describe } from "./filters.js";

/** @typedef {{ matched: number, applied: number, refused: { run_id: string, code: string, detail: string }[] }} Done */

const DEEDS = /** @type {const} */ ([
  ["cancel", "Cancel"],
  ["retry", "Retry"],
  ["pause", "Pause"],
  ["resume", "Resume"],
]);

/** The query as the filter of a bulk call; names that repeat are lists. @param {URLSearchParams} query */
function filterOf(query) {
  /** @type {{ [name: string]: string | string[] }} */
  const filter = {};
  for (const name of new Set(query.keys())) {
    const values = query.getAll(name);
    if (name !== "limit" && name !== "cursor") filter[name] = values.length === 1 ? values[0] ?? "" : values;
  }
  return Object.keys(filter).length ? filter : { state: "open" };
}

/** @param {URLSearchParams} query @param {() => void} done */
export function openBulk(query, done) {
  const filter = filterOf(query);
  const key = newKey();
  let turn = 0;
  const deed = h("select", { "aria-label": "What to do" }, DEEDS.map(([value, title]) => h("option", { value }, title)));
  const reason = h("input", { type: "text", "aria-label": "Reason", value: "" });
  reason.value = "asked for in the list of runs";
  const found = h("p", { class: "bulk-count", role: "status" }, "Counting…");
  const told = h("div", { role: "alert" });
  const send = h("button", { type: "button", class: "primary", disabled: true, data: { confirm: "bulk" } }, "Go");

  const body = (/** @type {boolean} */ dry) => ({ action: deed.value, filter, dry_run: dry, reason: reason.value });
  const count = async () => {
    turn += 1;
    const own = turn;
    send.disabled = true;
    found.textContent = "Counting…";
    try {
      /** @type {Done} */
      const { matched } = await post("/v1/runs/bulk", body(true));
      if (own !== turn) return;
      found.textContent = `${matched.toLocaleString()} ${matched === 1 ? "run" : "runs"} would be asked.`;
      send.disabled = matched === 0;
      send.textContent = `${words(deed.value)} ${matched.toLocaleString()} ${matched === 1 ? "run" : "runs"}`;
      send.classList.toggle("danger", deed.value === "cancel");
    } catch (error) {
      found.textContent = error instanceof Error ? error.message : String(error);
    }
  };
  const act = async () => {
    send.disabled = true;
    found.textContent = "Working…";
    try {
      /** @type {Done} */
      const result = await post("/v1/runs/bulk", body(false), { key });
      done();
      if (!result.refused.length) {
        dialog.close();
        toast(`${words(deed.value)}: ${result.applied} of ${result.matched} runs`, "good");
        return;
      }
      found.textContent = `${result.applied} of ${result.matched} runs; the others refused:`;
      fill(told, h("ul", { class: "refusals" }, result.refused.map((one) => h("li", null, h("a", { href: `/runs/${encodeURIComponent(one.run_id)}` }, one.run_id), " ", one.detail))));
    } catch (error) {
      found.textContent = "";
      fill(told, h("p", { class: "fault" }, error instanceof Error ? error.message : String(error)));
    }
  };
  deed.addEventListener("change", () => void count());
  send.addEventListener("click", () => void act());
  const dialog = openDialog({
    title: "Act on all of these",
    name: "bulk",
    body: [
      h("p", { class: "said" }, describe(new URLSearchParams(Object.entries(filter).flatMap(([name, value]) => [value].flat().map((one) => [name, one]))))),
      h("div", { class: "fields" },
        h("div", { class: "field" }, h("label", null, "What to do", deed)),
        h("div", { class: "field" }, h("label", null, "Reason", reason))),
      found, told,
    ],
    actions: [
      copyMenu("Copy this call", () => [{ title: "Copy as curl", text: asCurl("POST", "/v1/runs/bulk", body(false)) }]),
      h("span", { class: "grow" }),
      h("button", { type: "button", on: { click: () => dialog.close() } }, "Not now"),
      send,
    ],
  });
  deed.focus();
  void count();
}
