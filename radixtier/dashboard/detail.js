// The selected node: where its bytes are, who uses it, what was decided about it, and hints for its session.
//
// Owns the panel. It is filled from the tree at once and from GET /radix_tier/explain/node when that has answered.

import { get, post } from "./api.js";
import { h, rebuild, say } from "./dom.js";
import { ago, clock, count, duration, until, whole } from "./units.js";
import { HINTS, LASTING, lookUp, nodeName, outcome, plural } from "./words.js";

const PLACES = {
  HBM: "hbm",
  DRAM: "dram",
  "DRAM and NVMe": "dram",
  NVMe: "nvme",
  "on the way to DRAM": "empty",
  "nowhere below HBM": "lost",
};

const NO_SESSION = "Hints go by session, and this node belongs to none, or to several.";

function line(label, text) {
  return h("div", {}, h("dt", {}, label), h("dd", {}, text));
}

export class Detail {
  // on: {go(node): show another node}
  constructor(element, on) {
    this.on = on;
    this.item = null;
    this.session = null;
    this.title = h("h3", {}, "Selected node");
    this.sub = h("p", { class: "sub" });
    this.facts = h("dl", { class: "rows" });
    this.places = h("ul", { class: "places", "aria-label": "Where its bytes are" });
    this.decisions = h("ol", { class: "decisions", "aria-label": "Last decisions about it" });
    this.note = h("p", { class: "note", hidden: true });
    this.hints = this.#hintForm();
    this.element = element;
    element.append(this.title, this.sub, this.note, this.places, this.facts, this.decisions, this.hints);
    this.clear();
  }

  #hintForm() {
    this.why = h("p", { class: "small", id: "hint-why" });
    this.answer = h("p", { class: "answer", role: "status", data: { field: "outcome" } });
    this.lasting = h("select", { "aria-label": "How long a retain or a pin lasts" },
      LASTING.map(({ label, seconds }) => h("option", { value: seconds }, label)));
    this.buttons = HINTS.map((hint) =>
      h("button", {
        type: "button", title: hint.does, "aria-describedby": "hint-why", data: { hint: hint.kind },
        on: { click: () => this.#give(hint) },
      }, hint.label));
    const lasts = h("label", { class: "lasts" }, "for ", this.lasting);
    return h("div", { class: "hints", role: "group", "aria-label": "Hints" }, h("h4", {}, "Hints"), this.why,
      h("div", { class: "buttons" }, this.buttons, lasts), this.answer);
  }

  clear() {
    this.item = null;
    this.element.classList.add("empty");
    say(this.title, "Nothing selected");
    say(this.sub, "Choose a node in the picture, in the table, or below.");
    for (const part of [this.places, this.facts, this.decisions, this.hints]) part.hidden = true;
    this.note.hidden = true;
  }

  // item: of the tree, or a row that names a node which the tree has merged.
  show(item, now) {
    if (this.item?.node !== item.node) {
      say(this.answer, "");
      this.report = null;
      for (const list of [this.places, this.decisions]) rebuild(list, null, () => []);
    }
    this.item = item;
    this.element.classList.remove("empty");
    say(this.title, item.node === null ? "Everything" : nodeName(item));
    this.hints.hidden = item.node === null || item.merged > 0;
    this.places.hidden = this.decisions.hidden = this.hints.hidden;
    this.facts.hidden = false;
    this.note.hidden = !(item.merged > 0);
    if (item.merged > 0) say(this.note, "They are too small to be drawn one by one; look at the node above them alone.");
    this.#describe(now);
    this.#setSession(item.session ?? item.only ?? null);
  }

  #setSession(session) {
    this.session = session;
    for (const button of this.buttons) button.disabled = session === null;
    say(this.why, session === null ? NO_SESSION : `They act on the whole path of session ${session}.`);
  }

  #describe(now) {
    const { item, report } = this;
    const below = item.below;
    const start = item.start_token ?? report?.start_token;
    const end = start + item.tokens;
    const place = Number.isFinite(start) && item.node !== null && !item.merged;
    say(this.sub, place ? `node ${item.node}, tokens ${whole(start)} to ${whole(end)}` : "");
    const facts = [];
    if (below) facts.push(["below it", `${plural(below.nodes, "node")}, ${count(below.tokens)} tokens`]);
    if (item.node !== null) {
      facts.push(["used by", plural(report?.hits ?? item.hits, "request")]);
      facts.push(["last used", ago(report?.last_used ?? item.last_used, now)]);
      const expected = report?.expected ?? item.expected;
      facts.push(["expected again", expected ? until(expected, now) : "not known"]);
      const pins = Object.entries(report?.pinned ?? item.pinned ?? {});
      facts.push(["pinned", pins.length ? pins.map(([tier, s]) => `${tier} for ${duration(s)}`).join(", ") : "no"]);
    }
    rebuild(this.facts, facts, () => facts.map(([label, text]) => line(label, text)));
  }

  // Ask for what the tree does not tell.
  async refresh(now) {
    const { item } = this;
    if (item === null || item.node === null || item.merged > 0) return;
    let answer;
    try {
      answer = await get("/explain/node", { node: item.node });
    } catch (error) {
      if (this.item !== item) return;
      this.note.hidden = false;
      say(this.note, error.message);
      return;
    }
    if (this.item?.node !== item.node) return;
    this.note.hidden = true;
    this.report = answer.nodes.find((each) => each.node === item.node) ?? answer.nodes.at(-1);
    this.#describe(now);
    if (this.report) this.#explain(this.report);
  }

  #explain(report) {
    this.#setSession(report.session ?? this.item.session ?? this.item.only ?? null);
    const places = Object.entries(report.places).filter(([, n]) => n > 0);
    rebuild(this.places, [places, report.tokens], () =>
      places.map(([place, n]) =>
        h("li", {},
          h("span", { class: `place-bar c-${lookUp(PLACES, place) ?? "empty"}`, "aria-hidden": "true",
            vars: { width: `${Math.min(100, (100 * n) / Math.max(1, report.tokens))}%` } }),
          h("span", { class: "place" }, place), h("b", {}, `${whole(n)} tokens`))));
    const events = [...report.events].reverse();
    rebuild(this.decisions, [events, report.parent], () => [
      ...events.map(({ when, what, why }) =>
        h("li", {}, h("time", {}, clock(when)), h("span", {}, what, why ? h("i", {}, ` ${why}`) : null))),
      report.parent === null ? null : h("li", { class: "up" },
        h("button", { type: "button", class: "link", on: { click: () => this.on.go(report.parent) } },
          `behind node ${report.parent}`)),
    ]);
  }

  async #give({ kind, lasts }) {
    const { session } = this;
    const body = { session, ...(lasts ? { ttl_s: Number(this.lasting.value) } : {}) };
    say(this.answer, `${kind} …`);
    let text;
    try {
      text = outcome(await post(`/${kind}`, body));
    } catch (error) {
      text = `${kind}: ${error.message}`;
    }
    if (session === this.session) say(this.answer, text);
  }
}
