// The other rates over time: small charts that share the cursor of the large one.

import { Chart } from "./areachart.js";
import { bytesRate, count, milliseconds, tokensRate } from "./units.js";

const CHARTS = [
  {
    id: "traffic", title: "NVMe traffic", show: bytesRate, tick: bytesRate,
    series: [
      { name: "read_bytes_per_s", label: "read", colour: "nvme" },
      { name: "write_bytes_per_s", label: "written", colour: "plain" },
    ],
  },
  {
    id: "latency", title: "NVMe latency", show: milliseconds, tick: count,
    series: [
      { name: "read_p50_ms", label: "read p50", colour: "dram" },
      { name: "read_p99_ms", label: "read p99", colour: "nvme" },
      { name: "write_p99_ms", label: "write p99", colour: "plain" },
    ],
  },
  {
    id: "moved", title: "Moved between tiers", show: tokensRate, tick: count,
    series: [
      { name: "promoted_tokens_per_s", label: "up", colour: "dram" },
      { name: "demoted_tokens_per_s", label: "down", colour: "nvme" },
      { name: "lost_tokens_per_s", label: "lost", colour: "lost" },
    ],
  },
  {
    id: "queues", title: "Queues", show: count, tick: count,
    series: [
      { name: "io_queue", label: "I/O pieces", colour: "nvme" },
      { name: "waiting_requests", label: "requests for NVMe", colour: "hbm" },
    ],
  },
  {
    id: "requests", title: "Requests finished", show: (value) => `${count(value)} /s`, tick: count,
    series: [{ name: "requests_per_s", label: "all", colour: "plain" }],
  },
  {
    id: "tick", title: "Our part of a scheduler step", show: milliseconds, tick: count,
    series: [{ name: "tick_ms", label: "mean", colour: "plain" }],
  },
];

export function rateCharts(cursor) {
  return CHARTS.map((options) => new Chart({ ...options, stacked: false, cursor }));
}
