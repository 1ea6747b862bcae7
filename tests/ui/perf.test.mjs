// How fast it feels: the list among 100,000 runs, and a run of 10,000 steps. Each figure is the best of some tries, because
// a machine that is busy with something else says nothing about the page.

import assert from "node:assert/strict";
import http from "node:http";
import { after, afterEach, before, test } from "node:test";
import { Server, browse, endAll, open, sweep, until } from "./lib.mjs";

const RUNS = Number(process.env.ABIDE_UI_RUNS ?? 100_000);
const ITEMS = Number(process.env.ABIDE_UI_ITEMS ?? 10_000);
const TRIES = 5;
/** So many runs are listed as fast as any list can be. */
const FEW = 100;
/** Of server and script, until the rows are there. */
const FIRST_ROWS_MS = 300;
/** No frame may take longer while it scrolls. */
const FRAME_MS = 50;

let server, browser, context;
const agent = new http.Agent({ keepAlive: true, maxSockets: 64 });

before(async () => {
  [server, browser] = await Promise.all([Server.begin(), browse()]);
  context = await browser.newContext({ viewport: { width: 1360, height: 850 } });
});

afterEach(() => sweep(context));

after(async () => {
  await browser.close();
  await server.stop();
  await endAll();
  agent.destroy();
});

/** A call over connections that stay open; answers are as short as they can be. */
function quick(path, body) {
  return new Promise((resolve, reject) => {
    const request = http.request(server.url + path, { method: "POST", agent, headers: { "content-type": "application/json", prefer: "return=minimal" } }, (response) => {
      let text = "";
      response.on("data", (part) => (text += part));
      response.on("end", () => (response.statusCode < 300 ? resolve(text ? JSON.parse(text) : null) : reject(new Error(`${path}: ${response.statusCode} ${text}`))));
    });
    request.on("error", reject);
    request.end(JSON.stringify(body));
  });
}

async function many(count, deed) {
  let next = 0;
  const lane = async () => {
    while (next < count) {
      next += 1;
      await deed(next);
    }
  };
  await Promise.all(Array.from({ length: 64 }, lane));
}

/** Time that the page itself spent, in milliseconds. */
async function spent(client) {
  const { metrics } = await client.send("Performance.getMetrics");
  const of = (name) => metrics.find((metric) => metric.name === name)?.value ?? 0;
  return (of("ScriptDuration") + of("LayoutDuration") + of("RecalcStyleDuration")) * 1_000;
}

/** Opens the list some times: what server and script took until the rows were there, best first. */
async function firstRows() {
  const figures = [];
  for (let n = 0; n < TRIES; n += 1) {
    const page = await open(context);
    const client = await context.newCDPSession(page);
    await client.send("Performance.enable");
    await page.goto(server.url);
    await page.locator(".row").first().waitFor();
    const script = await spent(client);
    const { asked, wall } = await page.evaluate(() => {
      const reads = performance.getEntriesByType("resource").filter((one) => /\/v1\/(session|runs\?)/.test(one.name));
      const [page] = performance.getEntriesByType("navigation");
      const length = (one) => one.responseEnd - one.requestStart;
      return { asked: length(page) + reads.reduce((sum, one) => sum + length(one), 0), wall: performance.getEntriesByName("abide-rows")[0].startTime };
    });
    figures.push({ script, asked, wall, sum: script + asked });
    assert.deepEqual(page.wrong, []);
    await page.close();
  }
  return figures.sort((one, other) => one.sum - other.sum);
}

test(`the first rows among ${RUNS} runs take less than ${FIRST_ROWS_MS} ms of server and script`, { timeout: 1_800_000 }, async (t) => {
  await server.apply("gate", "{workflow: gate, steps: [{id: yes, approval: {title: 'Ship it?', approvers: [ana], deadline: 7d}}]}");
  await server.apply("bell", "{workflow: bell, steps: [{id: ring, signal: bell, deadline: 7d}]}");
  const began = Date.now();
  const start = (n) => quick("/v1/runs", { workflow: n % 3 ? "gate" : "bell", labels: { team: `t${n % 7}` } });
  await many(FEW, start);
  const [alone] = await firstRows();
  await many(RUNS - FEW, start);
  t.diagnostic(`${RUNS} runs started in ${Date.now() - began} ms`);
  const figures = await firstRows();
  const [best] = figures;
  const round = (ms) => Math.round(ms);
  t.diagnostic(`server ${round(best.asked)} ms + script, style and layout ${round(best.script)} ms = ${round(best.sum)} ms, among ${FEW} runs ${round(alone.sum)} ms; rows were there ${round(best.wall)} ms after the address was entered`);
  // On a machine that has other things to do, few runs are slow, too; then many must not be slower than that.
  assert.ok(best.sum < Math.max(FIRST_ROWS_MS, 2 * alone.sum), JSON.stringify({ alone, figures }));
});

test("a list of very many runs holds only what is in sight, and goes on when it is scrolled", async (t) => {
  const page = await open(context, server.url);
  await page.locator(".row").first().waitFor();
  for (let n = 0; n < 40; n += 1) {
    await page.mouse.wheel(0, 2_000);
    await page.waitForTimeout(30);
  }
  const seen = await until(async () => {
    const last = await page.locator(".row").last().getAttribute("aria-setsize");
    return Number(last) > Math.min(500, RUNS / 2) && Number(last);
  }, "more pages come");
  const rows = await page.locator(".row").count();
  t.diagnostic(`${seen} runs loaded, ${rows} rows in the page`);
  assert.ok(rows < 60, `${rows} rows`);
  assert.deepEqual(page.wrong, []);
});

/** Works off a fan-out, many tasks with each call. */
async function workOff(runId) {
  for (;;) {
    const claimed = await quick("/v1/tasks/claim", { worker: "load", queues: ["default"], max: 100, wait_ms: 200 });
    const tasks = claimed?.tasks ?? [];
    if (tasks.length) await quick("/v1/tasks/batch", { items: tasks.map((task) => ({ op: "complete", task_id: task.task_id, epoch: task.epoch, output: { n: task.step_id } })) });
    else if ((await server.record(runId)).ended_at) return;
  }
}

/** Scrolls from the top to the bottom and tells the longest frames. */
function scrolled() {
  const place = document.querySelector(".tl-scroll");
  place.scrollTop = 0;
  return new Promise((resolve) => {
    const long = [];
    const watcher = new PerformanceObserver((list) => long.push(...list.getEntries().map((entry) => entry.duration)));
    watcher.observe({ type: "long-animation-frame", buffered: false });
    const gaps = [];
    let last = performance.now();
    let frames = 0;
    const frame = (now) => {
      gaps.push(now - last);
      last = now;
      frames += 1;
      place.scrollTop += frames % 40 === 0 ? 30_000 : 240;
      if (frames < 240) requestAnimationFrame(frame);
      else setTimeout(() => {
        watcher.disconnect();
        resolve({ long: long.filter((length) => length > 50), gap: Math.max(...gaps.slice(1)), lanes: document.querySelectorAll(".tl-row").length });
      }, 100);
    };
    requestAnimationFrame(frame);
  });
}

/** The longest task of the page while it scrolls, in processor time: what a busy machine adds is not in it. */
async function longestTask(page) {
  await browser.startTracing(page, { categories: ["toplevel", "devtools.timeline", "disabled-by-default-devtools.timeline"] });
  await page.evaluate(scrolled);
  const { traceEvents: events } = JSON.parse((await browser.stopTracing()).toString());
  const isMain = (event) => event.name === "thread_name" && event.args?.name === "CrRendererMain";
  const threads = new Set(events.filter(isMain).map((event) => `${event.pid} ${event.tid}`));
  const tasks = events.filter((event) => event.name.endsWith("RunTask") && event.tdur !== undefined && threads.has(`${event.pid} ${event.tid}`));
  assert.ok(tasks.length > 100, `${tasks.length} tasks were seen`);
  return Math.max(...tasks.map((task) => task.tdur)) / 1_000;
}

test(`the timeline of ${ITEMS} steps scrolls without a frame over ${FRAME_MS} ms`, { timeout: 1_800_000 }, async (t) => {
  await server.apply("fan", "{workflow: fan, steps: [{id: item, for_each: input.items, parallel: 1000, task: load.item}]}");
  const { run_id: id } = await server.run("fan", { items: Array.from({ length: ITEMS }, (_, n) => n) });
  const began = Date.now();
  await Promise.all(Array.from({ length: 4 }, () => workOff(id)));
  t.diagnostic(`${ITEMS} items worked off in ${Date.now() - began} ms`);
  const read = Date.now();
  const timeline = await server.call("GET", `/v1/runs/${id}/timeline`);
  t.diagnostic(`the timeline is read in ${Date.now() - read} ms, ${Math.round(JSON.stringify(timeline).length / 1024)} KiB`);
  assert.equal(timeline.rows.length, ITEMS + 1);
  const page = await open(context, `${server.url}/runs/${id}`);
  await page.locator(".tl-row").first().waitFor();
  const tries = [];
  for (let n = 0; n < TRIES && !tries.some((one) => !one.long.length); n += 1) tries.push(await page.evaluate(scrolled));
  const best = tries.sort((one, other) => one.long.length - other.long.length)[0];
  const longest = await longestTask(page);
  t.diagnostic(`longest time between two frames ${Math.round(best.gap)} ms; frames over ${FRAME_MS} ms: ${best.long.length}; longest task ${longest.toFixed(1)} ms of processor time; ${best.lanes} lanes in the page`);
  // On a machine that has other things to do, frames are late whatever the page does; then its own work is what counts.
  if (best.long.length) assert.ok(longest < FRAME_MS, JSON.stringify({ longest, tries }));
  assert.ok(best.lanes < 80);
  for (const [name, what] of [["events", ".ev-row"], ["graph", ".node"], ["data", ".output"]]) {
    const opened = Date.now();
    await page.locator(`#tab-${name}`).click();
    await page.locator(what).first().waitFor();
    t.diagnostic(`${name} of ${ITEMS} steps is there after ${Date.now() - opened} ms`);
  }
  assert.deepEqual(page.wrong, []);
});
