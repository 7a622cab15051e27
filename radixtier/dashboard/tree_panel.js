// The tree by tier: brings picture, table, selection, search and what the server says together.
//
// Owns which subtree is shown (`root`) and which node is selected. The picture zooms at once in what is known; then the
// server is asked for that subtree alone, where small nodes that were merged come apart.

import { get } from "./api.js";
import { Detail } from "./detail.js";
import { byId, h, rebuild, replace, say } from "./dom.js";
import { Hottest } from "./hottest.js";
import { Icicle } from "./icicle.js";
import { Poll } from "./poll.js";
import { Search } from "./search.js";
import { canZoom, places, Tree } from "./tree_model.js";
import { TreeGrid } from "./treegrid.js";
import { ago, count, percent } from "./units.js";
import { nodeName, plural } from "./words.js";

const EVERY_MS = 5000;
// Reading a tree takes the server's scheduler a moment per thousand nodes: larger ones are asked for less often.
const OFTEN_NODES = 50000;
const MOST = 1500;
const DETAIL_AFTER_MS = 150;

const VIEWS = [{ id: "picture", label: "Picture" }, { id: "table", label: "Table" }];

const LEGEND = [["hbm", "HBM"], ["dram", "DRAM"], ["nvme", "NVMe"], ["lost", "lost"]];

export class TreePanel {
  // now: () -> Unix seconds on the server's clock
  constructor(now) {
    this.now = now;
    this.root = null;
    this.selected = undefined;
    this.tree = null;
    const on = {
      select: (item) => this.#select(item),
      zoom: (item) => this.#zoom(item),
      out: () => this.#out(),
      home: () => this.#home(),
      hover: (item, event) => this.#hover(item, event),
    };
    this.icicle = new Icicle(byId("icicle"), on);
    this.grid = new TreeGrid(byId("table"), on);
    this.detail = new Detail(byId("detail"), { go: (node) => this.#goTo({ node }) });
    this.hottest = new Hottest(byId("hottest"), (row) => this.#goTo(row));
    this.search = new Search({ found: (nodes) => this.icicle.mark(nodes), go: (row) => this.#goTo(row) });
    this.poll = new Poll(EVERY_MS, () => this.#refresh(), (error) => this.#told(error));
    this.#views();
    replace(byId("legend"), LEGEND.map(([tier, label]) => h("span", { class: "key" },
      h("i", { class: `swatch c-${tier}`, "aria-hidden": "true" }), label)),
    h("span", {}, "width: tokens below; paler: unused for longer; stripes: further copies"));
  }

  #views() {
    for (const { id, label } of VIEWS) {
      const radio = h("input", { type: "radio", name: "view", value: id, checked: id === "picture",
        on: { change: () => this.#view(id) } });
      byId("views").append(h("label", {}, radio, h("span", {}, label)));
    }
  }

  #view(chosen) {
    this.view = chosen;
    for (const { id } of VIEWS) byId(id).hidden = id !== chosen;
    if (this.tree) this.#draw();
  }

  async #refresh() {
    const wanted = this.root;
    let answer;
    try {
      answer = await get("/tree", { root: wanted, most: MOST });
    } catch (error) {
      // The node that was looked at may have been forgotten meanwhile.
      if (!error.refused || wanted === null || wanted !== this.root) throw error;
      this.root = null;
      this.poll.now();
      say(byId("icicle-live"), `Node ${wanted} is gone; everything is shown.`);
      return;
    }
    if (wanted !== this.root) return; // somebody zoomed meanwhile
    await this.flight;
    this.tree = new Tree(answer);
    this.poll.everyMs = EVERY_MS * Math.max(1, answer.total_nodes / OFTEN_NODES);
    this.hottest.show(answer, this.tree, this.now());
    this.#draw();
    this.#refreshDetail();
  }

  #told(error) {
    const sub = byId("tree-sub");
    if (error) {
      say(sub, error.message);
      return;
    }
    if (!this.tree) return;
    const drawn = this.tree.items.size;
    const all = this.tree.totalNodes;
    say(sub, `${plural(all, "node")}${drawn < all ? `, ${count(drawn)} shown` : ""}`);
  }

  #draw() {
    const now = this.now();
    if (this.view === "table") {
      this.grid.show(this.tree, now);
    } else {
      this.icicle.show(this.tree, now);
    }
    this.#crumbs();
  }

  #crumbs() {
    const path = [{ node: null }, ...this.tree.path.filter((row) => row.node !== this.tree.root)];
    if (this.tree.root !== null) path.push(this.tree.top);
    rebuild(byId("crumbs"), path.map(({ node, session }) => [node, session]), () =>
      h("ol", {}, path.map((row, i) => {
        const name = row.node === null ? "everything" : nodeName(row);
        const here = i === path.length - 1;
        const button = h("button", { type: "button", class: "link", "aria-current": here ? "location" : null,
          on: { click: () => this.#look(row.node) } }, name);
        return h("li", {}, button);
      })));
  }

  #refreshDetail() {
    if (this.selected === undefined) return;
    const item = this.tree.get(this.selected);
    if (item) this.detail.show(item, this.now());
    this.detail.refresh(this.now());
  }

  #select(item) {
    this.selected = item.node;
    this.icicle.select(item.node);
    this.grid.select(item.node);
    this.detail.show(item, this.now());
    say(byId("icicle-live"), this.#spoken(item));
    // Who walks through many nodes with the keys asks about the last one only.
    clearTimeout(this.later);
    this.later = setTimeout(() => this.detail.refresh(this.now()), DETAIL_AFTER_MS);
  }

  #spoken(item) {
    const name = item.node === null ? "everything" : nodeName(item);
    const where = places(item).map(({ tier, share }) => `${percent(share)} in ${tier}`).join(", ");
    const more = this.tree.childrenOf(item.node).length;
    return `${name}: ${count(item.below.tokens)} tokens below${where ? `, its own ${where}` : ""}, ${plural(more, "node")} behind it`;
  }

  #zoom(item) {
    this.#select(item);
    if (canZoom(item) && item !== this.tree.top) {
      this.flight = this.view === "table" ? null : this.icicle.zoomTo(item.node);
      this.#look(item.node);
    }
  }

  #out() {
    if (this.root !== null && this.tree) this.#look(this.#above(this.root));
  }

  // The node in front of another: in the tree that is shown, which may still be that of before a zoom.
  #above(node) {
    const item = this.tree.get(node);
    if (item && item !== this.tree.top) return this.tree.parentOf(item).node;
    return this.tree.path.filter((row) => row.node !== node).at(-1)?.node ?? null;
  }

  #home() {
    this.#look(null);
    if (this.tree?.root === null) this.#select(this.tree.top);
  }

  // Show one subtree, or everything for null.
  #look(node) {
    if (node === this.root) return;
    this.root = node;
    this.poll.now();
  }

  // Show a node wherever it is, also one that is merged in what is shown.
  async #goTo(row) {
    const item = this.tree?.get(row.node);
    if (item) {
      this.#select(item);
      return;
    }
    this.selected = row.node;
    this.icicle.select(row.node);
    this.detail.show({ hits: 0, session: null, merged: 0, tokens: 0, ...row }, this.now());
    this.#look(row.node);
    await this.detail.refresh(this.now());
  }

  #hover(item, event) {
    const tip = byId("tip");
    tip.hidden = item === null;
    if (item === null) return;
    const now = this.now();
    rebuild(tip, [item.node, item.below, item.last_used], () => [
      h("b", {}, item.node === null ? "everything" : nodeName(item)),
      item.session !== null && item.node >= 0 ? h("span", {}, `node ${item.node}`) : null,
      h("span", {}, `${count(item.below.tokens)} tokens below in ${plural(item.below.nodes, "node")}`),
      ...places(item).map(({ tier, share }) => h("span", { class: "key" },
        h("i", { class: `swatch c-${tier}` }), `${percent(share)} of ${count(item.tokens)} in ${tier.toUpperCase()}`)),
      item.node === null ? null : h("span", {}, `used ${ago(item.last_used, now)}, ${plural(item.hits, "hit")}`),
      item.merged > 0 ? h("span", {}, "too small to draw one by one") : null,
    ]);
    const { innerWidth, innerHeight } = window;
    const { offsetWidth, offsetHeight } = tip;
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - offsetWidth - 8)}px`;
    const below = event.clientY + 18;
    tip.style.top = `${below + offsetHeight > innerHeight ? event.clientY - offsetHeight - 10 : below}px`;
  }
}
