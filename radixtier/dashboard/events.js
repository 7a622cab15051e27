// What the server had to say lately, the newest first.

import { byId, h, keyed, say } from "./dom.js";
import { clock, moment } from "./units.js";
import { lookUp } from "./words.js";

const LEVELS = {
  info: { mark: "i", word: "information" },
  warning: { mark: "!", word: "warning" },
  error: { mark: "×", word: "error" },
  critical: { mark: "×", word: "critical error" },
};

const MARKED = { "!": "warning", "×": "error" };

function levelOf(event) {
  return lookUp(LEVELS, String(event.level).toLowerCase()) ?? { mark: "·", word: String(event.level) };
}

export class Events {
  constructor() {
    this.list = h("ol", { class: "events-list", "aria-label": "Events, newest first" });
    this.empty = h("p", { class: "note" });
    this.filter = byId("events-warnings");
    this.all = [];
    byId("events").append(this.empty, h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Events" },
      this.list));
    this.filter.addEventListener("change", () => this.#draw());
  }

  show({ events }) {
    this.all = events;
    this.#draw();
  }

  // Said in the place of a list.
  tell(text) {
    this.all = [];
    this.#draw();
    say(this.empty, text);
    this.empty.hidden = false;
  }

  #draw() {
    const shown = this.filter.checked ? this.all.filter((event) => levelOf(event).mark !== "i") : this.all;
    this.empty.hidden = shown.length > 0;
    say(this.empty, this.filter.checked ? "No warnings." : "Nothing happened yet.");
    const seen = new Map();
    const key = (event) => {
      const name = `${event.at} ${event.level} ${event.text}`;
      seen.set(name, (seen.get(name) ?? 0) + 1);
      return `${name} ${seen.get(name)}`;
    };
    keyed(this.list, shown, key, (event) => this.#make(event), (element, event) => {
      say(element.lastChild, event.times > 1 ? `${event.times} times` : "");
    });
  }

  #make(event) {
    const { mark, word } = levelOf(event);
    return h("li", { class: `level-${lookUp(MARKED, mark) ?? "other"}` },
      h("span", { class: "mark", role: "img", "aria-label": word }, mark),
      h("time", { title: moment(event.at) }, clock(event.at)),
      h("span", { class: "text" }, event.text), h("span", { class: "times" }));
  }
}
