// What the browser tests share: servers and workers of their own, a browser, and words for what is looked for.

import { spawn } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const PROGRAM = process.env.ABIDE_PROGRAM ?? new URL("../../target/debug/abide", import.meta.url).pathname;
const BROWSER = process.env.ABIDE_CHROMIUM ?? "/usr/bin/chromium";
/** Longer than anything takes on a busy machine; nothing waits for it when all is well. */
export const PATIENCE = 60_000;

/**
 * Waits until something is so.
 * @template T
 * @param {() => Promise<T>} look
 * @param {string} what
 */
export async function until(look, what, patience = PATIENCE) {
  const end = Date.now() + patience;
  let last;
  while (Date.now() < end) {
    last = await look();
    if (last) return last;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`not within ${patience} ms: ${what} (last: ${JSON.stringify(last)?.slice(0, 300)})`);
}

/** Everything that was started here; exactly that is ended. */
const started = new Set();

/** Ends what a failed test left running. */
export async function endAll() {
  await Promise.all([...started].map((one) => one.stop("SIGKILL")));
}

/** A program that this test started, and ends. */
function start(args) {
  const child = spawn(PROGRAM, args, { stdio: ["ignore", "pipe", "pipe"] });
  let said = "";
  child.stdout.on("data", (text) => (said += text));
  child.stderr.on("data", (text) => (said += text));
  const ended = new Promise((resolve) => child.on("close", resolve));
  const program = {
    child,
    said: () => said,
    async stop(signal = "SIGTERM") {
      if (child.exitCode === null && child.signalCode === null) child.kill(signal);
      await ended;
      started.delete(program);
    },
  };
  started.add(program);
  return program;
}

/** A server on a free port with a folder of its own. */
export class Server {
  static async begin({ command = "serve", args = [], data = null } = {}) {
    const server = new Server();
    server.data = data ?? (await mkdtemp(join(tmpdir(), "abide-ui-")));
    server.command = command;
    server.args = args;
    server.listen = "127.0.0.1:0";
    await server.up();
    return server;
  }

  async up() {
    this.process = start([this.command, "--data", this.data, "--listen", this.listen, ...this.args]);
    const told = await until(async () => this.process.said().match(/listening on (http:\S+)/) ?? (this.process.child.exitCode !== null && "gone"), "the server listens");
    if (told === "gone") throw new Error(`the server ended: ${this.process.said()}`);
    this.url = told[1];
    this.listen = new URL(this.url).host;
  }

  /** Away and back at the same address. */
  async restart(between = async () => {}) {
    await this.process.stop();
    await between();
    await this.up();
  }

  async stop() {
    await this.process.stop();
    await rm(this.data, { recursive: true, force: true });
  }

  /** Calls the API; throws on a refusal. */
  async call(method, path, body, type = "application/json") {
    const text = body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body);
    const response = await fetch(this.url + path, { method, body: text, headers: text === undefined ? {} : { "content-type": type } });
    const said = await response.text();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${said}`);
    return said ? JSON.parse(said) : null;
  }

  apply(id, document) {
    return this.call("PUT", `/v1/workflows/${id}`, document, "application/yaml");
  }

  run(workflow, input = {}, more = {}) {
    return this.call("POST", "/v1/runs", { workflow, input, ...more });
  }

  record(id) {
    return this.call("GET", `/v1/runs/${id}`);
  }

  in(id, state, patience) {
    return until(async () => {
      const record = await this.record(id);
      return record.state === state && record;
    }, `${id} is ${state}`, patience);
  }

  /** A worker of the same program: any command is a handler. */
  worker(handlers, args = []) {
    const offered = Object.entries(handlers).flatMap(([name, command]) => ["--handler", `${name}=${command}`]);
    return start(["worker", "--server", this.url, ...offered, ...args]);
  }
}

/** One browser for a file of tests. */
export async function browse(args = []) {
  return chromium.launch({ executablePath: BROWSER, args: ["--no-sandbox", "--disable-gpu", ...args] });
}

/** A page that remembers everything that went wrong on it. */
export async function open(context, url) {
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.wrong = [];
  page.on("pageerror", (error) => page.wrong.push(`error: ${error.message}`));
  // Refusals of the server are answers; the browser writes them down all the same.
  page.on("console", (message) => message.type() === "error" && !message.text().startsWith("Failed to load resource") && page.wrong.push(`console: ${message.text()}`));
  if (url) await page.goto(url);
  return page;
}

/** Pages that a failed test left open: what they showed is kept where ABIDE_FAILED names a folder. */
export async function sweep(context) {
  for (const [n, page] of context.pages().entries()) {
    if (process.env.ABIDE_FAILED) await page.screenshot({ path: join(process.env.ABIDE_FAILED, `failed-${Date.now()}-${n}.png`) }).catch(() => {});
    if (page.wrong?.length) console.error(page.url(), page.wrong);
    await page.close();
  }
}

/** The state that the head of a run's page shows. */
export function shownState(page) {
  return page.locator(".run-state .state").getAttribute("data-state");
}

export async function sees(page, state) {
  await page.locator(`.run-state .state[data-state="${state}"]`).waitFor();
}

/** A document that ships with the program. */
export function example(name) {
  return readFile(new URL(`../../examples/${name}`, import.meta.url), "utf8");
}
