// Light, dark, or as the system has it.
//
// Owns the attribute data-theme of the page and its place in localStorage. Whoever draws with colours of its own
// listens with onTheme.

import { say } from "./dom.js";

const PLACE = "radixtier-theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };
const listeners = [];

function kept() {
  try {
    const found = localStorage.getItem(PLACE);
    return found in NEXT ? found : "auto";
  } catch {
    return "auto";
  }
}

function show(button, theme) {
  document.documentElement.dataset.theme = theme;
  say(button, `Theme: ${theme}`);
  for (const listener of listeners) listener();
}

export function onTheme(listener) {
  listeners.push(listener);
}

export function startTheme(button) {
  let theme = kept();
  show(button, theme);
  button.addEventListener("click", () => {
    theme = NEXT[theme];
    try {
      localStorage.setItem(PLACE, theme);
    } catch {
      // for as long as the page is open
    }
    show(button, theme);
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show(button, theme));
}
