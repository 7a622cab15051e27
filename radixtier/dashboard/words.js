// What things are called on this page, and in plain words what they mean.
//
// Pure data and functions without DOM.

import { count } from "./units.js";

// From the fastest to the slowest; computed is what no tier had.
export const TIERS = [
  { id: "hbm", label: "HBM" },
  { id: "dram", label: "DRAM" },
  { id: "nvme", label: "NVMe" },
];
export const SOURCES = [...TIERS, { id: "computed", label: "Computed" }];

export const REASONS = {
  "never seen": "No tier has held these tokens before.",
  evicted: "All tiers had forgotten them to make room.",
  lost: "Their bytes could not be read, or were dropped before they were written.",
  "not worth waiting for": "Computing them was faster than reading them.",
  declined: "A budget or a limit kept them from being brought up.",
  "always computed": "The last tokens of a prompt, and what shares their page.",
};

// What a table says about a name from elsewhere; null when it says nothing.
export function lookUp(table, name) {
  return Object.hasOwn(table, name) ? table[name] : null;
}

const HEALTH = {
  ok: "Healthy",
  degraded: "Degraded",
  draining: "Draining",
  drained: "Drained",
};

// The status of the server's health as a word; one that is not known is shown as it is.
export function healthWord(status) {
  return lookUp(HEALTH, status) ?? String(status);
}

export const HINTS = [
  { kind: "prefetch", label: "Prefetch", does: "bring the path up to DRAM now", lasts: false },
  { kind: "demote", label: "Demote", does: "write the path to NVMe and give up its place in DRAM", lasts: false },
  { kind: "retain", label: "Retain", does: "keep the path on NVMe while others go", lasts: true },
  { kind: "pin", label: "Pin", does: "keep the path in DRAM", lasts: true },
  { kind: "release", label: "Release", does: "end pins, shares and retains of the path", lasts: false },
];

export const LASTING = [
  { label: "10 min", seconds: 600 },
  { label: "1 h", seconds: 3600 },
  { label: "1 day", seconds: 86400 },
];

// 1 -> "1 node", 2 -> "2 nodes"
export function plural(n, noun) {
  return `${count(n)} ${noun}${n === 1 ? "" : "s"}`;
}

// The name of a node for people: its session, or the only one that it leads to.
export function nodeName(row) {
  if (row.merged > 0) return plural(row.merged, "small node");
  return String(row.session ?? row.only ?? `node ${row.node}`);
}

// The outcome of a hint in one line.
export function outcome(answer) {
  const of = `${answer.tokens_granted} of ${answer.tokens_asked} tokens`;
  return `${answer.kind}: ${answer.status}, ${of}${answer.reason ? `: ${answer.reason}` : ""}`;
}
