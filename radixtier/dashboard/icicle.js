// The picture of the tree: draws an icicle on a canvas, and turns pointer and keys into nodes.
//
// Owns the canvas, the view (which part of the width is shown) and its animation. A node is as wide as the tokens below
// it; icicle_paint.js says what it looks like. Knows nothing of the server.

import { palette } from "./colours.js";
import { moves } from "./dom.js";
import { find, hit, layout, pixels } from "./icicle_layout.js";
import { FONT, NodePainter } from "./icicle_paint.js";
import { onTheme } from "./theme.js";
import { canZoom } from "./tree_model.js";

// Pixels of a row: as many as fit, so that a flat tree is no thin line.
const LEAST_ROW = 28;
const MOST_ROW = 38;
const WANTED = 300;
const GAP = 1;
const MOST_ROWS = 80;
const ZOOM_MS = 220;

export class Icicle {
  // on: {select(item), zoom(item), out(), home(), hover(item or null, event)}
  constructor(canvas, on) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.on = on;
    this.tree = null;
    this.rows = [];
    this.view = { x0: 0, x1: 1 };
    this.row = LEAST_ROW;
    this.base = 0; // depth of the first row that is drawn
    this.selected = undefined;
    this.marked = new Set();
    this.frame = null;
    onTheme(() => this.#recolour());
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    canvas.addEventListener("click", (event) => this.#click(event));
    canvas.addEventListener("pointermove", (event) => on.hover(this.#at(event), event));
    canvas.addEventListener("pointerleave", () => on.hover(null, null));
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  #recolour() {
    this.colours = null;
    this.draw();
  }

  // Show a tree; its top fills the width.
  show(tree, now) {
    this.tree = tree;
    this.now = now;
    this.rows = layout(tree);
    this.view = { x0: 0, x1: 1 };
    this.base = 0;
    this.colours = palette();
    this.draw();
  }

  // node: a number, null for everything, or undefined for none
  select(node) {
    this.selected = node;
    this.draw();
  }

  // Draw these nodes as a path.
  mark(nodes) {
    this.marked = new Set(nodes);
    this.draw();
  }

  // Move the view to an item of the tree that is shown; resolves when it is there.
  async zoomTo(node) {
    const box = find(this.rows, node);
    if (!box || box.x1 <= box.x0) return;
    this.base = box.depth;
    const from = this.view;
    const to = { x0: box.x0, x1: box.x1 };
    const start = performance.now();
    const mine = (this.flight = {});
    const span = moves() && !document.hidden ? ZOOM_MS : 0;
    for (let share = 0; share < 1; ) {
      share = span ? Math.min(1, (performance.now() - start) / span) : 1;
      const eased = 1 - (1 - share) ** 3;
      this.view = { x0: from.x0 + (to.x0 - from.x0) * eased, x1: from.x1 + (to.x1 - from.x1) * eased };
      this.#paint();
      if (share < 1) await new Promise((done) => requestAnimationFrame(done));
      if (this.flight !== mine) return;
    }
  }

  draw() {
    if (this.frame !== null) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      this.#paint();
    });
  }

  #paint() {
    const width = this.canvas.parentElement.clientWidth;
    if (!this.tree || width < 1) return;
    this.colours ??= palette();
    this.painter = new NodePainter(this.pen, this.colours, this.now);
    const rows = this.rows.slice(this.base, this.base + MOST_ROWS);
    this.row = Math.min(MOST_ROW, Math.max(LEAST_ROW, Math.floor(WANTED / rows.length)));
    this.canvas.dataset.row = this.row;
    this.#resize(width, rows.length * this.row);
    this.drawn = 0;
    rows.forEach((row, i) => this.#row(row, i * this.row, width));
    this.canvas.dataset.drawn = this.drawn;
  }

  // Clears it too.
  #resize(width, height) {
    const dense = window.devicePixelRatio || 1;
    const { canvas, pen } = this;
    const size = [Math.round(width * dense), Math.round(height * dense)];
    if (canvas.width !== size[0] || canvas.height !== size[1]) {
      [canvas.width, canvas.height] = size;
      canvas.style.height = `${height}px`;
    }
    pen.setTransform(dense, 0, 0, dense, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = FONT;
    pen.textBaseline = "middle";
  }

  #row(row, top, width) {
    const height = this.row - 2;
    let covered = -1;
    for (const box of row) {
      const span = pixels(box, this.view, width);
      if (span === null) continue;
      this.drawn += 1;
      // Many nodes may share one pixel: one of them is enough to see that something is there.
      const shown = this.selected === box.item.node || this.marked.has(box.item.node);
      if (span.right <= covered && !shown) continue;
      const left = span.right - span.left > 3 ? span.left + GAP / 2 : span.left;
      const right = Math.max(left + 1, span.right - span.left > 3 ? span.right - GAP / 2 : span.right);
      this.painter.node(box.item, left, top, right - left, height);
      if (shown) this.painter.outline(this.selected === box.item.node, left, top, right - left, height);
      covered = right;
    }
  }

  #at(event) {
    const box = this.canvas.getBoundingClientRect();
    const row = this.rows[this.base + Math.floor((event.clientY - box.top) / this.row)];
    if (!row || !box.width) return null;
    const share = (event.clientX - box.left) / box.width;
    return hit(row, this.view.x0 + share * (this.view.x1 - this.view.x0))?.item ?? null;
  }

  #click(event) {
    const item = this.#at(event);
    if (!item) return;
    if (item === this.rows[this.base]?.[0]?.item) this.on.out();
    else if (canZoom(item)) this.on.zoom(item);
    else this.on.select(item);
  }

  #key(event) {
    if (!this.tree || event.altKey || event.ctrlKey || event.metaKey) return;
    const acts = {
      Enter: () => this.on.zoom(this.#current()),
      " ": () => this.on.select(this.#current()),
      Escape: () => this.on.out(),
      Backspace: () => this.on.out(),
      Home: () => this.on.home(),
      ArrowUp: () => this.#go(this.tree.parentOf(this.#current())),
      ArrowDown: () => this.#go(widest(this.tree.childrenOf(this.#current().node))),
      ArrowLeft: () => this.#go(this.#beside(-1)),
      ArrowRight: () => this.#go(this.#beside(1)),
    };
    if (!(event.key in acts)) return;
    event.preventDefault();
    acts[event.key]();
  }

  #current() {
    return this.tree.get(this.selected) ?? this.tree.top;
  }

  #beside(step) {
    const current = this.#current();
    const all = this.tree.siblings(current);
    return all[all.indexOf(current) + step];
  }

  #go(item) {
    if (!item) return;
    this.on.select(item);
    const box = find(this.rows, item.node);
    const scroll = this.canvas.parentElement;
    const top = (box.depth - this.base) * this.row;
    if (top < scroll.scrollTop) scroll.scrollTop = top;
    if (top + this.row > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = top + this.row - scroll.clientHeight;
  }
}

function widest(items) {
  return items.reduce((best, item) => (best && best.below.tokens >= item.below.tokens ? best : item), undefined);
}
