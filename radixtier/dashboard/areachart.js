// One chart over time: lines or stacked areas, its read-out, and a cursor that all charts share.
//
// Owns the figure's elements. Drawn as SVG with classes, so that colours follow the style sheet. The cursor is a
// slider over time: pointer, arrow keys, Home and End move it, and its text is the read-out.

import { columns, pieces, stack, ticks, timeTicks } from "./charting.js";
import { h, replace, s, say } from "./dom.js";
import { clock } from "./units.js";

const LEFT = 46;
const BOTTOM = 18;
const TOP = 6;
const COLUMNS = 120;

// The time that all charts show the figures of; null for the newest.
export class Cursor {
  constructor() {
    this.at = null;
    this.listeners = [];
  }

  set(at) {
    if (at === this.at) return;
    this.at = at;
    for (const listener of this.listeners) listener();
  }
}

export class Chart {
  // options: {title, series: [{name, label, colour}], stacked, show: number -> text, cursor, total}
  constructor(options) {
    this.options = options;
    this.data = null;
    this.svg = s("svg", { "aria-hidden": "true" });
    this.values = new Map(options.series.map((each) => [each.name, h("b", { data: { value: each.name } })]));
    this.none = h("p", { class: "none" }, "no figures yet");
    this.plot = h(
      "div",
      {
        class: "plot", role: "slider", tabindex: "0",
        "aria-label": `${options.title}: time`, "aria-valuemin": "0", "aria-valuemax": "0", "aria-valuenow": "0",
        on: {
          pointermove: (event) => this.#point(event),
          pointerleave: () => options.cursor.set(null),
          keydown: (event) => this.#key(event),
          blur: () => options.cursor.set(null),
        },
      },
      this.svg,
      this.none,
    );
    this.element = h("figure", { class: "chart", data: { chart: options.id } }, this.#head(), this.plot);
    options.cursor.listeners.push(() => this.#read());
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  #head() {
    const { title, series, total } = this.options;
    if (total) this.sum = h("b", { data: { value: "total" } });
    return h(
      "figcaption",
      {},
      h("span", { class: "chart-title" }, title),
      h(
        "span",
        { class: "readout" },
        series.map(({ label, name, colour }) =>
          h("span", { class: "key" }, h("i", { class: `swatch c-${colour}`, "aria-hidden": "true" }), `${label} `,
            this.values.get(name)),
        ),
        total ? h("span", { class: "key" }, "all ", this.sum) : null,
      ),
    );
  }

  // Show a history ({at, series}) over the last `seconds`.
  show(history, seconds) {
    if (!history.at.length) return;
    this.none.hidden = true;
    const names = this.options.series.map((each) => each.name);
    const to = history.at.at(-1) ?? 0;
    const width = Math.max(1, seconds / COLUMNS);
    this.data = { ...columns(history, names, to - seconds, to, width), to, seconds };
    this.draw();
  }

  draw() {
    const width = this.plot.clientWidth;
    const height = this.plot.clientHeight;
    if (!this.data || width < LEFT + 20 || height < BOTTOM + TOP + 10) return;
    const { series, stacked } = this.options;
    const layers = series.map(({ name }) => this.data.columns[name]);
    const bands = stacked ? stack(layers) : null;
    const tops = bands ? bands.at(-1).map((band) => band?.[1] ?? 0) : layers.flat().map((value) => value ?? 0);
    const marks = ticks(Math.max(0, ...tops), height > 150 ? 4 : 2);
    this.scale = this.#scale(width, height, marks.at(-1));
    this.line = s("line", { class: "cursor", y1: TOP, y2: height - BOTTOM });
    this.when = s("text", { class: "now", y: height - 4, "text-anchor": "middle" });
    this.mark = s("g", { visibility: "hidden" }, this.line, this.when);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const shapes = bands
      ? bands.map((band, i) => this.#area(band, series[i].colour)).reverse()
      : layers.map((layer, i) => this.#path(layer, series[i].colour));
    replace(this.svg, this.#grid(width, height, marks), shapes, this.mark);
    this.#read();
  }

  #scale(width, height, most) {
    const { from, to, seconds, width_s } = this.data;
    const inner = width - LEFT - 6;
    const start = to - seconds;
    return {
      // A column is drawn at its middle, but never outside.
      x: (i) => LEFT + inner * Math.min(1, Math.max(0, (from + (i + 0.5) * width_s - start) / seconds)),
      xAt: (t) => LEFT + (inner * (t - start)) / seconds,
      y: (value) => TOP + (height - TOP - BOTTOM) * (1 - value / most),
      at: (x) => start + ((x - LEFT) / inner) * seconds,
    };
  }

  #grid(width, height, marks) {
    const { to, seconds } = this.data;
    const { y, xAt } = this.scale;
    const lines = marks.map((mark) => [
      s("line", { class: mark ? "grid" : "axis", x1: LEFT, x2: width - 6, y1: y(mark), y2: y(mark) }),
      s("text", { class: "tick", x: LEFT - 6, y: y(mark) + 3.5, "text-anchor": "end" }, this.options.tick(mark)),
    ]);
    const times = timeTicks(to - seconds, to, Math.max(1, Math.floor(width / 90)));
    const labels = times
      .filter((t) => xAt(t) > LEFT + 14 && xAt(t) < width - 20)
      .map((t) => s("text", { class: "tick", x: xAt(t), y: height - 4, "text-anchor": "middle" }, clock(t, t % 60 > 0)));
    return [...lines.flat(), ...labels];
  }

  #area(band, colour) {
    const { x, y } = this.scale;
    const shape = pieces(band).map(([start, end]) => {
      const there = [];
      const back = [];
      for (let i = start; i < end; i += 1) {
        there.push(`${x(i).toFixed(1)} ${y(band[i][1]).toFixed(1)}`);
        back.push(`${x(i).toFixed(1)} ${y(band[i][0]).toFixed(1)}`);
      }
      return `M${there.join("L")}L${back.reverse().join("L")}Z`;
    });
    return s("path", { class: `area f-${colour}`, d: shape.join("") });
  }

  #path(layer, colour) {
    const { x, y } = this.scale;
    const shape = pieces(layer).map(([start, end]) => {
      const points = layer.slice(start, end).map((value, i) => `${x(start + i).toFixed(1)} ${y(value).toFixed(1)}`);
      // A lonely point would be invisible as a line of no length.
      return points.length > 1 ? `M${points.join("L")}` : `M${points[0]}h1.5`;
    });
    return s("path", { class: `line s-${colour}`, d: shape.join("") });
  }

  #count() {
    return Object.values(this.data.columns)[0].length;
  }

  // The column that the cursor is in, else the newest that is whole.
  #column() {
    const n = this.#count();
    const { at } = this.options.cursor;
    if (at === null) return Math.max(0, n - 2);
    return Math.min(n - 1, Math.max(0, Math.floor((at - this.data.from) / this.data.width_s)));
  }

  #read() {
    if (!this.data || !this.scale) return;
    const column = this.#column();
    const time = this.data.from + column * this.data.width_s;
    const shown = this.options.cursor.at !== null;
    say(this.when, clock(time));
    const read = this.options.series.map(({ name, label }) => {
      const value = this.data.columns[name][column];
      say(this.values.get(name), this.options.show(value));
      return [label, value];
    });
    if (this.sum) {
      const known = read.map(([, value]) => value).filter((value) => value !== null);
      say(this.sum, this.options.show(known.length ? known.reduce((a, b) => a + b, 0) : null));
    }
    const x = this.scale.x(column);
    this.mark.setAttribute("visibility", shown ? "visible" : "hidden");
    this.line.setAttribute("x1", x);
    this.line.setAttribute("x2", x);
    this.when.setAttribute("x", Math.min(x, this.plot.clientWidth - 30));
    this.plot.setAttribute("aria-valuemax", this.#count() - 1);
    this.plot.setAttribute("aria-valuenow", column);
    const text = read.map(([label, value]) => `${label} ${this.options.show(value)}`).join(", ");
    this.plot.setAttribute("aria-valuetext", `${clock(time)}: ${text}`);
  }

  #point(event) {
    if (!this.scale) return;
    const box = this.plot.getBoundingClientRect();
    this.options.cursor.set(this.scale.at(event.clientX - box.left));
  }

  #key(event) {
    if (!this.scale) return;
    const n = this.#count();
    const moves = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 };
    const ends = { Home: 0, End: n - 1 };
    if (event.key === "Escape") {
      this.options.cursor.set(null);
    } else if (event.key in moves || event.key in ends) {
      const to = ends[event.key] ?? Math.min(n - 1, Math.max(0, this.#column() + moves[event.key]));
      this.options.cursor.set(this.data.from + (to + 0.5) * this.data.width_s);
    } else {
      return;
    }
    event.preventDefault();
  }
}
