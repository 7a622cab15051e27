// Colours of the style sheet for what is drawn by hand, and what can be computed of colours.
//
// A colour is [red, green, blue], each 0 to 255.

const NAMES = ["surface", "ink", "muted", "line", "hbm", "dram", "nvme", "computed", "lost", "accent", "empty"];

export function parse(text) {
  const [r, g, b] = text.match(/[\d.]+/g).map(Number);
  return [r, g, b];
}

// The colours that hold now, by name.
export function palette() {
  const probe = document.createElement("i");
  document.body.append(probe);
  const found = {};
  for (const name of NAMES) {
    probe.style.color = `var(--${name})`;
    found[name] = parse(getComputedStyle(probe).color);
  }
  probe.remove();
  return found;
}

export function mix(from, to, share) {
  return from.map((value, i) => value + (to[i] - value) * share);
}

export function css(colour) {
  return `rgb(${colour.map(Math.round).join(" ")})`;
}

// Relative luminance as WCAG 2 defines it.
function luminance(colour) {
  const [r, g, b] = colour.map((value) => {
    const c = value / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

export function contrast(a, b) {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
}

const BLACK = [12, 14, 18];
const WHITE = [255, 255, 255];

// Black or white, whichever can be read on a colour.
export function inkOn(colour) {
  return contrast(colour, WHITE) >= contrast(colour, BLACK) ? WHITE : BLACK;
}
