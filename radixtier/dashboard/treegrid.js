// The tree as a table, for keyboards and screen readers: the same items as the picture, as an ARIA treegrid.
//
// Owns its rows; only those of opened nodes exist. One row has the tab stop. Arrow right opens or goes in, arrow left
// closes or goes out, up and down move, Home and End go to the ends, Enter looks at the row's subtree alone.

import { h, keyed, say } from "./dom.js";
import { canZoom } from "./tree_model.js";
import { ago, count } from "./units.js";
import { nodeName } from "./words.js";

const COLUMNS = ["Node", "Tokens below", "HBM", "DRAM", "NVMe", "Hits", "Last used"];

const keyOf = (item) => (item.node === null ? "all" : String(item.node));

export class TreeGrid {
  // on: {select(item), zoom(item), out(), home()}
  constructor(element, on) {
    this.on = on;
    this.open = new Set(["all"]);
    this.tree = null;
    this.focused = "all";
    this.body = h("tbody", { role: "rowgroup" });
    const head = COLUMNS.map((name) => h("th", { scope: "col", role: "columnheader" }, name));
    this.grid = h(
      "table",
      { role: "treegrid", "aria-label": "The tree by tier, as a table", class: "data",
        on: { keydown: (event) => this.#key(event), click: (event) => this.#click(event) } },
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)),
      this.body,
    );
    element.append(h("div", { class: "scroll" }, this.grid));
  }

  show(tree, now) {
    if (this.tree?.root !== tree.root) {
      this.open.add(keyOf(tree.top));
      this.focused = keyOf(tree.top);
    }
    this.tree = tree;
    this.now = now;
    this.#draw();
  }

  select(node) {
    this.selected = node;
    if (this.tree) this.#draw();
  }

  // Items in the order of the rows, with their level and place among their siblings.
  #visible() {
    const found = [];
    const visit = (item, level, place, of) => {
      found.push({ item, level, place, of });
      if (!this.open.has(keyOf(item))) return;
      const children = this.tree.childrenOf(item.node);
      children.forEach((child, i) => visit(child, level + 1, i + 1, children.length));
    };
    visit(this.tree.top, 1, 1, 1);
    return found;
  }

  #draw() {
    const rows = this.#visible();
    if (!rows.some(({ item }) => keyOf(item) === this.focused)) this.focused = keyOf(this.tree.top);
    keyed(this.body, rows, ({ item }) => keyOf(item), () => this.#make(), (row, each) => this.#update(row, each));
  }

  #make() {
    const cells = COLUMNS.slice(1).map(() => h("td", { role: "gridcell" }));
    const name = h("th", { scope: "row", role: "rowheader" },
      h("span", { class: "twist", "aria-hidden": "true" }), h("span", { class: "name" }));
    return h("tr", { role: "row" }, name, cells);
  }

  #update(row, { item, level, place, of }) {
    const key = keyOf(item);
    const children = this.tree.childrenOf(item.node).length;
    row.setAttribute("aria-level", level);
    row.setAttribute("aria-posinset", place);
    row.setAttribute("aria-setsize", of);
    row.setAttribute("tabindex", key === this.focused ? "0" : "-1");
    row.setAttribute("aria-selected", String(item.node === this.selected));
    if (children) row.setAttribute("aria-expanded", String(this.open.has(key)));
    else row.removeAttribute("aria-expanded");
    row.style.setProperty("--level", level - 1);
    const below = item.below;
    const texts = [count(below.tokens), count(below.hbm), count(below.dram), count(below.nvme), count(item.hits),
      ago(item.last_used, this.now)];
    say(row.querySelector(".name"), item.node === null ? "everything" : nodeName(item));
    [...row.querySelectorAll("td")].forEach((cell, i) => say(cell, texts[i]));
  }

  #itemOf(row) {
    return row.dataset.key === "all" ? this.tree.top : this.tree.get(Number(row.dataset.key));
  }

  #focus(row) {
    if (!row) return;
    this.body.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
    this.focused = row.dataset.key;
    row.setAttribute("tabindex", "0");
    row.focus();
  }

  #toggle(key, open) {
    if (open) this.open.add(key);
    else this.open.delete(key);
    this.#draw();
  }

  #click(event) {
    const row = event.target.closest("tbody tr");
    if (!row) return;
    const { key } = row.dataset;
    if (event.target.closest(".twist") && row.hasAttribute("aria-expanded")) this.#toggle(key, !this.open.has(key));
    this.#focus(row);
    this.on.select(this.#itemOf(row));
  }

  #key(event) {
    const row = event.target.closest("tbody tr");
    if (!row || event.altKey || event.ctrlKey || event.metaKey) return;
    const { key } = row.dataset;
    const item = this.#itemOf(row);
    const opened = row.getAttribute("aria-expanded");
    const acts = {
      ArrowDown: () => this.#focus(row.nextElementSibling),
      ArrowUp: () => this.#focus(row.previousElementSibling),
      ArrowRight: () => (opened === "false" ? this.#toggle(key, true) : opened && this.#focus(row.nextElementSibling)),
      ArrowLeft: () => (opened === "true" ? this.#toggle(key, false) : this.#focus(this.#parentRow(item))),
      Home: () => this.#focus(this.body.firstElementChild),
      End: () => this.#focus(this.body.lastElementChild),
      Enter: () => (canZoom(item) ? this.on.zoom(item) : this.on.select(item)),
      " ": () => this.on.select(item),
      Backspace: () => this.on.out(),
      Escape: () => this.on.out(),
    };
    if (!(event.key in acts)) return;
    event.preventDefault();
    acts[event.key]();
  }

  #parentRow(item) {
    const parent = this.tree.parentOf(item);
    return parent && this.body.querySelector(`[data-key="${keyOf(parent)}"]`);
  }
}
