// The nodes that most requests used, and those that were not used for longest.

import { h, keyed, say } from "./dom.js";
import { places } from "./tree_model.js";
import { ago, count } from "./units.js";
import { nodeName, plural } from "./words.js";

const SHOWN = 8;

// A bar of the tiers that hold a node, as wide as its tokens are many there.
function tierBar(row) {
  return h("span", { class: "mini", "aria-hidden": "true" },
    places(row).map(({ tier, share }) => h("i", { class: `c-${tier}`, vars: { width: `${share * 100}%` } })));
}

// Tiers that hold a node, in words.
function tierWords(row) {
  const found = places(row).map(({ tier }) => ({ hbm: "HBM", dram: "DRAM", nvme: "NVMe", lost: "lost" })[tier]);
  return found.length ? found.join(", ") : "nowhere";
}

export class Hottest {
  // go(row): show a node
  constructor(element, go) {
    this.element = element;
    this.lists = {};
    for (const [name, title] of [["hottest", "Most used"], ["coldest", "Unused for longest"]]) {
      this.lists[name] = h("ul", { class: "nodes", "aria-label": title, data: { list: name } });
      element.append(h("div", {}, h("h3", {}, title), this.lists[name]));
    }
    this.go = go;
  }

  // answer: as GET /radix_tier/tree sends it; tree: made of it
  show(answer, tree, now) {
    this.element.hidden = !(answer.hottest ?? []).length;
    for (const [name, list] of Object.entries(this.lists)) {
      const rows = (answer[name] ?? []).slice(0, SHOWN);
      const last = (row) => (name === "hottest" ? plural(row.hits, "hit") : ago(row.last_used, now));
      keyed(list, rows, (row) => row.node, () => this.#make(), (element, row) => this.#update(element, { only: tree.get(row.node)?.only, ...row }, last(row)));
    }
  }

  #make() {
    const element = h("li", {}, h("button", { type: "button" },
      h("span", { class: "name" }), h("span", { class: "bar" }), h("span", { class: "size" }), h("span", { class: "age" })));
    element.firstChild.addEventListener("click", () => this.go(element.row));
    return element;
  }

  #update(element, row, last) {
    element.row = row;
    const [name, bar, size, age] = element.firstChild.children;
    say(name, nodeName(row));
    say(size, count(row.tokens));
    say(age, last);
    bar.replaceChildren(tierBar(row), h("span", { class: "sr" }, tierWords(row)));
  }
}
