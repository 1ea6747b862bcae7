// Asks for a key, once. The server keeps a session for it; the key itself stays nowhere in the browser.

import { fill, h } from "../lib/dom.js";
import { get, post } from "../lib/api.js";

export const title = "Log in";

/** Shows the login in place of everything else. What was looked at comes back when the page loads anew. */
export function show() {
  document.title = "Log in · Abide";
  const told = h("div", { role: "alert", id: "login-told" });
  const key = h("input", { type: "password", id: "login-key", name: "key", autocomplete: "off", spellcheck: "false", "aria-describedby": "login-note login-told", required: true });
  const send = h("button", { class: "primary", type: "submit" }, "Log in");
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    send.disabled = true;
    fill(told);
    const refusal = await logIn(key.value);
    send.disabled = false;
    if (refusal === null) return location.reload();
    fill(told, h("p", { class: "fault" }, refusal));
    key.setAttribute("aria-invalid", "true");
    key.select();
  };
  fill(document.body, h("main", { class: "login" },
    h("div", { class: "brand" }, h("img", { src: "/ui/icon.svg", alt: "", width: "24", height: "24" }), h("span", null, "Abide")),
    h("form", { class: "panel", on: { submit } },
      h("h1", null, "Log in"),
      h("div", { class: "field" },
        h("label", { for: "login-key" }, "Key"),
        key,
        h("p", { class: "note", id: "login-note" }, "It is asked for once. ", h("code", null, "abide key create NAME --role ROLE"), " makes one.")),
      told,
      send)));
  key.focus();
}

/** Why it did not work; null when it did. @param {string} key @returns {Promise<string | null>} */
async function logIn(key) {
  try {
    await post("/v1/session", { key: key.trim() });
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
  try {
    await get("/v1/session");
    return null;
  } catch {
    return "The key is right, but the browser kept no session. Over plain http it does so only for this machine itself: use https, or open this page as localhost.";
  }
}
