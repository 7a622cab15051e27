// Several conversations with one model, each in a column, and for each answer the tiers that its prompt came from.
//
// Owns the conversations; nothing is kept when the page is closed. All text, of the user, of files and of the model,
// goes into the page as text and never as HTML. It talks to the server of the page only: /api/server and /api/chat.

const PARTS = ["hbm", "dram", "nvme", "computed"];
const NAMES = { hbm: "HBM", dram: "DRAM", nvme: "NVMe", computed: "computed" };
const MOST_BYTES = 4 << 20; // of a document; the server takes 8 MiB of conversation

const page = crypto.getRandomValues(new Uint32Array(1))[0].toString(16);
const columns = document.getElementById("columns");
let opened = 0;

/** Return a copy of what a template holds. */
function copy(name) {
  return document.getElementById(name).content.firstElementChild.cloneNode(true);
}

function number(value) {
  return value.toLocaleString("en");
}

function seconds(milliseconds) {
  return `${(milliseconds / 1000).toFixed(2)} s`;
}

class Conversation {
  constructor() {
    this.number = ++opened;
    this.messages = [];
    this.running = null;
    this.root = copy("conversation");
    this.find = (selector) => this.root.querySelector(selector);
    this.log = this.find(".log");
    this.draft = this.find(".draft");
    this.text = this.find(".text");
    this.file = this.find(".file");
    const name = `Conversation ${this.number}`;
    const title = this.find("h2");
    title.textContent = name;
    title.id = `conversation-${this.number}`;
    this.root.setAttribute("aria-labelledby", title.id);
    this.log.setAttribute("aria-label", `Messages of conversation ${this.number}`);
    this.draft.setAttribute("aria-label", `Message in conversation ${this.number}`);
    this.find(".remove").setAttribute("aria-label", `Remove conversation ${this.number}`);
    this.busy(null);
    this.listen();
    columns.append(this.root);
  }

  listen() {
    this.find("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.running ? this.running.abort() : this.send();
    });
    this.draft.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        if (!this.running) this.send();
      }
    });
    this.root.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.running) this.running.abort();
    });
    this.find(".remove").addEventListener("click", () => this.remove());
    this.text.addEventListener("input", () => this.count());
    this.file.addEventListener("change", async () => {
      const [file] = this.file.files;
      if (!file) return;
      if (file.size > MOST_BYTES) {
        this.file.value = "";
        this.add("problem").textContent = `${file.name} is larger than ${MOST_BYTES >> 20} MiB. Choose a shorter text.`;
        return;
      }
      this.text.value = await file.text();
      this.count(file.name);
    });
  }

  /** Tell how long the opening document is, and its name where it was a file. */
  count(name = "") {
    const words = this.text.value.split(/\s+/).filter(Boolean).length;
    const length = words ? `${number(words)} words` : "none";
    this.find(".words").textContent = name && words ? `${name}, ${length}` : length;
  }

  remove() {
    if (this.running) this.running.abort();
    const next = this.root.nextElementSibling ?? this.root.previousElementSibling;
    this.root.remove();
    (next?.querySelector(".draft") ?? document.getElementById("add")).focus();
  }

  /** Ask what is in the draft, and show the answer as it comes. */
  async send() {
    const asked = this.draft.value.trim();
    const most = document.getElementById("most");
    if (!asked || !most.reportValidity()) return;
    const first = this.messages.length === 0;
    if (first) this.open();
    this.messages.push({ role: "user", content: asked });
    this.draft.value = "";
    this.find(".empty")?.remove();
    const question = this.add("question");
    question.querySelector("p").textContent = asked;
    const answer = this.add("answer");
    const words = answer.querySelector("p");
    answer.classList.add("waiting");
    this.busy(new AbortController());
    let text = "";
    try {
      const body = { messages: this.messages, max_tokens: most.valueAsNumber, session: `web-${page}-${this.number}` };
      const served = await ask(body, this.running.signal, (piece) => {
        answer.classList.remove("waiting");
        text += piece;
        words.textContent = text;
      });
      show(answer, served);
    } catch (error) {
      const stopped = error.name === "AbortError";
      if (stopped && text) {
        note(answer, "stopped");
      } else {
        this.takeBack(asked, [question, answer], stopped ? "" : error.message, first);
        text = null;
      }
    }
    answer.classList.remove("waiting");
    if (text !== null) this.messages.push({ role: "assistant", content: text });
    this.busy(null);
  }

  /** Put the document in front of the first question; from then on it is what it is. */
  open() {
    const text = this.text.value.trim();
    if (text) {
      this.messages.push({ role: "system", content: `${text}\n\nYou answer questions about this text, briefly.` });
    }
    this.lock(true);
  }

  lock(locked) {
    this.text.readOnly = locked;
    this.file.disabled = locked;
    if (locked) this.find("details").open = false;
  }

  /** Forget a question that got no answer; what was asked is in the draft again. */
  takeBack(asked, articles, why, first) {
    articles.forEach((article) => article.remove());
    this.messages = first ? [] : this.messages.slice(0, -1);
    if (first) this.lock(false);
    if (!this.draft.value) this.draft.value = asked;
    if (why) this.add("problem").textContent = why;
  }

  busy(controller) {
    this.running = controller;
    this.root.classList.toggle("running", controller !== null);
    this.log.setAttribute("aria-busy", String(controller !== null));
    const button = this.find(".send");
    button.textContent = controller ? "Stop" : "Send";
    button.setAttribute("aria-label", `${button.textContent} in conversation ${this.number}`);
  }

  add(name) {
    this.log.querySelectorAll(".problem").forEach((old) => old.remove());
    const element = copy(name);
    this.find(".turns").append(element);
    this.log.scrollTop = 0; // the end: the style sheet lays the log out from there
    return element;
  }
}

/** Send a question, hand over the answer piece by piece, and return what served its prompt. */
async function ask(body, signal, onText) {
  const started = performance.now();
  const headers = { "Content-Type": "application/json" };
  const response = await request("/api/chat", { method: "POST", headers, body: JSON.stringify(body), signal });
  const served = { prompt: 0, hbm: 0, dram: 0, nvme: 0, computed: 0, first: 0 };
  for await (const event of events(response.body)) {
    if (event.error) throw new Error(event.error.message ?? String(event.error));
    served.first ||= performance.now() - started;
    const piece = event.choices?.[0]?.delta?.content;
    if (piece) onText(piece);
    served.prompt = event.usage?.prompt_tokens ?? served.prompt;
    const cached = event.sglext?.cached_tokens_details;
    if (cached) {
      served.hbm = cached.device ?? 0;
      served.dram = cached.host ?? 0;
      served.nvme = cached.storage ?? 0;
    }
  }
  served.computed = Math.max(0, served.prompt - served.hbm - served.dram - served.nvme);
  return served;
}

/** Fetch, with a line for the user where that fails. */
async function request(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server of this page does not answer. Start chat_web/server.py again.");
  }
  if (!response.ok) throw new Error((await response.json()).error);
  return response;
}

/** Yield the server-sent events of a body; throws where it ends without their end. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("The answer ended in the middle.");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

/** Show under an answer which tiers its prompt came from. */
function show(answer, served) {
  const there = PARTS.filter((part) => served[part] > 0);
  const bar = answer.querySelector(".bar");
  const numbers = answer.querySelector(".numbers");
  const words = there.map((part) => `${NAMES[part]} ${number(served[part])}`);
  bar.setAttribute("aria-label", `${number(served.prompt)} tokens of prompt: ${words.join(", ")}`);
  for (const [index, part] of there.entries()) {
    const piece = document.createElement("span");
    piece.className = part;
    piece.style.flexGrow = served[part];
    bar.append(piece);
    const label = document.createElement("span");
    label.className = part;
    label.textContent = words[index];
    numbers.append(label);
  }
  note(answer, `first token ${seconds(served.first)}`);
}

function note(answer, text) {
  const time = document.createElement("span");
  time.className = "time";
  time.textContent = text;
  answer.querySelector(".numbers").append(time);
  answer.querySelector(".facts").hidden = false;
}

/** Tell which server this is, and whether it has the tier. */
async function lookAtServer() {
  const line = document.getElementById("server");
  const notice = document.getElementById("notice");
  let problem = "";
  try {
    const answer = await (await request("/api/server")).json();
    line.textContent = [answer.model, answer.url].filter(Boolean).join(" at ");
    if (answer.tier === "off") {
      problem = "This server runs without the tier (--enable-radix-tier): nothing will come from DRAM or NVMe.";
    } else if (answer.tier !== "on") {
      problem = "This server does not say whether it has the tier; perhaps it is not SGLang, or asks for a key.";
    }
  } catch (error) {
    line.textContent = "No server";
    problem = error.message;
  }
  notice.textContent = problem;
  notice.hidden = !problem;
}

document.getElementById("add").addEventListener("click", () => {
  const added = new Conversation();
  added.root.scrollIntoView({ inline: "end", block: "nearest" });
  added.draft.focus();
});
const first = [1, 2, 3].map(() => new Conversation())[0];
first.draft.focus({ preventScroll: true });
lookAtServer();
