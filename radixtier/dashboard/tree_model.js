// The tree as the server sent it, with its links: parents, children, and what is on a path.
//
// Pure, without DOM. A tree is never changed; the next answer makes another one. The item with node null at the top
// stands for everything, unless the answer is about one subtree, whose first item is the top then.

const AMOUNTS = ["nodes", "tokens", "hbm", "dram", "nvme"];

// Seconds after which a node counts as half as warm; each further tenfold cools it by the same step.
const WARM_S = 60;

export class Tree {
  // answer: as GET /radix_tier/tree sends it
  constructor(answer) {
    this.taken = answer.taken;
    this.totalNodes = answer.total_nodes;
    this.root = answer.root ?? null;
    this.path = answer.path ?? [];
    this.items = new Map();
    this.children = new Map();
    for (const item of answer.nodes) this.items.set(item.node, item);
    this.top = this.root === null ? this.#everything(answer.nodes) : answer.nodes[0];
    for (const item of answer.nodes) {
      if (item === this.top) continue;
      const parent = this.items.has(item.parent) ? item.parent : this.top.node;
      if (!this.children.has(parent)) this.children.set(parent, []);
      this.children.get(parent).push(item);
    }
    // In the order in which they came to be, which does not change; what is merged comes last.
    for (const list of this.children.values()) list.sort((a, b) => rank(a) - rank(b) || a.node - b.node);
    this.#name(answer.nodes);
  }

  // Only the last node of a path has its session: those in front of it that lead to no other get it as `only`.
  #name(nodes) {
    const sessions = new Map();
    for (const item of [...nodes].reverse()) {
      // Null stands for several, or for what is merged and not known.
      const below = this.childrenOf(item.node).map((child) => sessions.get(child.node));
      const known = new Set([...below, item.session ?? undefined].filter((name) => name !== undefined));
      const one = item.merged > 0 || known.size > 1 ? null : [...known][0];
      sessions.set(item.node, one);
      item.only = one ?? null;
    }
  }

  #everything(nodes) {
    const tops = nodes.filter((item) => !this.items.has(item.parent));
    const below = Object.fromEntries(AMOUNTS.map((name) => [name, tops.reduce((sum, item) => sum + item.below[name], 0)]));
    return { node: null, parent: null, tokens: 0, hbm: 0, dram: 0, nvme: 0, lost: 0, hits: 0, session: null, merged: 0,
      last_used: null, below };
  }

  get(node) {
    return node === null ? (this.top.node === null ? this.top : undefined) : this.items.get(node);
  }

  childrenOf(node) {
    return this.children.get(node) ?? [];
  }

  parentOf(item) {
    if (item === this.top) return null;
    return this.items.get(item.parent) ?? this.top;
  }

  // From the top to an item, both included.
  lineage(item) {
    const found = [];
    for (let at = item; at; at = this.parentOf(at)) found.push(at);
    return found.reverse();
  }

  // Those next to it below the same parent, itself included.
  siblings(item) {
    const parent = this.parentOf(item);
    return parent === null ? [item] : this.childrenOf(parent.node);
  }
}

function rank(item) {
  return item.merged > 0 ? 1 : 0;
}

// Whether one can look at an item alone.
export function canZoom(item) {
  return item.node === null || (item.merged === 0 && item.below.nodes > 1);
}

// From 1, used just now, to 0, not used for days or never.
export function heat(lastUsed, now) {
  if (lastUsed === null || lastUsed === undefined) return 0;
  const age = Math.max(0, now - lastUsed);
  return Math.max(0, 1 - Math.log10(1 + age / WARM_S) / 3);
}

// The share of an item's own tokens in each tier, fastest first; only tiers that have some.
export function places(item) {
  if (!item.tokens) return [];
  return ["hbm", "dram", "nvme", "lost"]
    .map((tier) => ({ tier, share: Math.min(1, (item[tier] ?? 0) / item.tokens) }))
    .filter(({ share }) => share > 0);
}
