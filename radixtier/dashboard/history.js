// What is known of the last minutes or hours, kept up to date with small questions.
//
// Owns one joined history for the chosen range. After the first answer only the newest part is asked for again. A
// range has either one-second or ten-second steps, as the server keeps them; they are never mixed.

import { get } from "./api.js";
import { merge } from "./charting.js";

export const RANGES = [
  { label: "5 min", seconds: 300 },
  { label: "15 min", seconds: 900 },
  { label: "1 h", seconds: 3600 },
  { label: "6 h", seconds: 21600 },
];

// From here on the server answers in ten-second steps.
const FINE_S = 900;

const EMPTY = { at: [], series: {} };

export class History {
  constructor(range) {
    this.range = range;
    this.joined = EMPTY;
    this.answered = 0; // when, on this machine's clock: the server's may differ
    this.listeners = [];
  }

  listen(listener) {
    this.listeners.push(listener);
  }

  choose(range) {
    this.range = range;
    this.joined = EMPTY;
  }

  // Ask for what is new; throws a Failure.
  async refresh() {
    const range = this.range;
    const answer = await get("/history", { seconds: this.#missing() });
    if (range !== this.range) return; // another one was chosen meanwhile
    this.answered = performance.now();
    const newest = answer.at.at(-1) ?? 0;
    const restarted = this.joined.at.length > 0 && newest < this.joined.at.at(-1);
    this.joined = merge(restarted ? EMPTY : this.joined, answer, newest - range.seconds);
    for (const listener of this.listeners) listener(this.joined, range);
  }

  #missing() {
    const { seconds } = this.range;
    if (!this.joined.at.length) return seconds;
    const since = Math.ceil((performance.now() - this.answered) / 1000) + 30;
    return seconds <= FINE_S ? Math.min(seconds, since) : Math.min(seconds, Math.max(FINE_S + 1, since));
  }
}
