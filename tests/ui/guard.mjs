// What the tests of people's side share: a server of their own, a browser, and the questions that are asked of every page.

import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const BINARY = process.env.ABIDE_PROGRAM ?? fileURLToPath(new URL("../../target/debug/abide", import.meta.url));
const CHROMIUM = process.env.ABIDE_CHROMIUM ?? "/usr/bin/chromium";

/**
 * A server on a free port with a folder of its own.
 * @param {string[]} [args]
 */
export async function startServer(args = []) {
  const folder = await mkdtemp(join(tmpdir(), "abide-ui-"));
  const child = spawn(BINARY, ["serve", "--listen", "127.0.0.1:0", "--data", join(folder, "data"), ...args], { stdio: ["ignore", "pipe", "ignore"] });
  const url = await new Promise((resolve, reject) => {
    let said = "";
    child.stdout.on("data", (bytes) => {
      said += bytes;
      const found = said.match(/listening on (http:\/\/\S+)/);
      if (found) resolve(found[1]);
    });
    child.on("exit", () => reject(new Error(`the server ended: ${said}`)));
  });
  const server = {
    url,
    /** Sent with every call, when there is one. @type {string | null} */
    key: null,
    /** @param {string} method @param {string} path @param {unknown} [body] @param {{ [name: string]: string }} [headers] */
    async call(method, path, body, headers = {}) {
      const text = typeof body === "string";
      const response = await fetch(url + path, {
        method,
        headers: { ...(body === undefined ? {} : { "content-type": text ? "application/yaml" : "application/json" }), ...(server.key ? { authorization: `Bearer ${server.key}` } : {}), ...headers },
        ...(body === undefined ? {} : { body: text ? body : JSON.stringify(body) }),
      });
      const answer = await response.text();
      const value = answer.startsWith("{") || answer.startsWith("[") ? JSON.parse(answer) : answer;
      if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${answer}`);
      return value;
    },
    /** @param {string} path */
    get: (path) => server.call("GET", path),
    /** @param {string} path @param {unknown} [body] */
    post: (path, body) => server.call("POST", path, body ?? {}),
    /** @param {string} document */
    apply: (document) => server.call("PUT", `/v1/workflows/${document.match(/^workflow: (\S+)/m)?.[1]}`, document),
    /** The next task of a queue. @param {string} worker @param {string[]} handlers */
    async claim(worker, handlers) {
      const { tasks } = await server.post("/v1/tasks/claim", { worker, queues: ["default"], handlers, wait_ms: 10_000 });
      return tasks[0];
    },
    /** @param {{ task_id: string, epoch: number }} task @param {string} what @param {object} said */
    report: (task, what, said) => server.post(`/v1/tasks/${encodeURIComponent(task.task_id)}/${what}`, { epoch: task.epoch, ...said }),
    /** Waits until a run is in a state. @param {string} run @param {string} state */
    async until(run, state) {
      for (let turn = 0; turn < 200; turn += 1) {
        const record = await server.get(`/v1/runs/${run}`);
        if (record.state === state) return record;
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
      throw new Error(`${run} is not ${state}`);
    },
    /** How many violations of the policy browsers have reported. */
    async reports() {
      const metrics = await server.call("GET", "/metrics");
      return Number(metrics.match(/^abide_csp_reports_total\{\} (\d+)$/m)?.[1]);
    },
    async stop() {
      child.removeAllListeners("exit");
      const gone = new Promise((resolve) => child.once("exit", resolve));
      child.kill();
      await gone;
      await rm(folder, { recursive: true, force: true });
    },
  };
  return server;
}

/** @typedef {Awaited<ReturnType<typeof startServer>>} Server */

/** @param {string[]} [args] */
export function startBrowser(args = []) {
  return chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", ...args] });
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
export async function open(page, address) {
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
