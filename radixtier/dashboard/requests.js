// The last requests: where each one's prompt came from, and opened, its way through the tiers with the reasons.
//
// Owns the table. Rows are kept by request id, so that an opened one stays open while new ones come.

import { h, keyed, rebuild, say } from "./dom.js";
import { ago, clock, count, duration, moment, whole } from "./units.js";
import { lookUp, outcome, REASONS, SOURCES } from "./words.js";

const COLUMNS = ["Arrived", "Session or request", "Prompt", "HBM · DRAM · NVMe · computed", "Waited"];

const WAYS = {
  hbm: "were in HBM and used in place.",
  dram: "were copied from DRAM to HBM, layer by layer.",
  nvme: "were read from NVMe while the request waited, and their checksums verified.",
  computed: "were computed.",
};

function amounts(request) {
  return { ...request.served, computed: request.recomputed };
}

function split(request) {
  const all = Math.max(1, request.prompt_tokens);
  const from = amounts(request);
  return SOURCES.filter(({ id }) => from[id] > 0).map(({ id }) => h("i", { class: `c-${id}`,
    vars: { width: `${(100 * from[id]) / all}%` } }));
}

function splitWords(request) {
  const from = amounts(request);
  return SOURCES.map(({ id, label }) => `${label} ${whole(from[id])}`).join(", ");
}

function cause({ reason, tokens, detail, when, rule }) {
  const how = [when ? `at ${clock(when)}` : "", rule ? `by ${rule}` : "", detail].filter(Boolean).join(", ");
  return h("li", {}, h("b", {}, whole(tokens)), ` ${reason}`, how ? ` (${how})` : "",
    lookUp(REASONS, reason) ? h("span", { class: "means" }, lookUp(REASONS, reason)) : null);
}

function way(request) {
  const from = amounts(request);
  const told = request.causes.reduce((sum, { tokens }) => sum + tokens, 0);
  const untold = request.recomputed - told;
  const causes = request.causes.length || untold > 0 ? h("ul", { class: "why" }, request.causes.map(cause),
    untold > 0 ? h("li", {}, h("b", {}, whole(untold)), " without a record of why") : null) : null;
  const steps = SOURCES.filter(({ id }) => from[id] > 0).map(({ id, label }) =>
    h("li", {}, h("i", { class: `swatch c-${id}`, "aria-hidden": "true" }), h("b", {}, `${label}: `),
      `${whole(from[id])} tokens ${WAYS[id]}`, id === "computed" ? causes : null));
  return [
    h("p", { class: "small" }, `request ${request.request}`,
      request.session === null ? "" : `, session ${request.session}`, `, arrived ${moment(request.arrived)}`,
      request.waited_s > 0 ? `, waited ${duration(request.waited_s)} for NVMe` : ", did not wait for NVMe"),
    h("ol", { class: "way", "aria-label": "Its way through the tiers" }, steps),
    request.hints.length ? h("p", { class: "small" }, "Hints that came with it:") : null,
    request.hints.length ? h("ul", { class: "why" }, request.hints.map((hint) => h("li", {}, outcome(hint)))) : null,
  ];
}

export class Requests {
  constructor(element, sub) {
    this.sub = sub;
    this.open = new Set();
    this.empty = h("p", { class: "note" }, "No request has ended yet.");
    this.body = h("tbody");
    const head = h("tr", {}, COLUMNS.map((name) => h("th", { scope: "col" }, name)));
    const table = h("table", { class: "data", "aria-label": "The last requests" }, h("thead", {}, head), this.body);
    this.table = h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "The last requests" }, table);
    element.append(this.empty, this.table);
  }

  show({ requests }, now) {
    this.last = [requests, now];
    this.empty.hidden = requests.length > 0;
    this.table.hidden = !requests.length;
    say(this.sub, requests.length ? `the last ${requests.length}` : "");
    const rows = requests.flatMap((request) => {
      const opened = this.open.has(request.request);
      return opened ? [{ request }, { request, detail: true }] : [{ request }];
    });
    keyed(this.body, rows, ({ request, detail }) => `${detail ? "detail" : "row"} ${request.request}`,
      ({ request, detail }) => (detail ? this.#makeDetail() : this.#makeRow(request)),
      (element, { request, detail }) => (detail ? rebuild(element.firstChild, request, way)
        : this.#update(element, request, now)));
    const known = new Set(requests.map(({ request }) => request));
    for (const id of this.open) if (!known.has(id)) this.open.delete(id);
  }

  #makeDetail() {
    return h("tr", { class: "opened" }, h("td", { colspan: COLUMNS.length }));
  }

  #makeRow(request) {
    const id = request.request;
    const toggle = h("button", { type: "button", class: "link", on: { click: () => this.#toggle(id) } });
    return h("tr", { class: "request" }, h("td", {}, h("time")), h("td", { class: "who" }, toggle),
      h("td", { class: "number" }), h("td", { class: "bar" }, h("span", { class: "split", role: "img" })),
      h("td", { class: "number" }));
  }

  #update(row, request, now) {
    const [arrived, who, prompt, bar, waited] = row.children;
    arrived.firstChild.title = moment(request.arrived);
    say(arrived.firstChild, ago(request.arrived, now));
    say(who.firstChild, request.session ?? request.request);
    who.firstChild.setAttribute("aria-expanded", String(this.open.has(request.request)));
    say(prompt, count(request.prompt_tokens));
    rebuild(bar.firstChild, amounts(request), () => split(request));
    bar.firstChild.setAttribute("aria-label", splitWords(request));
    bar.title = splitWords(request);
    say(waited, request.waited_s > 0 ? duration(request.waited_s) : "–");
  }

  #toggle(id) {
    if (!this.open.delete(id)) this.open.add(id);
    this.show({ requests: this.last[0] }, this.last[1]);
  }
}
