// The page of a one-time link, in a browser without JavaScript.

import assert from "node:assert/strict";
import { test } from "node:test";
import { gate, staged } from "./guard.mjs";

const held = staged();

const FORM = `      form:
        type: object
        required: [account, limit]
        properties:
          account: { type: string, title: Account, pattern: "^[A-Z]{2}[0-9]+$" }
          limit: { type: integer, minimum: 1 }
          colour: { enum: [red, blue] }
`;

/** @param {string} run @param {string} whom */
async function linkFor(run, whom) {
  const { url } = await held.server.post(`/v1/runs/${run}/approvals/g/links`, { for: whom });
  return url;
}

async function plainPage() {
  const context = await held.browser.newContext({ javaScriptEnabled: false });
  return context.newPage();
}

test("an approval is given without JavaScript, and a refused form keeps what was typed", async () => {
  await held.server.upload(gate(FORM));
  const { run_id: run } = await held.server.post("/v1/runs", { workflow: "gate" });
  const url = await linkFor(run, "ana");
  const page = await plainPage();
  await page.goto(url);
  assert.equal(await page.textContent("h1"), "Buy desk for 420?");
  const said = await page.innerText("main");
  for (const part of ["ana", "then it fails", "desk", "420"]) assert.ok(said.includes(part), `${part} is missing in ${said}`);

  await page.fill("[name='form/account']", "nonsense");
  await page.fill("[name='form/limit']", "12");
  await page.selectOption("[name='form/colour']", { label: "blue" });
  await page.fill("[name=comment]", "because");
  await page.click("button[value=approve]");
  assert.equal(await page.inputValue("[name='form/account']"), "nonsense");
  assert.equal(await page.inputValue("[name='form/limit']"), "12");
  assert.equal(await page.inputValue("[name=comment]"), "because");
  assert.equal(await page.inputValue("[name='form/colour']"), '"blue"');
  assert.equal(await page.getAttribute("[name='form/account']", "aria-invalid"), "true");
  assert.ok((await page.textContent("#field-account-fault"))?.trim());
  assert.equal((await held.server.get(`/v1/runs/${run}`)).state, "waiting_on_approval");

  await page.fill("[name='form/account']", "NO12");
  await page.click("button[value=approve]");
  assert.equal(await page.textContent("h1"), "Approved");
  const { output } = await held.server.get(`/v1/runs/${run}/steps/g`);
  assert.deepEqual(output.form, { account: "NO12", limit: 12, colour: "blue" });
  assert.equal(output.by, "ana");
  // The link is spent, and says what was decided.
  await page.goto(url);
  const later = await page.innerText("main");
  assert.ok(later.includes("ana approved") && later.includes("because"), later);
});

test("looking decides nothing, and what was decided elsewhere is shown", async () => {
  await held.server.upload(gate());
  const { run_id: run } = await held.server.post("/v1/runs", { workflow: "gate" });
  const url = await linkFor(run, "ana");
  const page = await plainPage();
  for (let turn = 0; turn < 3; turn += 1) await page.goto(url);
  assert.equal((await held.server.get(`/v1/runs/${run}`)).state, "waiting_on_approval");
  await held.server.post(`/v1/runs/${run}/reject`, { decision_by: "ben", comment: "too much" });
  await page.click("button[value=approve]");
  const said = await page.innerText("main");
  assert.ok(said.includes("ben rejected") && said.includes("too much"), said);
  await page.goto(await Promise.resolve(url));
  assert.ok((await page.innerText("main")).includes("ben rejected"));
});
