// Numbers as text, with units: tokens and rates in powers of 1000, bytes in powers of 1024, times as people say them.
//
// Pure functions without DOM. What is not a finite number is shown as an en dash, never as NaN.

export const NONE = "–";

const COUNTS = ["", "k", "M", "G", "T"];
const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const RATES = ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"];

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

// Three significant digits at most, without trailing zeros behind the point.
function short(value) {
  const size = Math.abs(value);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : 2;
  const text = value.toFixed(digits);
  return digits ? text.replace(/\.?0+$/, "") : text;
}

function scaled(value, base, names) {
  let step = 0;
  let size = Math.abs(value);
  // 999.5 would be written as "1000 k": it belongs to the next name already.
  while (size >= base - 0.5 && step < names.length - 1) {
    size /= base;
    step += 1;
  }
  return [short(Math.sign(value) * size), names[step]];
}

// 12345 -> "12.3k"
export function count(value) {
  if (!isNumber(value)) return NONE;
  if (Math.abs(value) < 999.5) return short(value);
  return scaled(value, 1000, COUNTS).join("");
}

// 12345 -> "12,345"
export function whole(value) {
  return isNumber(value) ? Math.round(value).toLocaleString("en-US") : NONE;
}

// 1536 -> "1.5 KiB"
export function bytes(value) {
  return isNumber(value) ? scaled(value, 1024, BYTES).join(" ") : NONE;
}

// 1536 -> "1.54 kB/s", as drives are sold and measured
export function bytesRate(value) {
  return isNumber(value) ? scaled(value, 1000, RATES).join(" ") : NONE;
}

export function tokens(value) {
  return isNumber(value) ? `${count(value)} tokens` : NONE;
}

export function tokensRate(value) {
  return isNumber(value) ? `${count(value)} tok/s` : NONE;
}

export function milliseconds(value) {
  return isNumber(value) ? `${short(value)} ms` : NONE;
}

// A share from 0 to 1 in percent; small shares and those just below the whole are not rounded away.
export function percent(share) {
  if (!isNumber(share)) return NONE;
  const value = share * 100;
  if (value > 0 && value < 0.1) return "< 0.1 %";
  if (value > 99.9 && value < 100) return "> 99.9 %";
  return `${value.toFixed(value !== 0 && Math.abs(value) < 10 ? 1 : 0)} %`;
}

// 93 -> "1 min 33 s"; two parts at most.
export function duration(seconds) {
  if (!isNumber(seconds)) return NONE;
  const s = Math.max(0, seconds);
  if (s > 0 && s < 0.0005) return "< 1 ms";
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${short(s)} s`;
  const parts = [
    [Math.floor(s / 86400), "d"],
    [Math.floor(s / 3600) % 24, "h"],
    [Math.floor(s / 60) % 60, "min"],
    [Math.floor(s) % 60, "s"],
  ];
  const first = parts.findIndex(([n]) => n > 0);
  return parts
    .slice(first, first + 2)
    .filter(([n]) => n > 0)
    .map(([n, unit]) => `${n} ${unit}`)
    .join(" ");
}

// Time since a moment, both in Unix seconds.
export function ago(at, now) {
  if (!isNumber(at) || !isNumber(now)) return NONE;
  return now - at < 1 ? "just now" : `${duration(Math.floor(now - at))} ago`;
}

// "in 3 min", or "since 2 min" when the moment is over.
export function until(at, now) {
  if (!isNumber(at) || !isNumber(now)) return NONE;
  return at >= now ? `in ${duration(Math.ceil(at - now))}` : `${duration(Math.floor(now - at))} ago`;
}

// Time of day here, as 24 hours.
export function clock(at, withSeconds = true) {
  if (!isNumber(at)) return NONE;
  const date = new Date(at * 1000);
  if (Number.isNaN(date.getTime())) return NONE;
  const two = (n) => String(n).padStart(2, "0");
  const text = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return withSeconds ? `${text}:${two(date.getSeconds())}` : text;
}

// Date and time here; for what may be days away.
export function moment(at) {
  if (!isNumber(at)) return NONE;
  const date = new Date(at * 1000);
  if (Number.isNaN(date.getTime())) return NONE;
  const two = (n) => String(n).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock(at)}`;
}
