// One tile: a title with a figure beside it, and the parts that other modules fill in.
//
// Owns the look of a tile and of a bar; knows nothing of what is shown.

import { h, rebuild, say } from "./dom.js";
import { NONE } from "./units.js";

// A bar of parts: [{share, colour}]; the meter's value is their sum.
export function meter(label) {
  return h("div", {
    class: "meter", role: "meter", "aria-label": label,
    "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": "0",
  });
}

export function setMeter(element, parts, text) {
  rebuild(element, parts, () =>
    parts.map(({ share, colour }) =>
      h("i", { class: `c-${colour}`, vars: { width: `${Math.min(1, Math.max(0, share)) * 100}%` } }),
    ),
  );
  const full = parts.reduce((sum, { share }) => sum + share, 0);
  element.setAttribute("aria-valuenow", String(Math.round(Math.min(1, full) * 100)));
  element.setAttribute("aria-valuetext", text);
}

export function row(label, name, note = "") {
  return h("div", { title: note || null }, h("dt", {}, label), h("dd", { data: { field: name } }));
}

export class Tile {
  constructor(id, title, colour, ...content) {
    this.element = h(
      "article",
      { class: "tile", data: { tile: id }, "aria-label": title },
      h(
        "h2",
        {},
        colour ? h("i", { class: `swatch c-${colour}`, "aria-hidden": "true" }) : null,
        title,
        h("span", { class: "share", data: { field: "share" } }),
      ),
      ...content,
    );
    for (const field of this.element.querySelectorAll("[data-field]")) say(field, NONE);
  }

  set(name, text) {
    say(this.element.querySelector(`[data-field="${name}"]`), text);
  }

  part(selector) {
    return this.element.querySelector(selector);
  }
}
