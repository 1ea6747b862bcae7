// Keys and sessions in a real browser: login, logout, and what a page of another site can do with them: nothing.

import assert from "node:assert/strict";
import { createServer, request } from "node:http";
import { test } from "node:test";
import { Guarded, staged, visit } from "./guard.mjs";

const held = staged(async (server) => {
  server.key = (await server.post("/v1/keys", { name: "root", role: "admin" })).key;
  // A name that leads to this machine, as a rebinding attacker has one.
}, ["--host-resolver-rules=MAP evil.test 127.0.0.1"]);

/** @param {import("playwright-core").Page} page @param {string} key */
async function logIn(page, key) {
  await page.getByLabel("Key").fill(key);
  await page.getByRole("button", { name: "Log in" }).click();
}

test("a key is asked for once, stays nowhere in the browser, and a logout ends it", async () => {
  const context = await held.browser.newContext();
  const page = await context.newPage();
  await page.goto(`${held.server.url}/workers`);
  await page.waitForSelector("text=Log in");
  await logIn(page, "abide_live_wrong");
  await page.waitForSelector(".fault");
  const { key, key_id: id } = await held.server.post("/v1/keys", { name: "ana", role: "operator", groups: ["boss"] });
  await logIn(page, key);
  await page.waitForSelector("text=Workers and queues");
  assert.ok((await page.innerText(".who")).includes("ana · operator"));
  await page.reload();
  await page.waitForSelector("text=Workers and queues");

  const [cookie, ...more] = await context.cookies();
  assert.equal(more.length, 0);
  assert.ok(cookie?.name.startsWith("__Host-abide") && cookie.httpOnly && cookie.secure && cookie.sameSite === "Lax" && cookie.path === "/");
  const kept = await page.evaluate(() => JSON.stringify([localStorage, sessionStorage, document.cookie]));
  assert.ok(!kept.includes(key) && !kept.includes(String(cookie?.value)));

  await page.getByRole("button", { name: "Log out" }).click();
  await page.waitForSelector("text=Log in");
  const answer = await fetch(`${held.server.url}/v1/runs`, { headers: { cookie: `${cookie?.name}=${cookie?.value}` } });
  assert.equal(answer.status, 401, "the server forgot it, too");

  // A revoked key takes its sessions along.
  await logIn(page, key);
  await page.waitForSelector(".who");
  await held.server.call("DELETE", `/v1/keys/${id}`);
  await page.goto(`${held.server.url}/inbox`);
  await page.waitForSelector("text=Log in");
  await context.close();
});

test("a page of another origin changes nothing in the name of who is logged in", async () => {
  const context = await held.browser.newContext();
  const page = await context.newPage();
  await page.goto(held.server.url);
  await logIn(page, String(held.server.key));
  await page.waitForSelector(".who");
  const before = (await held.server.get("/v1/keys")).keys.length;

  const attack = `<!doctype html><title>evil</title>
    <form id=f method=post enctype=text/plain action="${held.server.url}/v1/keys"><input name='{"name":"evil","role":"admin","x":"' value='"}'></form>
    <script>
      window.tried = (async () => {
        const said = [];
        const body = JSON.stringify({ name: "evil", role: "admin" });
        for (const init of [
          { method: "POST", mode: "no-cors", credentials: "include", headers: { "content-type": "text/plain" }, body },
          { method: "POST", mode: "cors", credentials: "include", headers: { "content-type": "application/json", "abide-csrf": "1" }, body },
          { method: "POST", mode: "cors", credentials: "include", headers: { "content-type": "text/plain" }, body },
          { method: "GET", mode: "cors", credentials: "include" },
        ]) said.push(await fetch("${held.server.url}/v1/keys", init).then((r) => r.type === "opaque" ? "opaque" : r.text(), () => "refused"));
        return said;
      })();
    </script>`;
  const evil = createServer((_, answer) => answer.writeHead(200, { "content-type": "text/html" }).end(attack));
  await new Promise((resolve) => evil.listen(0, "127.0.0.1", () => resolve(undefined)));
  const { port } = /** @type {import("node:net").AddressInfo} */ (evil.address());
  try {
    // The same site at another port (where the cookie does come along), and another site.
    for (const host of [`127.0.0.1:${port}`, `evil.test:${port}`]) {
      await page.goto(`http://${host}/`);
      const said = await page.evaluate(() => /** @type {any} */ (window).tried);
      assert.deepEqual(said, ["refused", "refused", "refused", "refused"], host);
      await page.evaluate(() => /** @type {HTMLFormElement} */ (document.getElementById("f")).submit());
      await page.waitForURL(`${held.server.url}/v1/keys`);
      assert.ok((await page.innerText("body")).includes("cross-site-request"), await page.innerText("body"));
    }
  } finally {
    await new Promise((resolve) => evil.close(resolve));
  }
  assert.equal((await held.server.get("/v1/keys")).keys.length, before, "no key was made");
  await context.close();
});

test("a name that was bound to this machine gets nothing", async () => {
  const page = await held.browser.newPage();
  const { port } = new URL(held.server.url);
  const answer = await page.goto(`http://evil.test:${port}/`);
  assert.equal(answer?.status(), 421);
  assert.ok(!(await page.content()).includes("main.js"));
  await page.close();
  /** @type {number | undefined} */
  const status = await new Promise((resolve) => request({ host: "127.0.0.1", port, path: "/v1/runs", headers: { host: "evil.test" } }, (heard) => resolve(heard.statusCode)).end());
  assert.equal(status, 421);
});

test("nothing that is logged in is left when no keys are used", async () => {
  const bare = await Guarded.begin();
  const page = await held.browser.newPage();
  await visit(page, bare.url);
  assert.ok((await page.innerText(".who")).includes("no keys"));
  assert.equal(await page.getByRole("button", { name: "Log out" }).count(), 0);
  await page.close();
  await bare.stop();
});
