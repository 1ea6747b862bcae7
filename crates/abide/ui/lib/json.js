// JSON as it is written. JavaScript rounds 18446744073709551616, knows no 1e400 and keeps one of two equal keys; what a run
// holds is shown, and sent back, with the characters that it came with.

/** A JSON text in the place of its value. */
export class Written {
  /** @param {string} text */
  constructor(text) {
    this.text = text;
  }

  toString() {
    return this.text;
  }
}

/** A number that JavaScript may write differently: long, with a fraction or an exponent, or minus zero. */
const DOUBTFUL = /(?:^|[[,:\s])(?:-?\d{16}|-?\d+[.eE]|-0)/;
const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|[[\]{},:]|[^\s"[\]{},:]+/g;

/**
 * The value of a JSON text. Numbers that JavaScript would write differently stay as they are written, in browsers that tell.
 * @param {string} text
 * @returns {any}
 */
export function parse(text) {
  return DOUBTFUL.test(text) ? JSON.parse(text, /** @type {any} */ (asWritten)) : JSON.parse(text);
}

/** @param {string} _key @param {unknown} value @param {{ source?: string }} [context] */
function asWritten(_key, value, context) {
  const source = typeof value === "number" ? context?.source : undefined;
  return source === undefined || source === String(value) ? value : new Written(source);
}

/**
 * The JSON text of a value, on one line except for what is written already.
 * @param {unknown} value
 * @returns {string}
 */
export function write(value) {
  if (value instanceof Written) return value.text;
  if (Array.isArray(value)) return `[${value.map(write).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  const fields = Object.entries(value).filter(([, one]) => one !== undefined);
  return `{${fields.map(([name, one]) => `${JSON.stringify(name)}:${write(one)}`).join(",")}}`;
}

/**
 * The same text on many lines; only the space between its parts changes.
 * @param {string} text
 */
export function indented(text) {
  const parts = [];
  let depth = 0;
  let before = "";
  for (const [token] of text.matchAll(TOKEN)) {
    const opened = before === "[" || before === "{";
    const closes = token === "]" || token === "}";
    if (closes) depth -= 1;
    if (closes ? !opened : opened || before === ",") parts.push(`\n${"  ".repeat(depth)}`);
    parts.push(token === ":" ? ": " : token);
    if (token === "[" || token === "{") depth += 1;
    before = token;
  }
  return parts.join("");
}

/**
 * The text of one field of an object; nothing where there is no such field.
 * @param {string} text @param {string} name
 */
export function fieldText(text, name) {
  let depth = 0;
  let from = -1;
  let named = false;
  let before = "";
  for (const { 0: token, index } of text.matchAll(TOKEN)) {
    if (named && from < 0) from = index;
    if (token === "[" || token === "{") depth += 1;
    if (token === "]" || token === "}") depth -= 1;
    if (from >= 0 && depth === 1) return text.slice(from, index + token.length);
    if (depth === 1 && token === ":") named = JSON.parse(before) === name;
    before = token;
  }
  return undefined;
}
