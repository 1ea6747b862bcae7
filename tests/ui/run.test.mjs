// One run: every waiting state is reached with a real worker, shown with its reason and left by its button; stalls,
// recovery, the past, two tabs, eight tabs, a server that goes away.

import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, test } from "node:test";
import { PATIENCE, Server, browse, endAll, open, sees, shownState, sweep, until } from "./lib.mjs";

const WORKFLOWS = {
  gate: "{workflow: gate, steps: [{id: yes, approval: {title: 'Ship it?', approvers: [ana], deadline: 1h, at_deadline: fail}}]}",
  formed: "{workflow: formed, steps: [{id: yes, approval: {title: 'How much?', approvers: ['role:boss'], deadline: 1h, form: {type: object, required: [amount], properties: {amount: {type: integer, minimum: 1, title: Amount}}}}}]}",
  bell: "{workflow: bell, steps: [{id: ring, signal: bell, deadline: 1h}]}",
  parent: "{workflow: parent, steps: [{id: part, child: bell}]}",
  nap: "{workflow: nap, steps: [{id: rest, sleep: 1h}]}",
  auth: "{workflow: auth, steps: [{id: copy, task: once.auth, connection: drive/ana}]}",
  correct: "{workflow: correct, steps: [{id: load, task: needs.zip, with: {zip: '${{ input.zip }}', name: Ana}}]}",
  flaky: "{workflow: flaky, defaults: {retry: {first: 1h, max: 1h, max_attempts: 3}}, steps: [{id: fetch, task: once.flaky}]}",
  held: "{workflow: held, defaults: {lease: 2s}, steps: [{id: crawl, task: slow, recovery: {lost: hold}}]}",
  again: "{workflow: again, defaults: {lease: 2s}, steps: [{id: crawl, task: slow}]}",
  work: "{workflow: work, steps: [{id: first, task: slow}, {id: second, task: quick}]}",
  large: "{workflow: large, steps: [{id: count, task: large}]}",
  lonely: "{workflow: lonely, steps: [{id: greet, task: nobody.greets}]}",
  saga: "{workflow: saga, saga: true, steps: [{id: book, task: quick, compensate: slow}, {id: ship, task: breaks}]}",
};

/** Does what `first` says the first time it is called for a run, and succeeds from then on. */
const once = (folder, first) => `test -f ${folder}/$ABIDE_RUN_ID || { touch ${folder}/$ABIDE_RUN_ID; ${first}; }; echo '{"ok": true}'`;

let server, browser, context, folder, worker;

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "abide-ui-flags-"));
  [server, browser] = await Promise.all([Server.begin(), browse()]);
  context = await browser.newContext();
  for (const [id, text] of Object.entries(WORKFLOWS)) await server.apply(id, text);
  worker = server.worker({
    quick: "echo '{\"done\": true}'",
    large: "seq -s , 1 20000 | sed 's/.*/[&]/'",
    breaks: "echo 'no carrier goes there' >&2; exit 70",
    "once.auth": once(folder, "echo 'the token has expired' >&2; exit 78"),
    "once.flaky": once(folder, "echo 'the feed is down' >&2; exit 75"),
    "needs.zip": "grep -q '\"zip\":\"' || { echo 'the zip is missing' >&2; exit 65; }; echo '{\"ok\": true}'",
  });
});

afterEach(() => sweep(context));

after(async () => {
  await browser.close();
  await server.stop();
  await endAll();
  await rm(folder, { recursive: true, force: true });
});

/** Starts a run, waits for its state, opens its page and checks that it says what the record says. */
async function reached(workflow, state, input) {
  const { run_id: id } = await server.run(workflow, input);
  const page = await open(context, `${server.url}/runs/${id}`);
  await sees(page, state);
  await agrees(page, id);
  return { id, page };
}

/** The head shows the record's own sentence. Sentences with a time in them grow older between two reads. */
async function agrees(page, id) {
  await until(async () => (await page.locator(".run-said").textContent()) === (await server.record(id)).summary, "the page says what the record says");
}

/** Presses a button of the head; actions beyond the first few are behind a menu. */
async function press(page, action) {
  const button = page.locator(`.run-actions [data-action="${action}"]`).first();
  await button.waitFor({ state: "attached" });
  if (!(await button.isVisible())) await page.locator(".run-actions summary").click();
  await button.click();
}

const confirm = (page, action) => page.locator(`[data-confirm="${action}"]`).click();

async function done(page) {
  assert.deepEqual(page.wrong, []);
  await page.close();
}

test("waiting on approval: a person says yes", async () => {
  const { page } = await reached("gate", "waiting_on_approval");
  assert.match(await page.locator(".run-said").textContent(), /ana/);
  await press(page, "approve");
  await sees(page, "succeeded");
  await done(page);
});

test("waiting on approval with a form: what is missing is said beside its field", async () => {
  const { id, page } = await reached("formed", "waiting_on_approval");
  await press(page, "approve");
  await page.getByLabel("Who decides").fill("ben");
  await confirm(page, "approve");
  await page.locator(".fault").filter({ hasText: "needed" }).waitFor();
  await page.getByLabel("Amount").fill("0");
  await confirm(page, "approve");
  await page.locator(".fault").filter({ hasText: "At least 1" }).waitFor();
  await page.getByLabel("Amount").fill("7");
  await confirm(page, "approve");
  await sees(page, "succeeded");
  const step = await server.call("GET", `/v1/runs/${id}/steps/yes`);
  assert.deepEqual(step.output.form, { amount: 7 });
  assert.equal(step.output.by, "ben");
  await done(page);
});

test("waiting on a tool: its signal is sent", async () => {
  const { page } = await reached("bell", "waiting_on_tool");
  await press(page, "signal");
  await sees(page, "succeeded");
  await done(page);
});

test("waiting on auth: reconnected once", async () => {
  const { page } = await reached("auth", "waiting_on_auth");
  assert.match(await page.locator(".run-said").textContent(), /drive\/ana/);
  await press(page, "reconnect");
  await sees(page, "succeeded");
  await done(page);
});

test("waiting on a child: the chain leads to the one that can be moved", async () => {
  const { id, page } = await reached("parent", "waiting_on_child");
  await page.locator("#tab-explain").click();
  await page.locator(".chain-link[data-kind=run] a").nth(1).click();
  await page.waitForURL((url) => !url.pathname.includes(id));
  await sees(page, "waiting_on_tool");
  await press(page, "signal");
  await sees(page, "succeeded");
  await page.goto(`${server.url}/runs/${id}`);
  await sees(page, "succeeded");
  await done(page);
});

test("waiting on a timer: skipped, after a question", async () => {
  const { page } = await reached("nap", "waiting_on_timer");
  await press(page, "resolve_skip");
  assert.equal(await shownState(page), "waiting_on_timer", "nothing happens before the answer");
  await confirm(page, "resolve_skip");
  await sees(page, "succeeded");
  await done(page);
});

test("waiting on an operator: the handoff offers the refused input for correction", async () => {
  const { id, page } = await reached("correct", "waiting_on_operator", { zip: null });
  await page.locator("#tab-handoff").click();
  await page.locator(".advised [data-action=resolve_correct]").click();
  const field = page.getByLabel("Corrected input");
  assert.deepEqual(JSON.parse(await field.inputValue()), { zip: null, name: "Ana" });
  await field.fill("{ broken");
  await confirm(page, "resolve_correct");
  await page.locator(".fault").filter({ hasText: "not JSON" }).waitFor();
  await field.fill('{"zip":"20095","name":"Ana"}');
  await confirm(page, "resolve_correct");
  await sees(page, "succeeded");
  assert.equal((await server.record(id)).state, "succeeded");
  await done(page);
});

test("a scheduled retry is tried now", async () => {
  const { page } = await reached("flaky", "retry_scheduled");
  await press(page, "retry_now");
  await sees(page, "succeeded");
  await done(page);
});

test("queued without a listener: the reason names the queue, and a worker ends it", async () => {
  const { page } = await reached("lonely", "queued");
  assert.match(await page.locator(".run-said").textContent(), /no worker listens/i);
  const late = server.worker({ "nobody.greets": "echo '{}'" });
  await sees(page, "succeeded");
  await late.stop("SIGKILL");
  await done(page);
});

test("paused and resumed", async () => {
  const { page } = await reached("bell", "waiting_on_tool");
  await press(page, "pause");
  await sees(page, "paused");
  await press(page, "resume");
  await sees(page, "waiting_on_tool");
  await done(page);
});

test("a killed worker's stall rests with `lost: hold`, appears without a reload, and its button works", async () => {
  const doomed = server.worker({ slow: "sleep 20; echo '{}'" }, ["--name", "doomed"]);
  const { id, page } = await reached("held", "running");
  await doomed.stop("SIGKILL");
  await sees(page, "stalled");
  await agrees(page, id);
  assert.match(await page.locator(".run-said").textContent(), /heartbeat/);
  await page.locator("#tab-explain").click();
  await until(async () => (await page.locator(".triage > li").count()) === 5, "the five answers");
  const rescuer = server.worker({ slow: "echo '{}'" }, ["--name", "rescuer"]);
  await press(page, "retry_now");
  await sees(page, "succeeded");
  await rescuer.stop("SIGKILL");
  await done(page);
});

test("a killed worker's loss and what recovery did appear without a reload", async () => {
  const doomed = server.worker({ slow: "sleep 20; echo '{}'" }, ["--name", "doomed"]);
  const { id, page } = await reached("again", "running");
  await page.locator("#tab-events").click();
  await page.locator(".ev-kind").filter({ hasText: "task.claimed" }).waitFor();
  await doomed.stop("SIGKILL");
  await page.locator(".ev-kind").filter({ hasText: "task.lost" }).waitFor();
  await page.locator(".ev-kind").filter({ hasText: "run.stalled" }).waitFor();
  const rescuer = server.worker({ slow: "echo '{}'" }, ["--name", "rescuer"]);
  await sees(page, "succeeded");
  await page.locator("#tab-timeline").click();
  await page.locator(".tl-row .seg-executing.seg-lost").waitFor();
  assert.equal(await page.locator(".tl-row .seg-executing").count(), 2, "an attempt that was lost and one that was not");
  assert.equal((await server.record(id)).state, "succeeded");
  await rescuer.stop("SIGKILL");
  await done(page);
});

test("a saga that unwinds is seen doing it; a cancel is seen being asked for", async () => {
  const slow = server.worker({ slow: "sleep 8; echo '{}'" }, ["--name", "slow"]);
  const unwinding = await reached("saga", "compensating");
  await sees(unwinding.page, "failed");
  assert.match(await unwinding.page.locator(".notice.tone-bad").textContent(), /Rolled back/i);
  await done(unwinding.page);
  const { page } = await reached("work", "running");
  await press(page, "cancel");
  await confirm(page, "cancel");
  await sees(page, "cancel_requested");
  await sees(page, "canceled");
  await slow.stop("SIGKILL");
  await done(page);
});

test("a refresh in the middle changes nothing and only reads", async () => {
  const { id, page } = await reached("bell", "waiting_on_tool");
  const before = await server.record(id);
  const methods = new Set();
  page.on("request", (request) => methods.add(request.method()));
  for (let n = 0; n < 3; n += 1) {
    await page.reload();
    await sees(page, "waiting_on_tool");
  }
  assert.deepEqual([...methods], ["GET"]);
  assert.equal((await server.record(id)).as_of_seq, before.as_of_seq);
  await agrees(page, id);
  await done(page);
});

test("two tabs agree", async () => {
  const { id, page } = await reached("gate", "waiting_on_approval");
  const other = await open(context, `${server.url}/runs/${id}`);
  await sees(other, "waiting_on_approval");
  await press(page, "approve");
  await Promise.all([sees(page, "succeeded"), sees(other, "succeeded")]);
  assert.equal(await page.locator(".run-said").textContent(), await other.locator(".run-said").textContent());
  await done(page);
  await done(other);
});

test("the past is one slider away, for the whole page, and has an address", async () => {
  const { id, page } = await reached("flaky", "retry_scheduled");
  const last = (await server.record(id)).as_of_seq;
  await page.keyboard.press(",");
  await page.waitForURL(new RegExp(`at=${last - 1}`));
  await page.locator(".past").filter({ hasText: `event ${last - 1}` }).waitFor();
  assert.equal(await page.locator(".run-actions button").count(), 0, "nothing can be done in the past");
  await page.goto(`${server.url}/runs/${id}?at=1&tab=explain`);
  await sees(page, "queued");
  await page.locator(".explain-doing").filter({ hasText: "queued" }).waitFor();
  await page.getByRole("button", { name: "Back to now" }).click();
  await sees(page, "retry_scheduled");
  await press(page, "retry_now");
  await sees(page, "succeeded");
  await done(page);
});

test("events can be read as they are stored, with one key", async () => {
  const { id, page } = await reached("bell", "waiting_on_tool");
  await page.locator("#tab-events").click();
  await page.locator(".ev-row").first().waitFor();
  await page.keyboard.press("j");
  await page.keyboard.press("j");
  await page.keyboard.press("x");
  const stored = JSON.parse(await page.locator(".raw").textContent());
  const { events } = await server.call("GET", `/v1/runs/${id}/events`);
  assert.deepEqual(stored, events.find((event) => event.seq === stored.seq));
  await page.keyboard.press("Escape");
  await page.keyboard.press("t");
  await page.waitForURL(/by=time/);
  assert.equal(await page.locator(".ev-step").count(), 0);
  await done(page);
});

test("a large output shows its beginning, and all of it when asked for", async () => {
  const { id, page } = await reached("large", "succeeded");
  await page.locator("#tab-data").click();
  const step = page.locator('.output[data-step="count"]');
  await step.locator("summary").first().click();
  const shown = await step.locator(".beginning pre").innerText();
  assert.ok(shown.includes("  17,") && !shown.includes("20000"), shown);
  assert.equal(await step.getByRole("link", { name: "Download the output" }).getAttribute("href"), `/v1/runs/${id}/steps/count/output`);
  await step.getByRole("button", { name: "Show all" }).click();
  await step.locator(".tree", { hasText: "20000" }).waitFor();
  assert.equal(await step.locator(".beginning").count(), 0);
  await done(page);
});

test("data and graph show what the API has", async () => {
  const { id, page } = await reached("auth", "waiting_on_auth", { hello: { deep: [1, 2, 3] } });
  await page.locator("#tab-data").click();
  await page.locator(".tree .key").filter({ hasText: "hello" }).waitFor();
  await press(page, "reconnect");
  await sees(page, "succeeded");
  await page.locator(".output summary").first().click();
  await page.locator(".output .tree .key").filter({ hasText: "ok" }).waitFor();
  await page.locator("#tab-graph").click();
  await page.locator('.node[data-node="copy"][data-state="completed"]').waitFor();
  assert.equal((await server.record(id)).state, "succeeded");
  await done(page);
});

test("the keyboard alone looks around and acts", async () => {
  const { page } = await reached("formed", "waiting_on_approval");
  await page.locator(".tl-row").first().waitFor();
  await page.keyboard.press("]");
  await page.waitForURL(/tab=graph/);
  await page.keyboard.press("[");
  await page.keyboard.press("a");
  await page.getByLabel("Who decides").waitFor();
  await page.keyboard.press("Escape");
  await page.locator("dialog").waitFor({ state: "detached" });
  assert.equal(await shownState(page), "waiting_on_approval", "Escape decides nothing");
  await page.keyboard.press("a");
  await page.getByLabel("Who decides").fill("ben");
  await page.keyboard.press("Tab");
  await page.keyboard.type("3");
  await page.keyboard.press("Enter");
  await sees(page, "succeeded");
  await done(page);
});

for (const [name, options] of [["narrow", { viewport: { width: 380, height: 800 } }], ["dark", { colorScheme: "dark" }]]) {
  test(`every view of a run is whole when it is ${name}`, async () => {
    const { run_id: id } = await server.run("flaky");
    await server.in(id, "retry_scheduled");
    const other = await browser.newContext(options);
    const page = await open(other, server.url);
    await page.locator(".row").first().waitFor();
    await whole(page, name);
    for (const [view, there] of [["timeline", ".tl-row"], ["graph", ".node"], ["events", ".ev-row"], ["data", ".output"], ["explain", ".chain-link"]]) {
      await page.goto(`${server.url}/runs/${id}?tab=${view}`);
      await page.locator(there).first().waitFor();
      await whole(page, `${name} ${view}`);
    }
    assert.deepEqual(page.wrong, []);
    await other.close();
  });
}

/** Nothing sticks out to the side, and the colours are those that the system asks for. */
async function whole(page, what) {
  const seen = await page.evaluate(() => {
    const [red] = getComputedStyle(document.documentElement).backgroundColor.match(/\d+/g).map(Number);
    return { over: document.documentElement.scrollWidth - innerWidth, red, dark: matchMedia("(prefers-color-scheme: dark)").matches };
  });
  assert.ok(seen.over <= 0, `${what} is ${seen.over} px too wide`);
  assert.equal(seen.red < 60, seen.dark, `${what} has the background of its scheme`);
}

test("eight tabs stay live with one stream, and the next tab takes over", async () => {
  const many = await browser.newContext();
  const streams = [];
  many.on("request", (request) => new URL(request.url()).pathname.endsWith("/stream") && streams.push(request.url()));
  const { run_id: id } = await server.run("bell");
  // The first tab is the one that leads, and the one that is closed below.
  const pages = [await open(many, `${server.url}/runs/${id}`)];
  await pages[0].locator('.live[data-live="live"]').waitFor();
  for (let n = 1; n < 8; n += 1) pages.push(await open(many, `${server.url}/runs/${id}`));
  await Promise.all(pages.map((page) => sees(page, "waiting_on_tool")));
  await Promise.all(pages.map((page) => page.locator('.live[data-live="live"]').waitFor()));
  assert.equal(streams.length, 1, "one stream for all tabs");
  await server.call("POST", `/v1/runs/${id}/pause`, { reason: "test" });
  await Promise.all(pages.map((page) => sees(page, "paused")));
  assert.equal(streams.length, 1);
  await pages.shift().close();
  await until(async () => streams.length === 2, "the next tab opens the stream");
  await pages[0].locator('.live[data-live="live"]').waitFor();
  await server.call("POST", `/v1/runs/${id}/resume`, {});
  await Promise.all(pages.map((page) => sees(page, "waiting_on_tool")));
  for (const page of pages) assert.deepEqual(page.wrong, []);
  await many.close();
});

test("a server that goes away is said, and what was missed is there when it is back", { timeout: 300_000 }, async () => {
  const own = await Server.begin();
  await own.apply("bell", WORKFLOWS.bell);
  const { run_id: id } = await own.run("bell");
  const page = await open(context, `${own.url}/runs/${id}`);
  await sees(page, "waiting_on_tool");
  await page.locator('.live[data-live="live"]').waitFor();
  await own.restart(async () => {
    await page.locator('.live[data-live="reconnecting"]').waitFor();
    await page.locator('.live[data-live="stale"]').filter({ hasText: "Stale since" }).waitFor({ timeout: PATIENCE + 15_000 });
  });
  await own.call("POST", `/v1/runs/${id}/signals/bell`, { payload: null });
  await page.locator('.live[data-live="live"]').waitFor({ timeout: PATIENCE + 20_000 });
  await sees(page, "succeeded");
  await page.close();
  await own.stop();
});

test("a run that is not there is said so", async () => {
  const page = await open(context, `${server.url}/runs/run_none`);
  await page.getByRole("alert").getByRole("heading").waitFor();
  await page.close();
});
