// Asking again and again: at a steady pace while the page is looked at, more slowly while nobody answers.
//
// Invariant: at most one request of a poll is under way, and none is started while the page is hidden.

const SLOWEST_MS = 30000;

// Pause after so many failures in a row.
export function pauseMs(everyMs, failures) {
  return Math.min(SLOWEST_MS, everyMs * 2 ** Math.min(failures, 10));
}

export class Poll {
  // task: async, throws when it failed. told: called as told(error or null, milliseconds until the next try).
  constructor(everyMs, task, told = () => {}) {
    this.everyMs = everyMs;
    this.task = task;
    this.told = told;
    this.failures = 0;
    this.running = false;
    this.again = false;
    this.timer = null;
    document.addEventListener("visibilitychange", () => this.#wake());
  }

  // Ask now; when a request is under way already, once more after it.
  now() {
    if (this.running) {
      this.again = true;
      return;
    }
    clearTimeout(this.timer);
    this.timer = null;
    this.#run();
  }

  #wake() {
    if (!document.hidden && !this.running) this.now();
  }

  async #run() {
    this.running = true;
    let error = null;
    try {
      await this.task();
      this.failures = 0;
    } catch (caught) {
      error = caught;
      this.failures += 1;
    }
    this.running = false;
    const pause = pauseMs(this.everyMs, this.failures);
    this.told(error, pause);
    if (this.again) {
      this.again = false;
      this.now();
    } else if (!document.hidden) {
      this.timer = setTimeout(() => this.now(), pause);
    }
  }
}
