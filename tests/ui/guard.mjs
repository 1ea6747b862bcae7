// What the tests of people's side share: a server that is called as a worker, a person or an operator would, and the
// questions that are asked of every page.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before } from "node:test";
import { Server, browse, until } from "./lib.mjs";

/** A server that may have keys, and speaks the words of these tests. */
export class Guarded extends Server {
  /** Sent with every call, when there is one. @type {string | null} */
  key = null;

  /** @param {string[]} [args] */
  static async begin(args = []) {
    const server = new Guarded();
    return Object.assign(server, await Server.begin({ args }));
  }

  /** @param {string} method @param {string} path @param {unknown} [body] @param {string} [type] */
  async call(method, path, body, type = "application/json") {
    const text = body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body);
    const headers = { ...(text === undefined ? {} : { "content-type": type }), ...(this.key ? { authorization: `Bearer ${this.key}` } : {}) };
    const response = await fetch(this.url + path, { method, headers, ...(text === undefined ? {} : { body: text }) });
    const said = await response.text();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${said}`);
    return (response.headers.get("content-type") ?? "").includes("json") ? JSON.parse(said) : said;
  }

  /** @param {string} path */
  get(path) {
    return this.call("GET", path);
  }

  /** @param {string} path @param {unknown} [body] */
  post(path, body) {
    return this.call("POST", path, body ?? {});
  }

  /** Uploads a document under the name that it has. @param {string} document */
  upload(document) {
    return this.apply(document.match(/^workflow: (\S+)/m)?.[1], document);
  }

  /** The next task of a queue. @param {string} worker @param {string[]} handlers */
  async claim(worker, handlers) {
    const { tasks } = await this.post("/v1/tasks/claim", { worker, queues: ["default"], handlers, wait_ms: 10_000 });
    return tasks[0];
  }

  /** @param {{ task_id: string, epoch: number }} task @param {string} what @param {object} said */
  report(task, what, said) {
    return this.post(`/v1/tasks/${encodeURIComponent(task.task_id)}/${what}`, { epoch: task.epoch, ...said });
  }

  /** How many violations of the policy browsers have reported. */
  async reports() {
    const metrics = await this.get("/metrics");
    return Number(metrics.match(/^abide_csp_reports_total\{\} (\d+)$/m)?.[1]);
  }
}

/**
 * A server and a browser for a file of tests; both are there when the first test begins.
 * @param {(server: Guarded) => Promise<void>} [prepare] what the server needs before
 * @param {string[]} [args] of the browser
 */
export function staged(prepare = async () => {}, args = []) {
  const held = /** @type {{ server: Guarded, browser: import("playwright-core").Browser }} */ ({});
  before(async () => {
    [held.server, held.browser] = await Promise.all([Guarded.begin(), browse(args)]);
    await prepare(held.server);
  });
  after(() => Promise.all([held.server?.stop(), held.browser?.close()]));
  return held;
}

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/**
 * What axe finds serious on a page. The page's context must bypass the policy, which would not let axe in.
 * @param {import("playwright-core").Page} page
 * @returns {Promise<string[]>}
 */
export async function seriousFindings(page) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => /** @type {any} */ (globalThis).axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"] }));
  return violations
    .filter((/** @type {any} */ one) => one.impact === "serious" || one.impact === "critical")
    .map((/** @type {any} */ one) => `${one.id}: ${one.help} (${one.nodes.slice(0, 3).map((/** @type {any} */ node) => `${node.target.join(" ")} ${node.any?.[0]?.message ?? ""}`).join("; ")})`);
}

/**
 * Opens a screen and waits until it stands.
 * @param {import("playwright-core").Page} page @param {string} address
 */
export async function visit(page, address) {
  await page.goto(address);
  await page.waitForSelector("main h1, .rest h2");
  await page.waitForFunction(() => !document.querySelector(".skeleton"));
}

/** A workflow with one approval. @param {string} [more] further lines of the approval */
export function gate(more = "") {
  return `workflow: gate
title: Purchase
steps:
  - id: g
    approval:
      title: "Buy desk for 420?"
      subject: { item: desk, price: 420 }
      approvers: [ana, ben]
      deadline: 2h
      at_deadline: fail
${more}`;
}

export { until };
