// The header: which server this is, how it is, and what to do about it when it is not well.
//
// Owns the header, the list of reasons, the banner about a server that does not answer, and the live region of both.

import { Failure } from "./api.js";
import { byId, h, rebuild, replace, say } from "./dom.js";
import { ago, clock, duration } from "./units.js";
import { healthWord } from "./words.js";

function fact(name, label) {
  return [h("div", {}, h("dt", {}, label), h("dd", { data: { field: name } }, "–"))];
}

function reason(each, now) {
  const since = each.since ? `since ${clock(each.since)} (${ago(each.since, now)})` : "";
  return h(
    "li",
    {},
    h("p", { class: "what" }, each.what, " ", since ? h("span", { class: "since" }, since) : null),
    each.why ? h("p", { class: "because" }, each.why) : null,
    each.fix ? h("p", { class: "fix" }, h("b", {}, "What to do: "), each.fix) : null,
  );
}

export class Header {
  constructor() {
    this.button = byId("health");
    this.reasons = byId("reasons");
    this.lastStatus = null;
    replace(byId("facts"), [fact("model", "model"), fact("version", "radixtier"), fact("uptime", "up")].flat());
    this.button.addEventListener("click", () => this.#open(this.reasons.hidden));
  }

  #open(open) {
    this.reasons.hidden = !open;
    this.button.setAttribute("aria-expanded", String(open));
  }

  #fact(name, text) {
    say(byId("facts").querySelector(`[data-field=${name}]`), text);
  }

  show(state) {
    this.#fact("model", state.model ?? "–");
    this.#fact("version", state.version ? `${state.version}, SGLang ${state.sglang ?? "–"}` : "–");
    this.#fact("uptime", duration(state.now - state.started));
    document.title = `${state.model ?? "radixtier"} – ${healthWord(state.health?.status ?? "unknown")}`;
    this.#health(state.health ?? { status: "unknown", reasons: [] }, state.now);
  }

  #health({ status, reasons }, now) {
    const word = healthWord(status);
    this.button.dataset.status = status;
    say(byId("health-word"), reasons.length ? `${word} (${reasons.length})` : word);
    // The minute in "since" is part of the data: otherwise it would stay as it was first shown.
    rebuild(this.reasons, { status, reasons, minute: Math.floor(now / 60) }, () => [
      h("h2", {}, `Health: ${word}`),
      reasons.length
        ? h("ul", {}, reasons.map((each) => reason(each, now)))
        : h("p", {}, "Nothing is wrong that this server knows of."),
    ]);
    if (status !== this.lastStatus) {
      // Bad news opens by itself; what was opened by hand stays open.
      if (status !== "ok" && reasons.length) this.#open(true);
      const told = reasons.map((each) => `${each.what}: ${each.why}`).join("; ");
      if (this.lastStatus !== null || status !== "ok") say(byId("health-live"), `Health: ${word}. ${told}`);
      this.lastStatus = status;
    }
  }

  // The server answered at `answered` (ms of this machine).
  answered() {
    this.lastAnswer = Date.now();
    byId("banner").hidden = true;
    document.body.classList.remove("stale");
    say(byId("fresh"), "live");
  }

  // It did not; it is asked again in `pause` ms.
  failed(error, pause) {
    const since = this.lastAnswer ? `No answer since ${clock(this.lastAnswer / 1000)}` : "No answer yet";
    const next = `Asked again in ${duration(pause / 1000)}.`;
    const what = error instanceof Failure ? `${since}: ${error.message}` : `The answer cannot be shown: ${error.message}`;
    say(byId("banner"), `${what}. ${next}`);
    byId("banner").hidden = false;
    document.body.classList.add("stale");
    say(byId("fresh"), "not live");
  }
}
