// A walk over everything: no page breaks its policy, no text of others becomes script, and everybody can read it.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Guarded, gate, seriousFindings, staged, visit } from "./guard.mjs";

/** @type {string[]} */
let runs;
const held = staged(async (server) => {
  runs = await fillWithEvil(server);
});

/** Each would run if any place read it as markup, as an address or as script. */
const CORPUS = [
  `<script>window.hit=1</script>`,
  `"><img src=x onerror=window.hit=1>`,
  `'"--></style></title></textarea><svg/onload=window.hit=1>`,
  `javascript:window.hit=1//`,
  `<iframe srcdoc="<script>parent.hit=1</script>"></iframe>`,
  `\${window.hit=1}{{constructor.constructor('window.hit=1')()}}`,
  `<a href="javascript:window.hit=1">x</a>`,
  `\u202e<b onmouseover=window.hit=1>\u0007\u001b[31mred`,
];
const ALL = CORPUS.join(" ");
/** A title has at most 200 characters. */
const TITLE = CORPUS.slice(0, 4).join(" ");
const evil = (/** @type {number} */ n) => String(CORPUS[n % CORPUS.length]);

/** The addresses of every screen and every tab. @param {string[]} runs */
function addresses(runs) {
  const tabs = ["", "?tab=timeline", "?tab=graph", "?tab=events", "?tab=data", "?tab=explain", "?tab=handoff"];
  return [
    "/", "/?state=failed", "/inbox", ...runs.slice(0, 1).map((run) => `/inbox?run=${run}&step=g`), "/workflows", "/workflows/evil", "/workers", "/insights", "/contract",
    "/contract?state=running", ...runs.flatMap((run) => tabs.map((tab) => `/runs/${run}${tab}`)),
  ];
}

/** Runs in many states, with the corpus in every field that takes text. @param {Guarded} server @returns {Promise<string[]>} */
async function fillWithEvil(server) {
  const text = (/** @type {number} */ n) => `${evil(n)} ${n}`;
  await server.call("PUT", "/v1/workflows/evil", JSON.stringify({
    workflow: "evil", title: TITLE, steps: [
      { id: "a", title: TITLE, task: "work", effect: "external", recovery: { permission: "ask" } },
      { id: "g", title: text(1), approval: { title: TITLE, subject: { [evil(0)]: ALL, [evil(1)]: { [evil(2)]: [ALL] } }, approvers: ["ana", "role:boss"], form: { type: "object", title: ALL, properties: { [evil(2)]: { type: "string", title: ALL, description: ALL } } } } },
      { id: "s", title: text(2), signal: "go" },
    ],
  }));
  const start = async (/** @type {string} */ id) => {
    await server.post("/v1/runs", { workflow: "evil", run_id: id, input: { [evil(0)]: ALL, list: CORPUS }, labels: Object.fromEntries(CORPUS.slice(0, 7).map((one, n) => [`l${n}`, one.slice(0, 60)])), owner_id: evil(1), data_region: evil(2) });
    return server.claim(evil(3).slice(0, 60), ["work"]);
  };
  const told = { evidence: CORPUS.map((ref) => ({ type: "log", ref })), resources: [{ type: evil(0), id: ALL, url: "javascript:window.hit=1" }], warnings: [ALL] };
  // One that waits for a decision, after a step that was completed with everything.
  const done = await start("run_evil-gate");
  await server.report(done, "heartbeat", { progress: { done: 1, total: 2, message: ALL } });
  await server.report(done, "complete", { output: { [evil(1)]: ALL }, ...told });
  // One that failed, one that waits for a connection, one for an operator, one that is worked on, one that is paused.
  await server.report(await start("run_evil-failed"), "fail", { class: "fatal", message: ALL, code: evil(4), details: { [evil(0)]: ALL, stack: ALL }, evidence: told.evidence });
  const needsAuth = await start("run_evil-auth");
  const block = { on: "auth", tool: evil(1), account: evil(6), message: ALL };
  await assert.rejects(server.report(needsAuth, "block", { ...block, connect_url: "javascript:window.hit=1" }), /422/);
  await server.report(needsAuth, "block", { ...block, connect_url: `https://evil.example/?q=${encodeURIComponent(ALL)}` });
  await server.report(await start("run_evil-operator"), "fail", { class: "permission", message: ALL, evidence: told.evidence });
  const held = await start("run_evil-running");
  await server.report(held, "heartbeat", { progress: { done: 1, message: ALL } });
  await server.report(await start("run_evil-paused"), "complete", { output: ALL });
  await server.post("/v1/runs/run_evil-paused/pause", { reason: ALL });
  // Decided, with a comment.
  await server.report(await start("run_evil-decided"), "complete", { output: CORPUS });
  await server.post("/v1/runs/run_evil-decided/approve", { step_id: "g", decision_by: evil(1), comment: ALL, form: { [evil(2)]: ALL } });
  await server.post("/v1/runs/run_evil-decided/cancel", { reason: ALL });
  return ["gate", "failed", "auth", "operator", "running", "paused", "decided"].map((name) => `run_evil-${name}`);
}

test("the text of others never runs, in any field of any screen, and no page breaks its policy", async () => {
  const context = await held.browser.newContext();
  const page = await context.newPage();
  /** @type {string[]} */
  const broken = [];
  page.on("dialog", (dialog) => (broken.push(`a dialog: ${dialog.message()}`), dialog.dismiss()));
  page.on("pageerror", (error) => broken.push(`${page.url()}: ${error.stack ?? error.message}`));
  // A run without an output, say, is asked for one in vain.
  page.on("console", (message) => message.type() === "error" && !message.text().startsWith("Failed to load resource") && broken.push(`${page.url()}: ${message.text()}`));
  let shown = 0;
  for (const address of addresses(runs)) {
    await visit(page, held.server.url + address);
    // Everything that can be pointed at or opened is.
    await page.evaluate(() => document.querySelectorAll("details").forEach((one) => (one.open = true)));
    await page.evaluate(() => document.querySelectorAll("main *").forEach((one) => one.dispatchEvent(new MouseEvent("mouseover", { bubbles: true }))));
    assert.equal(await page.evaluate(() => /** @type {any} */ (window).hit), undefined, address);
    const links = await page.evaluate(() => [...document.querySelectorAll("[href], [src]")].map((one) => one.getAttribute("href") ?? one.getAttribute("src") ?? ""));
    for (const link of links) assert.ok(!/^\s*(javascript|data|vbscript):/i.test(link), `${address}: ${link}`);
    assert.equal(await page.locator("main script, main iframe, main img, main object, main base").count(), 0, address);
    shown += Number((await page.innerText("body")).includes("window.hit=1"));
  }
  assert.ok(shown > 20, `the corpus was shown as text on only ${shown} pages`);
  // The page without JavaScript, too.
  const { url } = await held.server.post("/v1/runs/run_evil-gate/approvals/g/links", { for: "ana" });
  await page.goto(url);
  assert.equal(await page.evaluate(() => /** @type {any} */ (window).hit), undefined);
  assert.ok((await page.innerText("main")).includes("window.hit=1"));
  await page.goto(`${held.server.url}/problems/not-found`);
  assert.deepEqual(broken, []);
  assert.equal(await held.server.reports(), 0, "browsers reported violations of the policy");
  await context.close();
});

test("a violation of the policy would be reported and would not run", async () => {
  const other = await Guarded.begin();
  const page = await held.browser.newPage();
  await visit(page, other.url);
  await page.evaluate(() => {
    const script = document.createElement("script");
    const blocked = () => {
      try {
        script.text = "window.hit = 1";
        return false;
      } catch {
        return true;
      }
    };
    if (!blocked()) document.body.append(script);
    const link = document.createElement("link");
    link.rel = "stylesheet";
    link.href = "http://127.0.0.1:9/x.css";
    document.head.append(link);
  });
  for (let turn = 0; turn < 50 && (await other.reports()) === 0; turn += 1) await page.waitForTimeout(50);
  assert.ok((await other.reports()) > 0);
  assert.equal(await page.evaluate(() => /** @type {any} */ (window).hit), undefined);
  await page.close();
  await other.stop();
});

for (const colorScheme of /** @type {const} */ (["light", "dark"])) {
  test(`axe finds nothing serious on any screen (${colorScheme})`, async () => {
    await held.server.upload(gate());
    await held.server.post("/v1/runs", { workflow: "gate", run_id: `run_axe-${colorScheme}` });
    const context = await held.browser.newContext({ colorScheme, bypassCSP: true });
    const page = await context.newPage();
    /** @type {{ [address: string]: string[] }} */
    const found = {};
    const check = async (/** @type {string} */ address) => {
      const findings = await seriousFindings(page);
      if (findings.length) found[address] = findings;
    };
    for (const address of [...addresses([`run_axe-${colorScheme}`]), ...addresses(["run_evil-operator"]).filter((one) => one.startsWith("/runs/")), "/workflows/gate"]) {
      await visit(page, held.server.url + address);
      await check(address);
    }
    const { url } = await held.server.post(`/v1/runs/run_axe-${colorScheme}/approvals/g/links`, { for: "ana" });
    await page.goto(url);
    await check("/links/TOKEN");
    const locked = await Guarded.begin();
    await locked.post("/v1/keys", { name: "root", role: "admin" });
    await visit(page, locked.url);
    await check("the login");
    await locked.stop();
    assert.deepEqual(found, {});
    await context.close();
  });
}

test("screens fit 380 px and say something when there is nothing", async () => {
  const bare = await Guarded.begin();
  const context = await held.browser.newContext({ viewport: { width: 380, height: 800 } });
  const page = await context.newPage();
  for (const [base, paths] of /** @type {[string, string[]][]} */ ([
    [held.server.url, ["/inbox", "/inbox?run=run_evil-gate&step=g", "/workflows", "/workflows/evil", "/workers", "/insights", "/contract", "/contract?state=failed"]],
    [bare.url, ["/inbox", "/workflows", "/workers", "/insights", "/contract"]],
  ])) {
    for (const path of paths) {
      await visit(page, base + path);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(wide <= 380, `${path} is ${wide} px wide`);
      assert.ok((await page.innerText("main")).length > 20, path);
    }
  }
  await context.close();
  await bare.stop();
});
