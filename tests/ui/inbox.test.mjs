// The inbox: decisions are made with a click or the keyboard, and what others decide appears by itself.

import assert from "node:assert/strict";
import { test } from "node:test";
import { gate, staged, visit } from "./guard.mjs";

const held = staged();

const FORM = `      form:
        type: object
        required: [account]
        properties:
          account: { type: string, title: Account, pattern: "^[A-Z]{2}$" }
`;

/** @param {string} [more] */
async function begin(more) {
  await held.server.upload(gate(more));
  const { run_id: run } = await held.server.post("/v1/runs", { workflow: "gate" });
  return run;
}

/** @param {string} run */
const addressOf = (run) => `${held.server.url}/inbox?run=${run}&step=g`;

test("an empty inbox says so", async () => {
  const page = await held.browser.newPage();
  await visit(page, `${held.server.url}/inbox`);
  await page.waitForSelector("text=Nobody waits for a decision");
  await page.close();
});

test("a decision shows its subject, digest, who, deadline and what happens then, and is made with its form", async () => {
  const run = await begin(FORM);
  const page = await held.browser.newPage();
  await visit(page, addressOf(run));
  await page.waitForSelector("article form");
  const said = await page.innerText("article");
  const [{ subject_digest: digest }] = (await held.server.get("/v1/approvals")).approvals;
  for (const part of ["Buy desk for 420?", "desk", "420", "ana, ben", "then it fails", digest.slice(0, 12)]) assert.ok(said.includes(part), `${part}: ${said}`);
  await page.getByLabel("Who decides").fill("ana");
  await page.getByLabel("Account").fill("x");
  await page.getByRole("button", { name: "Approve" }).click();
  await page.waitForSelector("[aria-invalid=true]");
  await page.getByLabel("Account").fill("NO");
  await page.getByLabel("Comment").fill("go on");
  await page.getByRole("button", { name: "Approve" }).click();
  await page.waitForSelector(".decided");
  assert.ok((await page.innerText(".decided")).includes("ana approved"));
  assert.equal((await held.server.get(`/v1/runs/${run}`)).state, "succeeded");
  await page.close();
});

test("what somebody else decides is shown without reload, and is no error", async () => {
  const run = await begin();
  const page = await held.browser.newPage();
  await visit(page, addressOf(run));
  await page.waitForSelector("article form");
  await page.waitForSelector(".live[data-live=live]");
  await held.server.post(`/v1/runs/${run}/approve`, { decision_by: "ben", comment: "mine" });
  await page.waitForSelector(".decided");
  const said = await page.innerText(".decided");
  assert.ok(said.includes("ben approved") && said.includes("mine"), said);
  assert.equal(await page.locator(".toast.tone-bad, .fault").count(), 0);
  await page.close();
});

test("who is too late sees the other decision", async () => {
  const run = await begin();
  const page = await held.browser.newPage();
  // No news reaches this page.
  await page.route("**/v1/stream*", (route) => route.abort());
  await visit(page, addressOf(run));
  await page.getByLabel("Who decides").fill("ana");
  await held.server.post(`/v1/runs/${run}/reject`, { decision_by: "ben" });
  await page.getByRole("button", { name: "Approve" }).click();
  await page.waitForSelector(".decided");
  assert.ok((await page.innerText(".decided")).includes("ben rejected"));
  await page.close();
});

test("the keyboard alone is enough", async () => {
  const runs = [await begin(), await begin()];
  const page = await held.browser.newPage();
  await visit(page, `${held.server.url}/inbox`);
  await page.waitForSelector(".inbox-row");
  await page.keyboard.press("j");
  await page.waitForSelector(".inbox-row[aria-current]");
  const first = await page.textContent(".inbox-row[aria-current] .inbox-of");
  assert.ok(first?.includes("gate"));
  await page.getByLabel("Who decides").focus();
  await page.keyboard.press("Control+a");
  await page.keyboard.type("ana");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".decided");
  const states = await Promise.all(runs.map(async (run) => (await held.server.get(`/v1/runs/${run}`)).state));
  assert.deepEqual(states.sort(), ["succeeded", "waiting_on_approval"]);
  await page.close();
});
