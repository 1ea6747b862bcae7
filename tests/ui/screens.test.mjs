// Workflows, workers and queues, insights, contract: what each shows is what the API says, and it stays so by itself.

import assert from "node:assert/strict";
import { test } from "node:test";
import { gate, staged, visit } from "./guard.mjs";
import { until } from "./lib.mjs";

const held = staged();

test("a workflow shows its versions, steps, warnings, document and runs", async () => {
  await held.server.upload("workflow: pay\ntitle: Pay\nsteps:\n  - { id: charge, title: Charge, task: bank.charge }\n");
  await held.server.upload("workflow: pay\ntitle: Pay\nsteps:\n  - { id: charge, title: Charge the card, task: bank.charge, effect: external }\n  - { id: told, task: mail.tell }\n");
  await held.server.post("/v1/runs", { workflow: "pay" });
  const page = await held.browser.newPage();
  await visit(page, `${held.server.url}/workflows`);
  await page.getByRole("link", { name: "Pay" }).first().click();
  await page.waitForSelector(".workflow");
  assert.equal(await page.locator("[data-node]").count(), 2);
  assert.ok((await page.innerText(".faults")).includes("line"), "the warning of an external step without a probe");
  assert.ok((await page.innerText(".workflow-counts")).includes("Queued"));
  assert.ok((await page.innerText(".lines")).includes("Charge the card"));
  await page.locator(".version").nth(1).click();
  await page.waitForFunction(() => document.querySelectorAll("[data-node]").length === 1);
  assert.ok(page.url().endsWith("?version=1"));
  assert.ok((await page.innerText("main")).includes("version 1 of 2"));
  await page.goBack();
  await page.waitForFunction(() => document.querySelectorAll("[data-node]").length === 2);
  await page.close();
});

test("a queue whose handler nobody offers is said in words, and a worker shows its three proofs", async () => {
  await held.server.upload("workflow: slow\nsteps:\n  - { id: s, task: slow.work }\n");
  await held.server.post("/v1/runs", { workflow: "slow", run_id: "run_slow" });
  const page = await held.browser.newPage();
  await visit(page, `${held.server.url}/workers`);
  await page.waitForSelector("tr.unheard");
  assert.ok((await page.locator("tr.unheard", { hasText: "slow.work" }).innerText()).includes("No listener"));
  const task = await held.server.claim("hands-1", ["slow.work"]);
  await held.server.report(task, "heartbeat", { progress: { done: 3, total: 9, message: "a third" } });
  const worker = page.locator(".worker", { hasText: "hands-1" });
  await worker.waitFor();
  await worker.locator(".lease").waitFor();
  // The claim is told at once, progress is asked for now and then.
  await worker.filter({ hasText: "3 of 9" }).waitFor();
  const said = await worker.innerText();
  for (const part of ["Alive", "heartbeat", "Listening", "Progressing", "3 of 9", "run_slow"]) assert.ok(said.includes(part), `${part}: ${said}`);
  await page.close();
});

test("the contract is the table of the engine, and its counts are live", async () => {
  const contract = await held.server.get("/v1/contract");
  const page = await held.browser.newPage();
  await visit(page, `${held.server.url}/contract`);
  const states = await page.locator(".contract-node").evaluateAll((nodes) => nodes.map((node) => /** @type {HTMLElement} */ (node).dataset.state));
  assert.deepEqual(states.sort(), contract.states.map((/** @type {any} */ one) => one.state).sort());
  const text = await page.innerText("main");
  for (const one of contract.states) assert.ok(text.includes(one.means), one.state);
  await page.waitForSelector(".live[data-live=live]");
  const count = () => page.locator('.contract-node[data-state="waiting_on_approval"] .contract-count').innerText();
  assert.equal(await count(), "");
  await held.server.upload(gate());
  await held.server.post("/v1/runs", { workflow: "gate" });
  await page.waitForFunction(() => document.querySelector('.contract-node[data-state="waiting_on_approval"] .contract-count')?.textContent === "1");

  await page.locator('.contract-node[data-state="stalled"]').click();
  await page.waitForSelector(".contract-ways");
  const leads = contract.transitions.filter((/** @type {any} */ row) => row.layer === "run" && (row.from === "stalled" || row.to === "stalled")).length;
  assert.equal(await page.locator(".contract-edge").count(), leads);
  assert.equal(await page.locator(".contract-table tbody tr").count(), leads);
  await page.close();
});

test("insights are plots with their numbers as tables, by workflow and by tool", async () => {
  await held.server.upload("workflow: shaky\nsteps:\n  - { id: s, task: shaky.work, retry: { max_attempts: 2, first: 1ms } }\n  - { id: calm, task: calm.work, after: [s] }\n");
  const { run_id: run } = await held.server.post("/v1/runs", { workflow: "shaky" });
  await held.server.report(await held.server.claim("w", ["shaky.work"]), "fail", { class: "transient", message: "no" });
  await held.server.report(await held.server.claim("w", ["shaky.work"]), "complete", {});
  await held.server.report(await held.server.claim("w", ["calm.work"]), "complete", { warnings: ["nearly"] });
  await held.server.in(run, "completed_with_warnings");
  await until(async () => (await held.server.get("/v1/insights?workflow=shaky")).completed_with_warnings_rate === 1, "the warning is counted");
  const page = await held.browser.newPage();
  await visit(page, `${held.server.url}/insights?workflow=shaky`);
  await page.waitForSelector(".tiles");
  assert.ok((await page.locator(".tile", { hasText: "Retries that helped" }).innerText()).includes("100 %"));
  const byTool = page.getByRole("region", { name: "By tool" });
  const table = async (/** @type {string} */ title) => {
    const figure = byTool.locator("figure", { has: page.getByRole("heading", { name: title, exact: true }) });
    await figure.locator("summary").click();
    return figure.locator("tbody").innerText();
  };
  assert.match(await table("Tasks"), /shaky\.work\s+2\s+1/);
  assert.match(await table("Back-offs per task"), /shaky\.work\s+2\s+1\s+0\.5/);
  const helped = await table("Retries that helped");
  assert.match(helped, /shaky\.work\s+2\s+1\s+100 %/);
  assert.match(helped, /calm\.work\s+1\s+0\s+–/);
  assert.match(await table("Warnings per task"), /calm\.work\s+1\s+1\s+1/);
  assert.match(await table("Time in running, by tool"), /shaky\.work\s+2/);
  await page.getByRole("link", { name: "Retry scheduled" }).click();
  await page.waitForURL(`${held.server.url}/insights?workflow=shaky&state=retry_scheduled`);
  await byTool.getByRole("heading", { name: "Time in retry scheduled, by tool" }).waitFor();
  assert.equal(await byTool.locator(".range-row", { hasText: "calm.work" }).count(), 0);
  await page.getByLabel("Workflow", { exact: true }).selectOption("");
  await page.waitForURL(`${held.server.url}/insights?state=retry_scheduled`);
  const byWorkflow = page.getByRole("region", { name: "By workflow" });
  await byWorkflow.getByRole("heading", { name: "Time in retry scheduled, by workflow" }).waitFor();
  assert.equal(await byWorkflow.locator("figure", { hasText: "Retries that helped" }).locator(".bar-row", { hasText: "shaky" }).count(), 1);
  await page.close();
});

test("what was never tried again has no rate of retries that helped", async () => {
  await held.server.upload("workflow: tame\nsteps:\n  - { id: s, task: tame.work }\n");
  await held.server.post("/v1/runs", { workflow: "tame" });
  await until(async () => (await held.server.get("/v1/insights?workflow=tame")).runs === 1, "the run is counted");
  const page = await held.browser.newPage();
  await visit(page, `${held.server.url}/insights?workflow=tame`);
  await page.waitForSelector(".tiles");
  assert.match(await page.locator(".tile", { hasText: "Retries that helped" }).innerText(), /^–/);
  await page.close();
});

test("a server that cannot be reached is said, and read again when it is back", async () => {
  const page = await held.browser.newPage();
  await page.route("**/v1/insights*", (route) => route.abort());
  // A stream that opens meanwhile would read the screen again by itself, and take the button away.
  await page.route("**/v1/stream*", (route) => route.abort());
  await visit(page, `${held.server.url}/insights`);
  await page.waitForSelector("text=The server cannot be reached");
  await page.unroute("**/v1/insights*");
  await page.getByRole("button", { name: "Try again" }).click();
  await page.waitForSelector(".tiles, .rest");
  await page.close();
});
