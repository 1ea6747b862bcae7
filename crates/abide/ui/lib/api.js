// The one way to the server: reads, writes that are safe to send twice, and refusals as sentences.

/** @import { Problem, Session } from "./types.js" */

import { parse, write } from "./json.js";
import { noteServerTime } from "./time.js";

/** A refusal of the server, or no answer at all. */
export class ApiError extends Error {
  /** @param {Problem} problem */
  constructor(problem) {
    super(sentence(problem));
    this.name = "ApiError";
    this.problem = problem;
  }

  get code() {
    return this.problem.code ?? "";
  }

  /** What is wrong with each field, by its pointer. */
  get fields() {
    return this.problem.errors ?? [];
  }
}

/** @param {Problem} problem */
function sentence(problem) {
  const detail = problem.detail || problem.title;
  return problem.detail && problem.errors?.length ? `${problem.title}. ${problem.detail}` : detail;
}

/** @type {(() => void) | null} */
let whenSessionEnds = null;

/** What to do when the server does not know us any more. @param {() => void} then */
export function onSessionEnd(then) {
  whenSessionEnds = then;
}

/** Only a script of this page can send it, so that a form of another site cannot. */
const OWN = { "Abide-Csrf": "1" };

/**
 * Reads.
 * @template T
 * @param {string} path
 * @param {{ signal?: AbortSignal }} [options]
 * @returns {Promise<T>}
 */
export function get(path, options = {}) {
  return ask(path, { method: "GET", headers: { Accept: "application/json" }, signal: options.signal ?? null });
}

/**
 * Reads JSON as its text.
 * @param {string} path
 * @returns {Promise<string>}
 */
export function getText(path) {
  return ask(path, { method: "GET", headers: { Accept: "application/json" } }, (response) => response.text());
}

/**
 * Reads what holds payloads: their numbers stay as they are written.
 * @template T
 * @param {string} path
 * @returns {Promise<T>}
 */
export async function getExact(path) {
  return parse(await getText(path));
}

/**
 * Writes. The same key sent twice acts once, so a lost answer can be asked for again.
 * @template T
 * @param {string} path
 * @param {unknown} body
 * @param {{ key?: string, method?: string }} [options]
 * @returns {Promise<T>}
 */
export async function post(path, body, options = {}) {
  const init = {
    method: options.method ?? "POST",
    headers: { Accept: "application/json", "Content-Type": "application/json", "Idempotency-Key": options.key ?? newKey(), ...OWN },
    body: write(body ?? {}),
  };
  try {
    return await ask(path, init);
  } catch (error) {
    // The answer was lost, not necessarily the request: once more with the same key.
    if (error instanceof ApiError && error.code === "unreachable") return ask(path, init);
    throw error;
  }
}

/** A key for one intention. */
export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * @param {string} path
 * @param {RequestInit} init
 * @param {(response: Response) => Promise<any>} [read]
 * @returns {Promise<any>}
 */
async function ask(path, init, read = (response) => response.json()) {
  const began = Date.now();
  /** @type {Response} */
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...init });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new ApiError({ title: "The server cannot be reached", detail: "The server cannot be reached. It is tried again when the connection is back.", status: 0, code: "unreachable", retryable: true });
  }
  noteServerTime(response.headers.get("date"), began, Date.now());
  if (response.ok) return response.status === 204 ? null : read(response);
  const problem = await problemOf(response);
  if (problem.status === 401) whenSessionEnds?.();
  throw new ApiError(problem);
}

/** @param {Response} response @returns {Promise<Problem>} */
async function problemOf(response) {
  const told = (response.headers.get("content-type") ?? "").includes("json") ? await response.json().catch(() => null) : null;
  return { title: `The server answered ${response.status}`, ...told, status: response.status };
}

/** @type {Session | null} */
let known = null;

/** Who we are to the server; null before it is known. */
export function session() {
  return known;
}

/** @param {Session} session */
export function setSession(session) {
  known = session;
}

/**
 * A path with its query, without what is empty.
 * @param {string} path
 * @param {Iterable<[string, string]> | { [name: string]: string | number | undefined | null }} query
 */
export function withQuery(path, query) {
  const search = new URLSearchParams();
  const pairs = Symbol.iterator in query ? query : Object.entries(query);
  for (const [name, value] of pairs) if (value !== undefined && value !== null && value !== "") search.append(name, String(value));
  const text = search.toString();
  return text ? `${path}?${text}` : path;
}
