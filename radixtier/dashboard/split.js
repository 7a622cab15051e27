// Where prompt tokens came from over time: the large chart.

import { Chart } from "./areachart.js";
import { count } from "./units.js";
import { SOURCES } from "./words.js";

export function splitChart(cursor) {
  return new Chart({
    id: "split",
    title: "Prompt tokens per second, by where they came from",
    series: SOURCES.map(({ id, label }) => ({ name: `${id}_tokens_per_s`, label, colour: id })),
    stacked: true,
    total: true,
    show: count,
    tick: count,
    cursor,
  });
}
