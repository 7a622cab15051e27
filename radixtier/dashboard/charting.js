// The arithmetic of charts over time: merging, averaging over columns, stacking, ticks.
//
// Pure functions without DOM. Times are Unix seconds; null stands for "not known" and is never drawn as 0.

// Join what is known with a later answer that overlaps it; forget what is older than `oldest`.
// Both are {at: [t...], series: {name: [number|null...]}}.
export function merge(known, later, oldest) {
  const names = new Set([...Object.keys(known.series), ...Object.keys(later.series)]);
  const first = later.at.length ? later.at[0] : Infinity;
  let end = known.at.length;
  while (end > 0 && known.at[end - 1] >= first) end -= 1;
  let start = 0;
  while (start < end && known.at[start] < oldest) start += 1;
  const fresh = later.at.findIndex((t) => t >= oldest);
  const from = fresh < 0 ? later.at.length : fresh;
  const gap = (n) => new Array(n).fill(null);
  const joined = { at: [...known.at.slice(start, end), ...later.at.slice(from)], series: {} };
  for (const name of names) {
    const before = known.series[name]?.slice(start, end) ?? gap(end - start);
    const after = later.series[name]?.slice(from) ?? gap(later.at.length - from);
    joined.series[name] = [...before, ...after];
  }
  return joined;
}

// Longest time that one figure is drawn for: a server that was stopped for longer leaves a gap.
const LONGEST_S = 120;

// When the time begins that a figure stands for: at the figure before it.
function begin(at, i) {
  const before = i > 0 ? at[i - 1] : at[0] - ((at[1] ?? at[0] + 1) - at[0]);
  return Math.max(before, at[i] - LONGEST_S);
}

// Means over columns of `width_s` seconds that begin at multiples of it, so that they stay as they are while time
// goes on; each figure counts for as long as it stands for. Returns {from: time of the first column, width_s,
// columns: {name: [mean|null...]}}.
export function columns(history, names, from, to, width_s) {
  const { at } = history;
  const first = Math.floor(from / width_s);
  const n = Math.max(1, Math.ceil(to / width_s - 1e-6) - first);
  const out = {};
  for (const name of names) {
    const sums = new Float64Array(n);
    const times = new Float64Array(n);
    (history.series[name] ?? []).forEach((value, i) => {
      if (value === null) return;
      let start = begin(at, i);
      while (start < at[i] - 1e-6) {
        const column = Math.floor(start / width_s + 1e-6);
        const end = Math.min(at[i], (column + 1) * width_s);
        if (column >= first && column < first + n) {
          sums[column - first] += value * (end - start);
          times[column - first] += end - start;
        }
        start = end;
      }
    });
    out[name] = Array.from(sums, (sum, i) => (times[i] > 0 ? sum / times[i] : null));
  }
  return { from: first * width_s, width_s, columns: out };
}

// Lower and upper edge of each layer, the first at the bottom; a column where nothing is known stays null.
export function stack(layers) {
  const floor = new Array(layers[0]?.length ?? 0).fill(0);
  return layers.map((layer) =>
    layer.map((value, i) => {
      if (layers.every((other) => other[i] === null)) return null;
      const low = floor[i];
      floor[i] += value ?? 0;
      return [low, floor[i]];
    }),
  );
}

// Pieces of consecutive known entries, as [start, end) pairs.
export function pieces(values) {
  const found = [];
  let start = -1;
  values.forEach((value, i) => {
    if (value !== null && start < 0) start = i;
    if (value === null && start >= 0) {
      found.push([start, i]);
      start = -1;
    }
  });
  if (start >= 0) found.push([start, values.length]);
  return found;
}

// Round figures from 0 up to at least `most`, about `n` steps.
export function ticks(most, n = 3) {
  if (!(most > 0)) return [0, 1];
  const rough = most / n;
  const ten = 10 ** Math.floor(Math.log10(rough));
  const step = ten * [1, 2, 5, 10].find((m) => m * ten >= rough * 0.999999);
  const count = Math.max(1, Math.ceil(most / step - 1e-9));
  return Array.from({ length: count + 1 }, (_, i) => i * step);
}

const TIME_STEPS = [15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400];

// Whole minutes or hours between two times, at most `n`.
export function timeTicks(from, to, n) {
  const step = TIME_STEPS.find((each) => (to - from) / each <= n) ?? TIME_STEPS.at(-1);
  const found = [];
  for (let t = Math.ceil(from / step) * step; t <= to; t += step) found.push(t);
  return found;
}

// Mean over the last `seconds` of a series; null when nothing is known.
export function recent(history, name, seconds) {
  const values = history.series[name];
  const { at } = history;
  if (!values || !at.length) return null;
  const since = at.at(-1) - seconds;
  let sum = 0;
  let time = 0;
  for (let i = values.length - 1; i >= 0 && at[i] > since; i -= 1) {
    if (values[i] === null) continue;
    const lasted = at[i] - Math.max(since, begin(at, i));
    sum += values[i] * lasted;
    time += lasted;
  }
  return time > 0 ? sum / time : null;
}
