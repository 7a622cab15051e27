// The page: makes its parts, and asks the server for what they show.
//
// Owns the polls and the server's clock. State and history come every 2 s, requests and events every 4 s, the tree
// every 5 s or more (tree_panel.js); nothing is asked while the page is hidden.

import { get } from "./api.js";
import { Cursor } from "./areachart.js";
import { byId, h, say } from "./dom.js";
import { Events } from "./events.js";
import { Header } from "./header.js";
import { History, RANGES } from "./history.js";
import { takeKeyFromAddress } from "./key.js";
import { Poll } from "./poll.js";
import { rateCharts } from "./rates.js";
import { Requests } from "./requests.js";
import { splitChart } from "./split.js";
import { startTheme } from "./theme.js";
import { Tiles } from "./tiles.js";
import { TreePanel } from "./tree_panel.js";

const STATE_MS = 2000;
const LISTS_MS = 4000;
const REQUESTS = 50;
const EVENTS = 100;

// The server's clock less this machine's, seconds.
let offset = 0;
const now = () => Date.now() / 1000 + offset;

function ranges(choose) {
  RANGES.forEach((range, i) => {
    const radio = h("input", { type: "radio", name: "range", value: range.seconds, checked: i === 0,
      on: { change: () => choose(range) } });
    byId("ranges").append(h("label", {}, radio, h("span", {}, range.label)));
  });
}

function showHistory(tiles) {
  const cursor = new Cursor();
  const charts = [splitChart(cursor), ...rateCharts(cursor)];
  byId("split").append(charts[0].element);
  byId("rates").append(...charts.slice(1).map((chart) => chart.element));
  const history = new History(RANGES[0]);
  history.listen((joined, range) => {
    tiles.showHistory(joined);
    for (const chart of charts) chart.show(joined, range.seconds);
  });
  const note = byId("history-note");
  const poll = new Poll(STATE_MS, () => history.refresh(), (error) => {
    note.hidden = !error;
    say(note, error ? `No figures over time: ${error.message}.` : "");
  });
  ranges((range) => {
    history.choose(range);
    poll.now();
  });
  return poll;
}

function start() {
  takeKeyFromAddress();
  startTheme(byId("theme"));
  const header = new Header();
  const tiles = new Tiles(byId("tiers"));
  const requests = new Requests(byId("requests"), byId("requests-sub"));
  const events = new Events();
  const others = [
    showHistory(tiles),
    new Poll(LISTS_MS, async () => requests.show(await get("/explain", { limit: REQUESTS }), now())),
    new Poll(LISTS_MS, async () => events.show(await get("/events", { limit: EVENTS })),
      (error) => error && events.tell(`No events: ${error.message}.`)),
    new TreePanel(now).poll,
  ];
  // The others start once the server's clock is known.
  let away = true;
  const state = new Poll(STATE_MS, async () => {
    const answer = await get("/state");
    offset = (answer.now ?? Date.now() / 1000) - Date.now() / 1000;
    header.show(answer);
    tiles.show(answer);
  }, (error, pause) => {
    if (error) header.failed(error, pause);
    else header.answered();
    // Who was away is asked for everything at once, and not when each one's pause is over.
    if (away && !error) others.forEach((poll) => poll.now());
    away = Boolean(error);
  });
  state.now();
}

start();
