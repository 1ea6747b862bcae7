// A form from a JSON Schema, and the value back from the form. What a form cannot show is edited as JSON.

/** @import { Json, Schema } from "./types.js" */

import { freshId, h } from "./dom.js";
import { Written, indented, write } from "./json.js";
import { words } from "../parts/states.js";

/**
 * @typedef {object} Form
 * @property {HTMLElement} element
 * @property {() => { value: Json } | { faults: Fault[] }} read the value, or what is wrong with it
 * @property {(faults: Fault[]) => void} show marks fields, also with what the server said
 * @typedef {{ pointer: string, detail: string }} Fault
 *
 * @typedef {object} Field
 * @property {HTMLElement} element
 * @property {(faults: Fault[]) => Json | undefined} read
 * @property {(pointer: string, detail: string) => boolean} mark
 */

/** Values deeper than this are edited as JSON. */
const DEEPEST = 3;

/**
 * @param {Schema} schema
 * @param {Json} [start] what is filled in already
 * @returns {Form}
 */
export function formOf(schema, start) {
  const field = fieldOf(schema, "", "", true, start ?? schema.default, 0);
  const element = h("div", { class: "form" }, field.element);
  const form = {
    element,
    read() {
      clear(element);
      /** @type {Fault[]} */
      const faults = [];
      const value = field.read(faults);
      if (!faults.length) return { value: value === undefined ? null : value };
      form.show(faults);
      return { faults };
    },
    /** @param {Fault[]} faults */
    show(faults) {
      const lost = faults.filter((fault) => !field.mark(fault.pointer, fault.detail));
      if (lost.length) element.prepend(h("p", { class: "fault", role: "alert" }, lost.map((fault) => `${fault.pointer} ${fault.detail}`.trim()).join(" ")));
      /** @type {HTMLElement | null} */ (element.querySelector("[aria-invalid=true]"))?.focus();
    },
  };
  return form;
}

/** @param {HTMLElement} element */
function clear(element) {
  element.querySelectorAll(".fault").forEach((fault) => fault.remove());
  element.querySelectorAll("[aria-invalid]").forEach((field) => field.removeAttribute("aria-invalid"));
}

/** @param {Schema} schema */
function typeOf(schema) {
  const types = Array.isArray(schema.type) ? schema.type.filter((type) => type !== "null") : [schema.type];
  return types.length === 1 ? types[0] : undefined;
}

/**
 * @param {Schema} schema @param {string} pointer @param {string} name @param {boolean} required
 * @param {Json | undefined} start @param {number} depth
 * @returns {Field}
 */
function fieldOf(schema, pointer, name, required, start, depth) {
  const type = typeOf(schema);
  if (schema.enum) return choice(schema, pointer, name, required, start);
  if (type === "object" && schema.properties && depth < DEEPEST) return group(schema, pointer, name, required, start, depth);
  if (type === "boolean") return check(schema, pointer, name, start);
  if (type === "integer" || type === "number") return text(schema, pointer, name, required, start, asNumber);
  if (type === "string") return text(schema, pointer, name, required, start, asText);
  if (type === "array" && schema.items && isSimple(schema.items)) return lines(schema, pointer, name, required, start);
  return json(schema, pointer, name, required, start);
}

/** @param {Schema} schema */
function isSimple(schema) {
  return typeOf(schema) === "string" && !schema.enum;
}

/** @type {(schema: Schema, pointer: string, name: string, required: boolean, start: Json | undefined, depth: number) => Field} */
function group(schema, pointer, name, required, start, depth) {
  const held = start !== null && typeof start === "object" && !Array.isArray(start) && !(start instanceof Written) ? start : {};
  const fields = Object.entries(schema.properties ?? {}).map(([key, one]) => ({
    key,
    field: fieldOf(one, `${pointer}/${escape(key)}`, key, schema.required?.includes(key) ?? false, held[key] ?? one.default, depth + 1),
  }));
  const body = fields.map(({ field }) => field.element);
  const element = name ? h("fieldset", null, h("legend", null, titleOf(schema, name)), note(schema), body) : h("div", { class: "fields" }, note(schema), body);
  return {
    element,
    read(faults) {
      // What the schema does not name is kept as it came.
      const known = new Set(fields.map(({ key }) => key));
      /** @type {{ [key: string]: Json }} */
      const value = Object.fromEntries(Object.entries(held).filter(([key]) => !known.has(key)));
      let some = required || Object.keys(value).length > 0;
      /** @type {Fault[]} */
      const own = [];
      for (const { key, field } of fields) {
        const one = field.read(own);
        if (one === undefined) continue;
        value[key] = one;
        // A box that is not ticked is not yet an answer.
        some ||= one !== false;
      }
      // A group that may be left out and was left empty is not missing anything.
      if (!some) return undefined;
      faults.push(...own);
      return value;
    },
    mark: (at, detail) => fields.some(({ field }) => field.mark(at, detail)),
  };
}

/** @type {(schema: Schema, pointer: string, name: string, required: boolean, start: Json | undefined) => Field} */
function choice(schema, pointer, name, required, start) {
  const values = schema.enum ?? [];
  const select = h("select", { "aria-required": required ? "true" : null },
    (!required || start === undefined) && h("option", { value: "" }, required ? "Choose…" : "–"),
    values.map((value, at) => h("option", { value: String(at), selected: start !== undefined && write(value) === write(start) }, typeof value === "string" ? value : write(value))));
  return wrap(schema, pointer, name, required, select, (faults) => {
    if (select.value !== "") return values[Number(select.value)];
    if (required) faults.push({ pointer, detail: "Choose one." });
    return undefined;
  });
}

/** @type {(schema: Schema, pointer: string, name: string, start: Json | undefined) => Field} */
function check(schema, pointer, name, start) {
  const box = h("input", { type: "checkbox", checked: start === true });
  const element = h("div", { class: "field" }, h("label", { class: "check" }, box, titleOf(schema, name)), note(schema));
  return { element, read: () => box.checked, mark: marker(pointer, box, element) };
}

/** @typedef {(text: string, schema: Schema) => Json | Error} Reading */

/** A number of JSON. */
const NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/;

/** @type {Reading} */
function asNumber(given, schema) {
  const number = Number(given);
  if (given.trim() === "" || !Number.isFinite(number)) return new Error("Give a number.");
  if (typeOf(schema) === "integer" && !Number.isInteger(number)) return new Error("Give a whole number.");
  if (schema.minimum !== undefined && number < schema.minimum) return new Error(`At least ${schema.minimum}.`);
  if (schema.maximum !== undefined && number > schema.maximum) return new Error(`At most ${schema.maximum}.`);
  if (schema.exclusiveMinimum !== undefined && number <= schema.exclusiveMinimum) return new Error(`More than ${schema.exclusiveMinimum}.`);
  if (schema.exclusiveMaximum !== undefined && number >= schema.exclusiveMaximum) return new Error(`Less than ${schema.exclusiveMaximum}.`);
  const written = given.trim();
  return String(number) !== written && NUMBER.test(written) ? new Written(written) : number;
}

/** @type {Reading} */
function asText(given, schema) {
  const length = [...given].length;
  if (schema.minLength !== undefined && length < schema.minLength) return new Error(`At least ${schema.minLength} characters.`);
  if (schema.maxLength !== undefined && length > schema.maxLength) return new Error(`At most ${schema.maxLength} characters.`);
  if (schema.pattern !== undefined && !fits(schema.pattern, given)) return new Error(`It must match ${schema.pattern}.`);
  return given;
}

/** A pattern that this browser cannot read is left to the server. @param {string} pattern @param {string} given */
function fits(pattern, given) {
  try {
    return new RegExp(pattern, "u").test(given);
  } catch {
    return true;
  }
}

/** @type {(schema: Schema, pointer: string, name: string, required: boolean, start: Json | undefined, reading: Reading) => Field} */
function text(schema, pointer, name, required, start, reading) {
  const given = start === undefined || start === null ? "" : String(start);
  const long = schema.format === "textarea" || (schema.maxLength ?? 0) > 200 || given.length > 80;
  const kind = { date: "date", email: "email", uri: "url" }[schema.format ?? ""] ?? (reading === asNumber && !(start instanceof Written) ? "number" : "text");
  const input = long ? h("textarea", { rows: 4 }) : h("input", { type: kind, step: kind === "number" ? "any" : null, autocomplete: "off" });
  input.value = given;
  input.setAttribute("aria-required", String(required));
  return wrap(schema, pointer, name, required, input, (faults) => {
    if (input.value === "" && !(required && reading === asText && schema.minLength === 0)) {
      if (required) faults.push({ pointer, detail: "This is needed." });
      return undefined;
    }
    const value = reading(input.value, schema);
    if (!(value instanceof Error)) return value;
    faults.push({ pointer, detail: value.message });
    return undefined;
  });
}

/** @type {(schema: Schema, pointer: string, name: string, required: boolean, start: Json | undefined) => Field} */
function lines(schema, pointer, name, required, start) {
  const area = h("textarea", { rows: 3, placeholder: "one on each line" });
  area.value = Array.isArray(start) ? start.join("\n") : "";
  return wrap(schema, pointer, name, required, area, (faults) => {
    const values = area.value.split("\n").map((line) => line.trim()).filter(Boolean);
    if (schema.minItems !== undefined && values.length < schema.minItems) faults.push({ pointer, detail: `At least ${schema.minItems}.` });
    if (schema.maxItems !== undefined && values.length > schema.maxItems) faults.push({ pointer, detail: `At most ${schema.maxItems}.` });
    return values.length || required ? values : undefined;
  });
}

/** @type {(schema: Schema, pointer: string, name: string, required: boolean, start: Json | undefined) => Field} */
function json(schema, pointer, name, required, start) {
  const area = h("textarea", { class: "code", rows: 6, spellcheck: "false", "aria-label": name ? null : "JSON" });
  area.value = start === undefined ? "" : indented(write(start));
  const offered = area.value;
  return wrap(schema, pointer, name, required, area, (faults) => {
    if (area.value.trim() === "") {
      if (required) faults.push({ pointer, detail: "This is needed, as JSON." });
      return undefined;
    }
    if (start !== undefined && area.value === offered) return start;
    try {
      JSON.parse(area.value);
      return new Written(area.value);
    } catch (error) {
      faults.push({ pointer, detail: `This is not JSON: ${error instanceof Error ? error.message : error}` });
      return undefined;
    }
  });
}

/**
 * @param {Schema} schema @param {string} pointer @param {string} name @param {boolean} required
 * @param {HTMLElement} control @param {Field["read"]} read
 * @returns {Field}
 */
function wrap(schema, pointer, name, required, control, read) {
  control.id = freshId("field");
  control.dataset.pointer = pointer;
  const label = name || schema.title ? h("label", { for: control.id }, titleOf(schema, name), required ? null : h("span", { class: "faint" }, " optional")) : null;
  const element = h("div", { class: "field" }, label, note(schema), control);
  return { element, read, mark: marker(pointer, control, element) };
}

/** @param {string} pointer @param {HTMLElement} control @param {HTMLElement} element */
function marker(pointer, control, element) {
  return (/** @type {string} */ at, /** @type {string} */ detail) => {
    if (at !== pointer && !(pointer && at.startsWith(`${pointer}/`))) return false;
    const fault = h("p", { class: "fault", id: freshId("fault") }, detail);
    element.append(fault);
    control.setAttribute("aria-invalid", "true");
    control.setAttribute("aria-describedby", fault.id);
    return true;
  };
}

/** @param {Schema} schema @param {string} name */
function titleOf(schema, name) {
  return schema.title ?? words(name);
}

/** @param {Schema} schema */
function note(schema) {
  return schema.description ? h("p", { class: "note" }, schema.description) : null;
}

/** @param {string} key */
function escape(key) {
  return key.replaceAll("~", "~0").replaceAll("/", "~1");
}
