// One node of the picture: its colours, stripes, label and outline.
//
// Owns how a node looks: the fastest tier that holds its own tokens is its ground, as wide as its share there, and each
// further tier is a stripe below; the longer it was not used, the paler it is; what is merged is hatched.

import { contrast, css, inkOn, mix } from "./colours.js";
import { heat, places } from "./tree_model.js";
import { count } from "./units.js";
import { nodeName } from "./words.js";

const STRIPE = 4;
const PALEST = 0.26;
const LEAST_LABEL = 38;

export const FONT = "11.5px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";

export class NodePainter {
  // pen: 2D context; colours: of palette(); now: Unix seconds
  constructor(pen, colours, now) {
    this.pen = pen;
    this.colours = colours;
    this.now = now;
  }

  // Paint an item into a rectangle.
  node(item, x, y, width, height) {
    const warm = PALEST + (1 - PALEST) * (item.node === null ? 0 : heat(item.last_used, this.now));
    const parts = places(item);
    const { pen, colours } = this;
    const body = mix(colours.surface, parts.length ? colours[parts[0].tier] : colours.empty, parts.length ? warm : 1);
    pen.fillStyle = css(colours.empty);
    pen.fillRect(x, y, width, height);
    const stripes = parts.slice(1);
    const tall = height - stripes.length * (STRIPE + 1);
    pen.fillStyle = css(body);
    pen.fillRect(x, y, parts.length ? Math.max(1, width * parts[0].share) : width, tall);
    stripes.forEach(({ tier, share }, i) => {
      pen.fillStyle = css(mix(colours.surface, colours[tier], Math.max(0.5, warm)));
      pen.fillRect(x, y + tall + 1 + i * (STRIPE + 1), Math.max(1, width * share), STRIPE);
    });
    if (item.merged > 0) this.#hatch(x, y, width, height);
    if (width > LEAST_LABEL) this.#label(item, x, y, width, tall, parts[0]?.share === 1 || !parts.length ? body : null);
  }

  #hatch(x, y, width, height) {
    const { pen, colours } = this;
    pen.save();
    pen.beginPath();
    pen.rect(x, y, width, height);
    pen.clip();
    pen.strokeStyle = css(colours.surface);
    pen.lineWidth = 1;
    pen.beginPath();
    for (let at = x - height; at < x + width; at += 6) {
      pen.moveTo(at, y + height);
      pen.lineTo(at + height, y);
    }
    pen.stroke();
    pen.restore();
  }

  #label(item, x, y, width, height, ground) {
    const { pen, colours } = this;
    pen.save();
    pen.beginPath();
    pen.rect(x, y, width - 3, height + STRIPE);
    pen.clip();
    const text = item.node === null ? "everything" : nodeName(item);
    const size = count(item.below.tokens);
    const middle = y + height / 2 + 0.5;
    // On a ground of two colours the text gets a rim of the page's own.
    const rim = ground === null || item.merged > 0;
    const ink = rim ? colours.ink : readable(colours.ink, ground);
    if (rim) {
      pen.lineWidth = 3;
      pen.lineJoin = "round";
      pen.strokeStyle = css(colours.surface);
      pen.strokeText(text, x + 6, middle);
    }
    pen.fillStyle = css(ink);
    pen.fillText(text, x + 6, middle);
    const room = width - 12 - pen.measureText(text).width - pen.measureText(size).width;
    if (room > 14) {
      pen.textAlign = "right";
      if (rim) pen.strokeText(size, x + width - 7, middle);
      pen.fillText(size, x + width - 7, middle);
    }
    pen.restore();
  }

  // Outline it as chosen, or as part of the path that was searched for.
  outline(chosen, x, y, width, height) {
    const { pen, colours } = this;
    const weight = chosen ? 2 : 1.5;
    pen.strokeStyle = css(chosen ? colours.ink : colours.accent);
    pen.lineWidth = weight;
    if (!chosen) pen.setLineDash([4, 2]);
    pen.strokeRect(x + weight / 2, y + weight / 2, Math.max(1, width - weight), height - weight);
    pen.setLineDash([]);
  }
}

// The page's ink where it can be read, so that most labels look alike.
function readable(ink, ground) {
  return contrast(ink, ground) >= 4.5 ? ink : inkOn(ground);
}
