// The JSON routes of the control endpoint, on the page's own origin.
//
// Owns how a request is made and what can come of it: an answer, or a Failure that says what is wrong in one line.

import { askForKey, currentKey } from "./key.js";

const ROOT = "/radix_tier";

// Longer than the server's own limits (10 s for an answer, 30 s for a picture of the tree), so that its 504 arrives.
const PATIENCE_MS = 40000;

export class Failure extends Error {
  // status: of HTTP, or 0 when there was no answer at all
  constructor(status, message) {
    super(message);
    this.status = status;
  }

  // Whether the server answered and said no, instead of not answering.
  get refused() {
    return this.status >= 400 && this.status < 500;
  }
}

async function exchange(path, options) {
  const key = currentKey();
  const headers = { ...options.headers, ...(key === null ? {} : { Authorization: `Bearer ${key}` }) };
  try {
    const signal = AbortSignal.timeout(PATIENCE_MS);
    const response = await fetch(ROOT + path, { ...options, headers, signal, cache: "no-store", redirect: "error" });
    return { key, status: response.status, text: await response.text() };
  } catch (error) {
    const slow = error.name === "TimeoutError";
    throw new Failure(0, slow ? `no answer within ${PATIENCE_MS / 1000} s` : "no connection to the server");
  }
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

async function ask(path, options) {
  for (;;) {
    const answer = await exchange(path, options);
    if (answer.status === 401) {
      // Another request may have asked for the key while this one was under way.
      if (answer.key === currentKey()) await askForKey();
      continue;
    }
    const body = parse(answer.text);
    if (answer.status === 200 && body !== null) return body;
    const told = body !== null && typeof body.error === "string" ? body.error : `the server answered ${answer.status}`;
    throw new Failure(answer.status, told);
  }
}

// get("/explain", {limit: 50})
export function get(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined);
  const text = new URLSearchParams(given).toString();
  return ask(text ? `${path}?${text}` : path, { method: "GET" });
}

// post("/pin", {session: "s1"})
export function post(path, body) {
  const headers = { "Content-Type": "application/json" };
  return ask(path, { method: "POST", headers, body: JSON.stringify(body) });
}
