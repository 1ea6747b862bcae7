// Starts the page: who we are, the shell, the router, the one stream.
//
// How a screen is written
// -----------------------
// A screen is a module in screens/ that exports a `title` and
//
//     /** @type {import("../lib/types.js").Screen["mount"]} */
//     export function mount(place, visit) {
//       fill(place, …);                         // lib/dom.js: h(), s(), fill(); text nodes only, never markup
//       return { update(visit) {…}, records(runs) {…}, resync() {…}, commands() { return […] }, unmount() {…} };
//     }
//
// and stands in SCREENS below. `place` is an empty <main>. `visit.params` are the named parts of the path, and
// `visit.url.searchParams` is all other state of the screen: what is not in the address cannot be linked to. Move with
// `navigate(address)` from lib/router.js; links are plain <a href>, the router follows them.
//   records(runs)   records that changed anywhere, at most once a frame (one stream for the whole browser: lib/live.js)
//   resync()        read everything again: after a gap, and for the key r
//   update(visit)   the address changed but not the path; without it the screen is mounted anew
// Reads and writes: lib/api.js get(), post(); a refusal is an ApiError whose message is a sentence. While reading show
// loading(), for nothing empty(), for a refusal refused() (parts/rest.js). States: stateBadge() (parts/states.js). Times:
// when() (lib/time.js), which ticks by itself. Buttons from next_actions: actionBar() (parts/actions.js). Forms from JSON
// Schema: formOf() (lib/form.js). Many rows: virtualList() (parts/list.js). Dialogs and toasts: parts/dialog.js,
// parts/toast.js. Keys of a screen: bind() (lib/keys.js), undone in unmount(). Copies: copyMenu() (lib/copy.js).
// Styles: tokens in css/base.css (--space-*, --text-*, --ink-*, --tone-*), parts in css/parts.css; what one screen alone
// needs goes into css/screens.css under the class of its screen (`.screen-inbox`).

/** @import { Command, Mounted, Screen, Session, Visit } from "./lib/types.js" */

import { fill } from "./lib/dom.js";
import { get, onSessionEnd, setSession } from "./lib/api.js";
import { onRecords, onResync, resync, startLive } from "./lib/live.js";
import { bind, startKeys } from "./lib/keys.js";
import { startTicking } from "./lib/time.js";
import { currentVisit, navigate, startRouter } from "./lib/router.js";
import { openPalette } from "./lib/palette.js";
import { copyText } from "./lib/copy.js";
import { makeShell } from "./parts/shell.js";
import { loading, refused } from "./parts/rest.js";
import { PRESETS } from "./parts/presets.js";

/**
 * @typedef {object} Place
 * @property {string} name also the class `screen-NAME`
 * @property {string} path
 * @property {() => Promise<Screen>} load
 */

/** @type {Place[]} */
const SCREENS = [
  { name: "runs", path: "/", load: () => import("./screens/runs.js") },
  { name: "run", path: "/runs/{run_id}", load: () => import("./screens/run.js") },
  { name: "inbox", path: "/inbox", load: () => other("inbox") },
  { name: "workflows", path: "/workflows", load: () => other("workflows") },
  { name: "workflows", path: "/workflows/{workflow_id}", load: () => other("workflows") },
  { name: "workers", path: "/workers", load: () => other("workers") },
  { name: "insights", path: "/insights", load: () => other("insights") },
  { name: "contract", path: "/contract", load: () => other("contract") },
];

/** @param {string} name @returns {Promise<Screen>} */
function other(name) {
  return import(`./screens/${name}.js`);
}

/** @type {{ place: Place, path: string, mounted: Mounted } | null} */
let shown = null;
/** Counts visits, so that a screen that loads slowly does not take the place of a later one. */
let visits = 0;

const shell = makeShell();

async function begin() {
  document.body.append(shell.element);
  onSessionEnd(() => void login());
  startKeys();
  startTicking();
  bindKeys();
  // The screen does not wait for who we are: the server checks each of its reads anyway.
  startRouter(visit);
  /** @type {Session | null} */
  const session = await get("/v1/session").catch(() => null);
  if (!session) return;
  setSession(session);
  shell.setSession(session);
  startLive(session.namespace);
  onRecords((runs) => shown?.mounted.records?.(runs));
  onResync(() => shown?.mounted.resync?.());
}

let asking = false;

/** The key is asked for; what was looked at comes back when the page loads anew. */
async function login() {
  if (asking) return;
  asking = true;
  /** @type {any} */
  const screen = await other("login");
  screen.show();
}

/** @param {Visit} to */
async function visit(to) {
  visits += 1;
  const turn = visits;
  const found = find(to.url.pathname);
  if (!found) return notHere(to.url.pathname);
  const next = { url: to.url, params: found.params };
  shell.select(found.place.name);
  if (shown && shown.path === to.url.pathname && shown.mounted.update) {
    shown.mounted.update(next);
    return;
  }
  try {
    const screen = await found.place.load();
    if (turn === visits) show(found.place, screen, next);
  } catch (error) {
    if (turn === visits) fill(leave("error"), refused(error, () => location.reload()));
  }
}

/** @param {Place} place @param {Screen} screen @param {Visit} to */
function show(place, screen, to) {
  const element = leave(place.name);
  setTitle(screen.title);
  fill(element, loading());
  scrollTo(0, 0);
  shown = { place, path: to.url.pathname, mounted: screen.mount(element, to) };
}

/** Takes the old screen down and gives an empty place. @param {string} name */
function leave(name) {
  shown?.mounted.unmount();
  shown = null;
  return shell.freshPlace(name);
}

/** @param {string} path */
function notHere(path) {
  setTitle("Not found");
  shell.select("");
  fill(leave("error"), refused(new Error(`There is no screen at ${path}.`)));
}

/** @param {string} title */
function setTitle(title) {
  document.title = title ? `${title} · Abide` : "Abide";
}

/** @param {string} path */
function find(path) {
  for (const place of SCREENS) {
    const params = match(place.path, path);
    if (params) return { place, params };
  }
  return null;
}

/**
 * The named parts of a path, or nothing when it is another.
 * @param {string} pattern @param {string} path
 * @returns {{ [name: string]: string } | null}
 */
function match(pattern, path) {
  const [wanted, given] = [pattern.split("/"), path.split("/")];
  if (wanted.length !== given.length) return null;
  /** @type {{ [name: string]: string }} */
  const params = {};
  for (const [at, part] of wanted.entries()) {
    const text = given[at] ?? "";
    if (part.startsWith("{")) params[part.slice(1, -1)] = decoded(text);
    else if (part !== text) return null;
  }
  return params;
}

/** Somebody may have typed the address. @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

const GO = /** @type {const} */ ([
  ["r", "/", "Runs"],
  ["i", "/inbox", "Inbox"],
  ["w", "/workflows", "Workflows"],
  ["q", "/workers", "Workers and queues"],
  ["n", "/insights", "Insights"],
  ["c", "/contract", "Contract"],
]);

function bindKeys() {
  bind([
    { keys: "ctrl k", about: "Go to or do anything", act: palette },
    { keys: "r", about: "Read again", act: resync },
    ...GO.map(([key, path, title]) => ({ keys: `g ${key}`, about: `Go to ${title}`, act: () => navigate(path) })),
  ]);
  shell.onPalette(palette);
}

function palette() {
  openPalette(commands, typed, workflows());
}

/** @returns {Command[]} */
function commands() {
  const here = shown?.mounted.commands?.() ?? [];
  const go = GO.map(([key, path, title]) => ({ title, hint: `screen · g ${key}`, run: () => navigate(path) }));
  const presets = PRESETS.map(({ title, query }) => ({ title, hint: "runs", run: () => navigate(`/${query}`) }));
  const link = { title: "Copy a link to this page", run: () => void copyText(currentVisit().url.href, "Link") };
  return [...here, ...go, ...presets, link];
}

/** @param {string} text @returns {Command[]} */
function typed(text) {
  if (!text.includes("_") && text.length < 6) return [];
  return [{ title: `Open run ${text}`, hint: "run", run: () => navigate(`/runs/${encodeURIComponent(text)}`) }];
}

/** @returns {Promise<Command[]>} */
async function workflows() {
  /** @type {{ workflows: { workflow_id: string, title: string | null }[] }} */
  const known = await get("/v1/workflows").catch(() => ({ workflows: [] }));
  return known.workflows.flatMap(({ workflow_id: id, title }) => [
    { title: title ?? id, hint: `workflow · ${id}`, run: () => navigate(`/workflows/${encodeURIComponent(id)}`) },
    { title: `Runs of ${title ?? id}`, hint: `runs · ${id}`, run: () => navigate(`/?workflow=${encodeURIComponent(id)}`) },
  ]);
}

addEventListener("abide:title", (event) => setTitle(/** @type {CustomEvent<string>} */ (event).detail));
await begin();
