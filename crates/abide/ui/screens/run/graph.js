// The steps of a run as a graph: places come from the server, a fan-out is one node with its counts.

/** @import { Run } from "../../lib/types.js" */
/** @import { RunContext, Tab } from "../run.js" */

import { fill, h } from "../../lib/dom.js";
import { get, withQuery } from "../../lib/api.js";
import { drawGraph } from "../../parts/graph.js";
import { loading, refused } from "../../parts/rest.js";

/** @import { Graph } from "../../parts/graph.js" */

/** @param {RunContext} context @returns {Tab} */
export function graphTab(context) {
  const element = h("div", { class: "graph-view panel" }, loading(3));
  let asked = 0;
  let shown = "";
  let followed = "";
  return {
    element,
    async show(run, at) {
      const key = `${run.as_of_seq} ${at}`;
      if (key === shown) return;
      shown = key;
      asked += 1;
      const own = asked;
      try {
        /** @type {Graph} */
        const graph = await get(withQuery(`${context.path}/graph`, { at }));
        if (own !== asked) return;
        const link = (/** @type {string} */ id) => `/runs/${encodeURIComponent(run.run_id)}?tab=events&step=${encodeURIComponent(id)}`;
        const { left, top } = { left: element.scrollLeft, top: element.scrollTop };
        fill(element, drawGraph(graph, { link, current: currentOf(run) }), graph.left_out > 0 && h("p", { class: "note" }, `${graph.left_out} more steps are in the list of events.`));
        element.scrollTo(left, top);
        follow(run);
      } catch (error) {
        if (own === asked) fill(element, refused(error));
      }
    },
    stop() {
      asked += 1;
    },
  };

  /** Moves to where the run is, when that has changed. @param {Run} run */
  function follow(run) {
    const current = currentOf(run);
    if (!current || current === followed) return;
    followed = current;
    element.querySelector(`[data-node="${CSS.escape(current)}"]`)?.scrollIntoView({ block: "nearest", inline: "center" });
  }
}

/** The node of the step where the run is. @param {Run} run */
function currentOf(run) {
  return run.ended_at ? null : run.step_id?.split(".")[0] ?? null;
}
