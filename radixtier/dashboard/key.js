// The key of the server: from the URL's fragment or from a person, kept in this tab only.
//
// Owns its place in sessionStorage. A key in the fragment leaves the address bar before anything is asked with it, so
// that it does not stay in the history or in a screenshot.

import { byId, say } from "./dom.js";

const PLACE = "radixtier-key";

let fallback = null;

function kept() {
  try {
    return sessionStorage.getItem(PLACE);
  } catch {
    return fallback; // storage is blocked: for as long as the page is open
  }
}

function keep(key) {
  fallback = key;
  try {
    sessionStorage.setItem(PLACE, key);
  } catch {
    // kept in memory then
  }
}

// The key to ask with, or null.
export function currentKey() {
  return kept();
}

// Take the key out of the fragment, if there is one.
export function takeKeyFromAddress() {
  const key = new URLSearchParams(location.hash.slice(1)).get("key");
  if (key === null) return;
  history.replaceState(null, "", location.pathname + location.search);
  if (key) keep(key);
}

let asking = null;

// Ask for a key, once however many requests were refused; resolves when one was given.
export function askForKey() {
  asking ??= new Promise((resolve) => {
    const dialog = byId("key-dialog");
    const field = byId("key-field");
    const wrong = byId("key-wrong");
    wrong.hidden = kept() === null;
    if (!wrong.hidden) say(wrong, "The server does not take this key.");
    field.value = "";
    byId("key-form").onsubmit = (event) => {
      event.preventDefault();
      if (!field.value) return;
      keep(field.value);
      field.value = "";
      asking = null;
      dialog.close();
      resolve();
    };
    // Without a key nothing can be shown: Escape, which a page cannot always keep from closing it, asks again.
    dialog.onclose = () => asking && dialog.showModal();
    dialog.showModal();
    field.focus();
  });
  return asking;
}
