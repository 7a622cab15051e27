// The tiles: what each tier holds, does, and serves; what was computed and why; the drives (drives.js).
//
// Owns the row of tiles. Rates and shares are means of the last minute, unless they say otherwise.

import { recent } from "./charting.js";
import { h, rebuild } from "./dom.js";
import { Drives } from "./drives.js";
import { meter, row, setMeter, Tile } from "./tile.js";
import { bytes, bytesRate, count, percent, tokens, tokensRate, whole } from "./units.js";
import { lookUp, REASONS, SOURCES, TIERS } from "./words.js";

const WINDOW_S = 60;

const ROWS = {
  hbm: [
    ["serves", "served"],
    ["loaded from below", "in", "from DRAM and NVMe, for requests"],
    ["computed", "new", "prompt tokens that no tier had"],
  ],
  dram: [
    ["serves", "served"],
    ["in from NVMe", "in"],
    ["out to NVMe only", "out", "frames given up; the bytes stay on NVMe"],
    ["in HBM too", "both"],
  ],
  nvme: [
    ["serves", "served"],
    ["written", "in"],
    ["read", "out"],
    ["I/O queue", "queue", "pieces that wait, and those under way"],
    ["requests waiting", "waiting", "for their pages to come from NVMe"],
  ],
};

function tierTile({ id, label }) {
  return new Tile(
    id,
    label,
    id,
    h("p", { class: "big" }, h("b", { data: { field: "used" } }), " of ", h("span", { data: { field: "capacity" } })),
    meter(`${label} used`),
    h("p", { class: "small", data: { field: "bytes" } }),
    h("dl", { class: "rows" }, ROWS[id].map((each) => row(...each))),
  );
}

// What drives this row of tiles: the state, and the rates of the last minute.
export class Tiles {
  constructor(element) {
    this.tiers = Object.fromEntries(TIERS.map((tier) => [tier.id, tierTile(tier)]));
    this.computed = new Tile(
      "computed",
      "Computed",
      "computed",
      h("p", { class: "big" }, h("b", { data: { field: "rate" } }), " of prompts"),
      h("p", { class: "small", data: { field: "total" } }),
      h("ul", { class: "causes", "aria-label": "Why tokens were computed, since the start" }),
    );
    this.drives = new Drives();
    element.replaceChildren(
      ...[...Object.values(this.tiers), this.computed, this.drives].map((tile) => tile.element),
    );
    this.history = null;
  }

  showHistory(history) {
    this.history = history;
    const rate = (name) => recent(history, name, WINDOW_S);
    const served = Object.fromEntries(SOURCES.map(({ id }) => [id, rate(`${id}_tokens_per_s`)]));
    const all = Object.values(served).reduce((sum, value) => sum + (value ?? 0), 0);
    const share = (id) => (all > 0 ? percent(served[id] / all) : "–");
    for (const { id } of TIERS) {
      this.tiers[id].set("served", tokensRate(served[id]));
      this.tiers[id].set("share", `${share(id)} of prompts`);
    }
    this.computed.set("share", `${share("computed")} of prompts`);
    this.computed.set("rate", tokensRate(served.computed));
    this.tiers.hbm.set("new", tokensRate(served.computed));
    this.tiers.hbm.set("in", tokensRate((served.dram ?? 0) + (served.nvme ?? 0)));
    this.tiers.dram.set("in", tokensRate(rate("promoted_tokens_per_s")));
    this.tiers.dram.set("out", tokensRate(rate("demoted_tokens_per_s")));
    this.tiers.nvme.set("in", bytesRate(rate("write_bytes_per_s")));
    this.tiers.nvme.set("out", bytesRate(rate("read_bytes_per_s")));
  }

  show(state) {
    const perToken = state.page_tokens ? state.page_bytes / state.page_tokens : 0;
    for (const { id } of TIERS) this.#tier(id, state.tiers[id], perToken, state.store);
    this.tiers.dram.set("both", tokens(state.tiers.dram.in_hbm_too));
    this.tiers.nvme.set("queue", state.io ? `${whole(state.io.queue)} + ${whole(state.io.running)}` : "–");
    this.tiers.nvme.set("waiting", whole(state.requests?.waiting_for_nvme));
    this.#computed(state.requests);
    this.drives.show(state);
  }

  #tier(id, { used, capacity, in_hbm_too }, perToken, store) {
    const tile = this.tiers[id];
    tile.element.classList.toggle("absent", !capacity);
    tile.set("used", count(used));
    tile.set("capacity", tokens(capacity));
    const share = capacity ? used / capacity : 0;
    const twice = capacity && in_hbm_too ? in_hbm_too / capacity : 0;
    const parts = [{ share: share - twice, colour: id }];
    if (twice) parts.push({ share: twice, colour: `${id} pale` });
    setMeter(tile.part(".meter"), parts, `${percent(share)}, ${whole(used)} of ${whole(capacity)} tokens`);
    const onDisk = id === "nvme" && store;
    const [now, most] = onDisk ? [store.bytes_used, store.bytes_cap] : [used * perToken, capacity * perToken];
    tile.set("bytes", capacity ? `${bytes(now)} of ${bytes(most)}, ${percent(share)}` : this.#missing(id));
  }

  #missing(id) {
    return id === "nvme" ? "This server has no NVMe tier; --radix-tier-nvme-path gives it one." : "not there";
  }

  #computed(requests) {
    if (!requests) return;
    const { tokens: from, computed_because: because } = requests;
    const all = SOURCES.reduce((sum, { id }) => sum + from[id], 0);
    const share = all ? percent(from.computed / all) : "–";
    this.computed.set("total", `since the start ${count(from.computed)} tokens, ${share} of ${count(all)}`);
    const known = Object.entries(because).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]);
    const most = Math.max(1, ...known.map(([, n]) => n));
    rebuild(this.computed.part(".causes"), known, () =>
      known.map(([reason, n]) =>
        h(
          "li",
          { title: lookUp(REASONS, reason) },
          h("span", { class: "cause-bar c-computed", "aria-hidden": "true", vars: { width: `${(100 * n) / most}%` } }),
          h("span", { class: "cause" }, reason),
          h("b", {}, count(n)),
        ),
      ),
    );
  }
}
