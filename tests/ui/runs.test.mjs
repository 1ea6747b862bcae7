// The list of runs: filters are the address, rows are live, root causes are one line, many runs are one deed.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Server, browse, open, until } from "./lib.mjs";

const GATE = "workflow: gate\nsteps: [{id: yes, approval: {title: 'Ship?', approvers: [ana]}}]\n";
const BELL = "workflow: bell\nsteps: [{id: ring, signal: bell, deadline: 1h}]\n";
const DRIVE = "workflow: drive\nsteps: [{id: copy, task: drive.copy, connection: 'drive/ana', deadline: 1h}]\n";

let server, browser, context;

before(async () => {
  [server, browser] = await Promise.all([Server.begin(), browse()]);
  context = await browser.newContext();
  for (const [id, text] of Object.entries({ gate: GATE, bell: BELL, drive: DRIVE })) await server.apply(id, text);
});

after(async () => {
  await browser.close();
  await server.stop();
});

test("an empty list says how a run comes to be", async () => {
  const page = await open(context, server.url);
  await page.getByRole("heading", { name: "No runs yet." }).waitFor();
  assert.deepEqual(page.wrong, []);
  await page.close();
});

test("a run appears, changes and leaves a filter without a reload", async () => {
  const page = await open(context, `${server.url}/?state=waiting_on_approval`);
  await page.getByRole("heading", { name: "No run is like this now." }).waitFor();
  const { run_id: id } = await server.run("gate", {}, { labels: { team: "blue" } });
  const row = page.locator(`.row[data-key="${id}"]`);
  await row.waitFor();
  assert.equal(await row.getAttribute("data-state"), "waiting_on_approval");
  assert.equal(await row.locator(".row-summary").textContent(), (await server.record(id)).summary);
  await server.call("POST", `/v1/runs/${id}/approve`, { decision_by: "ana" });
  await row.waitFor({ state: "detached" });
  assert.deepEqual(page.wrong, []);
  await page.close();
});

test("filters are the address and the query of the API", async () => {
  const { run_id: id } = await server.run("bell", {}, { labels: { team: "red" } });
  const page = await open(context, server.url);
  await page.locator(".filter-input").fill("label.team=red");
  await page.keyboard.press("Enter");
  await page.waitForURL(/label\.team=red/);
  await page.locator('[data-toggle="waiting_on_tool"]').click();
  await page.waitForURL(/state=waiting_on_tool/);
  await page.locator(`.row[data-key="${id}"]`).waitFor();
  assert.equal(await page.locator(".row").count(), 1);
  const asked = page.waitForRequest((request) => request.url().includes("/v1/runs?"));
  await page.reload();
  const query = new URL((await asked).url()).searchParams;
  assert.equal(query.get("label.team"), "red");
  assert.deepEqual(query.getAll("state"), ["waiting_on_tool"]);
  await page.getByRole("button", { name: "Remove team red" }).click();
  await page.waitForURL((url) => !url.search.includes("team"));
  await page.locator(".filter-input").fill("nonsense");
  await page.keyboard.press("Enter");
  await page.getByRole("alert").filter({ hasText: "NAME=VALUE" }).waitFor();
  assert.deepEqual(page.wrong, []);
  await page.close();
});

test("runs that wait for one connection are one line with one button", async () => {
  await server.call("POST", "/v1/connections/drive/ana/broken", {});
  const ids = [];
  for (let n = 0; n < 3; n += 1) ids.push((await server.run("drive")).run_id);
  for (const id of ids) await server.in(id, "waiting_on_auth");
  const page = await open(context, server.url);
  const cause = page.locator('[data-cause="connection drive/ana"]');
  await cause.getByText("3 runs wait for drive/ana to be reconnected.").waitFor();
  await cause.getByRole("button", { name: "Reconnect once" }).click();
  for (const id of ids) await until(async () => (await server.record(id)).state !== "waiting_on_auth", "the run goes on");
  await cause.waitFor({ state: "detached" });
  assert.deepEqual(page.wrong, []);
  await page.close();
});

test("a deed for all runs of a filter is counted first and then done", async () => {
  const ids = [];
  for (let n = 0; n < 4; n += 1) ids.push((await server.run("gate", {}, { labels: { batch: "one" } })).run_id);
  const page = await open(context, `${server.url}/?label.batch=one`);
  await page.getByRole("button", { name: "Act on all of these" }).click();
  await page.getByText("4 runs would be asked.").waitFor();
  for (const id of ids) assert.equal((await server.record(id)).state, "waiting_on_approval", "counting changes nothing");
  await page.locator("[data-confirm=bulk]").click();
  await page.locator("dialog").waitFor({ state: "detached" });
  for (const id of ids) assert.equal((await server.record(id)).state, "canceled");
  await page.locator('.row[data-state="canceled"]').nth(3).waitFor();
  assert.deepEqual(page.wrong, []);
  await page.close();
});

test("the keyboard alone finds, opens and comes back", async () => {
  const { run_id: id } = await server.run("bell");
  const page = await open(context, server.url);
  await page.locator(".row").first().waitFor();
  await page.keyboard.press("j");
  await page.keyboard.press("j");
  await page.keyboard.press("k");
  assert.equal(await page.evaluate(() => document.activeElement?.closest("li")?.dataset.key), id);
  await page.keyboard.press("Enter");
  await page.waitForURL(new RegExp(`/runs/${id}$`));
  await page.locator(".run-said").waitFor();
  await page.keyboard.press("g");
  await page.keyboard.press("r");
  await page.waitForURL((url) => url.pathname === "/");
  await page.locator(".row").first().waitFor();
  await page.keyboard.press("/");
  assert.equal(await page.evaluate(() => document.activeElement?.className), "filter-input");
  await page.keyboard.press("Escape");
  await page.keyboard.press("?");
  await page.getByRole("heading", { name: "Keys" }).waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("Control+k");
  await page.keyboard.type("stalled");
  await page.keyboard.press("Enter");
  await page.waitForURL(/state=stalled/);
  await page.keyboard.press("Control+k");
  await page.keyboard.type(id);
  await page.keyboard.press("Enter");
  await page.waitForURL(new RegExp(`/runs/${id}$`));
  assert.deepEqual(page.wrong, []);
  await page.close();
});

test("a refusal is shown in words with a way to try again", async () => {
  const page = await open(context, `${server.url}/?blocking_reason=nonsense`);
  const refusal = page.getByRole("alert").filter({ hasText: "is none of" });
  await refusal.waitFor();
  await refusal.getByRole("button", { name: "Try again" }).waitFor();
  await page.close();
});
