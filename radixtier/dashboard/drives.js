// The drives: how full and how well each one is, what may be written and was, the journal, and errors.
//
// Owns that tile.

import { h, rebuild } from "./dom.js";
import { meter, row, setMeter, Tile } from "./tile.js";
import { ago, bytes, duration, percent, whole } from "./units.js";

export class Drives {
  constructor() {
    this.tile = new Tile(
      "drives",
      "Drives",
      null,
      h("ul", { class: "drives", "aria-label": "Drives" }),
      h("div", { class: "budget" }, h("p", { class: "small", data: { field: "budget" } }), meter("Write budget used")),
      h("dl", { class: "rows" }, row("written", "written"), row("wear", "wear"), row("journal", "journal"),
        row("errors", "errors")),
    );
    this.element = this.tile.element;
    this.element.classList.add("strip");
  }

  // state: as GET /radix_tier/state sends it
  show({ store, wear, journal, now }) {
    const { tile } = this;
    for (const part of [".budget", ".rows"]) tile.part(part).hidden = !store;
    const drives = store?.drives ?? [];
    tile.set("share", drives.length ? `${drives.length}` : "none");
    rebuild(tile.part(".drives"), [drives, Math.floor(now / 60)], () => drives.map((drive) => driveItem(drive, now)));
    this.#wear(wear);
    tile.set("journal", journalWord(journal));
    tile.set("errors", errorWord(store));
  }

  #wear(wear) {
    const { tile } = this;
    const bar = tile.part(".meter");
    bar.hidden = !wear?.budget_bytes_per_day;
    if (!wear) {
      for (const name of ["budget", "written", "wear"]) tile.set(name, "–");
      return;
    }
    if (bar.hidden) {
      tile.set("budget", "no write budget set");
    } else {
      const left = Math.max(0, wear.budget_bytes_left ?? 0);
      // What is left of a bucket that fills up all the time and holds a small part of a day.
      const most = wear.budget_bytes_most || wear.budget_bytes_per_day;
      const used = 1 - Math.min(1, left / most);
      tile.set("budget", `budget ${bytes(wear.budget_bytes_per_day)} a day, ${bytes(left)} of ${bytes(most)} saved up`);
      setMeter(bar, [{ share: used, colour: left ? "plain" : "lost" }], `${percent(used)} used`);
    }
    const perDay = wear.bytes_per_day === null ? "" : `, ${bytes(wear.bytes_per_day)} a day`;
    tile.set("written", `${bytes(wear.bytes_written)}${perDay}`);
    const out = wear.worn_out ? `, worn out ${wear.worn_out.slice(0, 7)}` : "";
    tile.set("wear", `${percent(wear.rated_life_used)} of its life${out}`);
    tile.part('[data-field="wear"]').title = wear.rating ?? "";
  }
}

function driveItem(drive, now) {
  const free = drive.free_slots + drive.used_slots;
  const full = free ? percent(drive.used_slots / free) : "–";
  return h(
    "li",
    { class: drive.writable ? "well" : "ill" },
    h("span", { class: "mark", "aria-hidden": "true" }, drive.writable ? "✓" : "!"),
    h("span", { class: "path", title: drive.directory }, drive.directory),
    h("span", { class: "state" }, drive.writable ? `${full} full` : "takes no new pages"),
    drive.reason ? h("p", {}, `${drive.reason}${drive.since ? ` (${ago(drive.since, now)})` : ""}`) : null,
    drive.quarantined ? h("p", {}, `${whole(drive.quarantined)} slots set aside`) : null,
  );
}

function errorWord(store) {
  if (!store) return "–";
  const io = ["read_errors", "write_errors", "verify_errors"].reduce((sum, name) => sum + (store[name] ?? 0), 0);
  const wrong = store.checksum_failures;
  return io || wrong ? `${whole(io)} I/O, ${whole(wrong)} checksums` : "none";
}

function journalWord(journal) {
  if (!journal) return "–";
  const parts = [journal.waiting ? `${whole(journal.waiting)} waiting` : "up to date"];
  if (journal.lag_s > 1) parts.push(`${duration(journal.lag_s)} behind`);
  if (journal.dropped) parts.push(`${whole(journal.dropped)} pages dropped`);
  return parts.join(", ");
}
