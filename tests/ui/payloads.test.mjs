// Payloads that JavaScript cannot hold: every screen shows them as they are written, and a form sends back what nobody touched.

import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { Server, browse, endAll, open, sees, sweep, until } from "./lib.mjs";

const WORKFLOWS = {
  relay: "{workflow: relay, steps: [{id: a, task: echo, with: '${{ input }}'}, {id: s, signal: news}, {id: b, task: echo, with: '${{ steps.s.output }}'}], output: '${{ steps.a.output }}'}",
  asks: "{workflow: asks, steps: [{id: g, approval: {title: 'Go?', subject: '${{ input }}', approvers: [ana], form: {type: object, properties: {n: {type: integer, title: Number}}}}}, {id: a, task: echo, with: '${{ steps.g.output }}'}]}",
  bare: "{workflow: bare, steps: [{id: g, approval: {title: 'Bare?', subject: '${{ input.v }}', approvers: [ana]}}]}",
  fixes: "{workflow: fixes, steps: [{id: a, task: echo, with: '${{ input }}'}]}",
};

const LONG = "7".repeat(5_000);
/** By name, as they are written. */
const VALUES = {
  half: String.raw`"half \ud83d"`,
  large: "1e400",
  even: "18446744073709551616",
  odd: "18446744073709551617",
  small: "-0",
  exact: "0.1234567890123456789012345",
  money: "1.50",
  digits: LONG,
  twice: '{"a":1,"a":2}',
  nul: String.raw`"nul \u0000 inside"`,
  line: '"line\u2028end"',
  empty: '{"":[]}',
};
const ALL = `{${Object.entries(VALUES).map(([name, text]) => `"${name}":${text}`).join(",")}}`;
/** What a reader must find; the long number is cut. */
const SEEN = [String.raw`\ud83d`, "1e400", "18446744073709551616", "18446744073709551617", "-0", VALUES.exact, "1.50", String.raw`\u0000`];

let server, browser, context;

before(async () => {
  [server, browser] = await Promise.all([Server.begin(), browse()]);
  context = await browser.newContext();
  for (const [id, text] of Object.entries(WORKFLOWS)) await server.apply(id, text);
});

afterEach(() => sweep(context));

after(async () => {
  await browser.close();
  await server.stop();
  await endAll();
});

/** @param {string} workflow @param {string} input */
async function begin(workflow, input) {
  return (await server.call("POST", "/v1/runs", `{"workflow":"${workflow}","input":${input}}`)).run_id;
}

/** The next task, and the text of its input. @param {string} id */
async function claim(id) {
  const response = await fetch(`${server.url}/v1/tasks/claim`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ worker: "w", queues: ["default"], wait_ms: 20_000 }) });
  const text = await response.text();
  const { run_id: run, task_id: task, epoch } = JSON.parse(text).tasks[0];
  assert.equal(run, id);
  const say = (/** @type {string} */ what, /** @type {string} */ fields) => server.call("POST", `/v1/tasks/${task}/${what}`, `{"epoch":${epoch},${fields}}`);
  return { text, say };
}

/** @param {string} told @param {string} where */
function holdsAll(told, where) {
  for (const part of SEEN) assert.ok(told.includes(part), `${where} lacks ${part}: ${told.slice(0, 2_000)}`);
}

test("a run shows its input, outputs and signal as they are written, on every tab", async () => {
  const id = await begin("relay", ALL);
  await (await claim(id)).say("complete", `"output":${ALL}`);
  await server.call("POST", `/v1/runs/${id}/signals/news`, `{"payload":${ALL}}`);
  await (await claim(id)).say("complete", `"output":${ALL}`);
  await server.in(id, "succeeded");
  const page = await open(context, `${server.url}/runs/${id}`);
  await sees(page, "succeeded");
  for (const tab of ["graph", "events", "explain", "timeline"]) {
    await page.locator(`#tab-${tab}`).click();
    await until(async () => (await page.locator(".tab-body").innerText()).trim() !== "", `${tab} shows something`);
    assert.equal(await page.locator(".tab-body [role=alert]").count(), 0, tab);
  }
  await page.locator("#tab-data").click();
  for (const name of ["Input", "Output"]) {
    const panel = page.locator(".data > .panel").filter({ has: page.getByRole("heading", { name, exact: true }) });
    await panel.locator(".leaf").first().waitFor();
    holdsAll(await panel.innerText(), name);
    await panel.getByRole("button", { name: "5,000 characters" }).click();
    assert.ok((await panel.innerText()).includes(LONG), "all digits when asked for");
  }
  for (const step of ["a", "s", "b"]) {
    const shown = page.locator(`.output[data-step="${step}"]`);
    await shown.locator("summary").first().click();
    await shown.locator(".leaf").first().waitFor();
    holdsAll(await shown.innerText(), step);
  }
  assert.deepEqual(page.wrong, []);
  await page.close();
});

test("the beginning of a large output is its own text", async () => {
  const id = await begin("fixes", "1");
  const large = `[18446744073709551617,${Array.from({ length: 20_000 }, (_, n) => `1.${n}0`).join(",")}]`;
  await (await claim(id)).say("complete", `"output":${large}`);
  const page = await open(context, `${server.url}/runs/${id}?tab=data`);
  const step = page.locator('.output[data-step="a"]');
  await step.locator("summary").first().click();
  await step.locator(".beginning pre").waitFor();
  const told = await step.locator(".beginning pre").innerText();
  assert.ok(told.startsWith("[\n  18446744073709551617,\n  1.00,\n  1.10,"), told.slice(0, 100));
  await step.getByRole("button", { name: /Show all/ }).click();
  await step.locator(".tree").first().waitFor();
  assert.deepEqual(page.wrong, []);
  await page.close();
});

test("the inbox shows a subject as it is written, and its form sends a number as it was typed", async () => {
  const bare = await Promise.all(["18446744073709551616", "1e400", '"half \\ud83d"', LONG, VALUES.twice].map((value) => begin("bare", `{"v":${value}}`)));
  const id = await begin("asks", ALL);
  const page = await open(context, `${server.url}/inbox?run=${id}&step=g`);
  const article = page.locator("article");
  await article.locator(".value").waitFor();
  const told = await article.innerText();
  for (const part of SEEN.filter((part) => !part.startsWith("\\"))) assert.ok(told.includes(part), `${part}: ${told.slice(0, 2_000)}`);
  assert.ok(told.includes(LONG));
  await page.getByLabel("Number").fill("18446744073709551617");
  await page.getByLabel("Who decides").fill("ana");
  await page.getByRole("button", { name: "Approve" }).click();
  await page.locator(".decided").waitFor();
  const { text, say } = await claim(id);
  assert.match(text, /"n":18446744073709551617\b/);
  await say("complete", '"output":1');
  for (const [at, run] of bare.entries()) {
    await page.goto(`${server.url}/inbox?run=${run}&step=g`);
    await article.locator("form").waitFor();
    if (at < 2) assert.ok((await article.innerText()).includes(["18446744073709551616", "1e400"][at]));
  }
  assert.deepEqual(page.wrong, []);
  await page.close();
});

test("an event is shown as it is stored", async () => {
  const id = await begin("fixes", ALL);
  const task = await claim(id);
  await task.say("fail", '"class":"validation","message":"no","details":{"n":9007199254740993}');
  const page = await open(context, `${server.url}/runs/${id}?tab=events&by=time`);
  const { events } = await server.call("GET", `/v1/runs/${id}/events`);
  const failed = events.findIndex((/** @type {any} */ event) => JSON.stringify(event.payload).includes('"details"'));
  await page.locator(".ev-open").nth(failed).click();
  const told = await page.locator("pre.raw").innerText();
  assert.ok(told.includes('"n": 9007199254740993'), told);
  assert.deepEqual(page.wrong, []);
  await page.close();
});

test("a correction sends back what nobody touched, byte for byte", async () => {
  const untouched = await begin("fixes", ALL);
  await (await claim(untouched)).say("fail", '"class":"validation","message":"no"');
  const page = await open(context, `${server.url}/runs/${untouched}?tab=handoff`);
  const correct = async (/** @type {(field: import("playwright-core").Locator) => Promise<void>} */ change) => {
    await page.locator(".advised [data-action=resolve_correct]").click();
    const field = page.getByLabel("Corrected input");
    await field.waitFor();
    await change(field);
    await page.locator('[data-confirm="resolve_correct"]').click();
    await page.locator("dialog").waitFor({ state: "detached" });
  };
  await correct(async (field) => holdsAll(await field.inputValue(), "the form"));
  const again = await claim(untouched);
  assert.ok(again.text.includes(`"input":${ALL}`), again.text.slice(0, 500));
  await again.say("fail", '"class":"validation","message":"not yet"');
  await page.reload();
  // One field is changed; the others go back as they are written.
  await correct(async (field) => field.fill((await field.inputValue()).replace("1.50", "2.50")));
  const { text } = await claim(untouched);
  for (const part of ["2.50", ...SEEN.filter((part) => part !== "1.50"), LONG]) assert.ok(text.includes(part), part);
  assert.match(text, /"a":\s*1,\s*"a":\s*2/, "both of two equal keys");
  assert.deepEqual(page.wrong, []);
  await page.close();
});
