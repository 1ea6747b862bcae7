// Takes the pictures: `abide dev` has a run in every state, and each screen is looked at in light, dark and narrow.

import { copyFile, mkdir, rm } from "node:fs/promises";
import { Server, browse, open, until } from "./lib.mjs";

const FOLDER = new URL("./screenshots-made/", import.meta.url).pathname;
const PICTURES = new URL("../../docs/pictures/", import.meta.url).pathname;

/** Every screen, and what must be there before it is taken. */
const SCREENS = [
  ["runs", "/", ".row"],
  ["runs-needs-me", "/?state=waiting_on_approval&state=waiting_on_operator&state=waiting_on_auth&state=stalled", ".row"],
  ["runs-none", "/?label.team=nobody", ".rest"],
  ["run-timeline", "/runs/run_demo-album", ".tl-row"],
  ["run-waits", "/runs/run_demo-feed", ".tl-row"],
  ["run-graph", "/runs/run_demo-order?tab=graph", ".node"],
  ["run-events", "/runs/run_demo-invoice?tab=events", ".ev-row"],
  ["run-data", "/runs/run_demo-invoice?tab=data", ".output"],
  ["run-explain", "/runs/run_demo-crawl?tab=explain", ".triage"],
  ["run-handoff", "/runs/run_demo-customer?tab=handoff", ".handoff-actions"],
  ["run-past", "/runs/run_demo-invoice?at=9", ".past"],
  ["inbox", "/inbox", "main h1"],
  ["workflows", "/workflows", "main h1"],
  ["workflow", "/workflows/order-saga", "main h1"],
  ["workers", "/workers", "main h1"],
  ["insights", "/insights", "main h1"],
  ["contract", "/contract", "main h1"],
  ["not-found", "/runs/run_nobody", ".rest"],
];

const LOOKS = [
  ["light", { colorScheme: "light", viewport: { width: 1360, height: 900 } }],
  ["dark", { colorScheme: "dark", viewport: { width: 1360, height: 900 } }],
  ["narrow", { colorScheme: "light", viewport: { width: 380, height: 800 } }],
  ["narrow-dark", { colorScheme: "dark", viewport: { width: 380, height: 800 } }],
];

const server = await Server.begin({ command: "dev" });
const browser = await browse();
try {
  await rm(FOLDER, { recursive: true, force: true });
  await mkdir(FOLDER, { recursive: true });
  await until(async () => (await server.record("run_demo-order")).ended_at, "the demo has come to rest");
  for (const [look, options] of LOOKS) {
    const context = await browser.newContext({ ...options, reducedMotion: "reduce" });
    for (const [name, path, there] of SCREENS) await take(context, `${name}-${look}`, path, there);
    await context.close();
  }
  if (process.argv.includes("--readme")) {
    await mkdir(PICTURES, { recursive: true });
    await copyFile(`${FOLDER}runs-light.png`, `${PICTURES}runs.png`);
    await copyFile(`${FOLDER}run-timeline-dark.png`, `${PICTURES}run.png`);
  }
  console.log(`pictures are in ${FOLDER}`);
} finally {
  await browser.close();
  await server.stop();
}

async function take(context, name, path, there) {
  const page = await open(context, server.url + path);
  await page.locator(there).first().waitFor();
  // Numbers and graphs come a moment after the first rows; the stream never rests, so that nothing else can be waited for.
  await page.waitForTimeout(600);
  await page.screenshot({ path: `${FOLDER}${name}.png` });
  for (const fault of page.wrong) console.error(`${name}: ${fault}`);
  await page.close();
}
