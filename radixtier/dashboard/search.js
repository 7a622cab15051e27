// Finding the path of a session or of a prompt: asks the server, lists the nodes, and has them marked in the tree.
//
// Owns the search form and the list of what was found.

import { post } from "./api.js";
import { byId, h, replace, say } from "./dom.js";
import { count } from "./units.js";
import { nodeName, plural } from "./words.js";

const PLACEHOLDER = { session: "session id", text: "start of a prompt, chat template applied" };

export class Search {
  // on: {found(nodes: numbers), go(row)}
  constructor(on) {
    this.on = on;
    this.by = byId("search-by");
    this.field = byId("search-for");
    this.note = byId("search-note");
    this.list = byId("found");
    this.by.addEventListener("change", () => this.field.setAttribute("placeholder", PLACEHOLDER[this.by.value]));
    byId("search").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#find();
    });
    byId("search-clear").addEventListener("click", () => this.#clear());
  }

  #clear() {
    this.field.value = "";
    this.#tell("");
    this.#list([]);
    this.field.focus();
  }

  #tell(text) {
    this.note.hidden = !text;
    byId("search-clear").hidden = !text;
    say(this.note, text);
  }

  async #find() {
    const wanted = this.field.value;
    if (!wanted) {
      this.#clear();
      return;
    }
    this.#tell("looking …");
    try {
      const { nodes } = await post("/explain/node", { [this.by.value]: wanted });
      const tokens = nodes.reduce((sum, row) => sum + row.tokens, 0);
      this.#tell(nodes.length ? `${plural(nodes.length, "node")}, ${count(tokens)} tokens are known of this path.`
        : "Nothing of this path is known.");
      this.#list(nodes);
    } catch (error) {
      this.#tell(error.message);
      this.#list([]);
    }
  }

  #list(nodes) {
    this.list.hidden = !nodes.length;
    replace(this.list, h("h3", {}, "Path"), h("ol", { class: "nodes" }, nodes.map((row) => this.#row(row))));
    this.on.found(nodes.map((row) => row.node));
  }

  #row(row) {
    const where = Object.entries(row.places).filter(([, n]) => n > 0).map(([place]) => place).join(", ");
    return h("li", { data: { node: row.node } },
      h("button", { type: "button", on: { click: () => this.on.go(row) } },
        h("span", { class: "name" }, nodeName(row)), h("span", { class: "where" }, where),
        h("span", { class: "size" }, count(row.tokens))));
  }
}
