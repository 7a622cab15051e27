// Where each item of a tree lies in an icicle: its depth, and its span of a width of 1 as its share of the tokens.
//
// Pure, without DOM. Children lie below their parent, side by side from its left edge; what is left of its width is
// its own tokens, on which nothing hangs.

// tree: a Tree. Returns rows, one per depth: lists of {item, x0, x1, depth}, from left to right.
export function layout(tree) {
  const rows = [[{ item: tree.top, x0: 0, x1: 1, depth: 0 }]];
  for (let depth = 0; rows[depth]?.length; depth += 1) {
    const next = [];
    for (const box of rows[depth]) place(tree, box, next);
    if (next.length) rows.push(next);
  }
  return rows;
}

function place(tree, box, next) {
  const children = tree.childrenOf(box.item.node);
  const sum = children.reduce((total, child) => total + child.below.tokens, 0);
  // Rows are read a page at a time while the tree changes: children may have more than their parent had.
  const whole = Math.max(box.item.below.tokens, sum);
  if (!(whole > 0)) return;
  let x = box.x0;
  for (const item of children) {
    const x1 = x + ((box.x1 - box.x0) * item.below.tokens) / whole;
    next.push({ item, x0: x, x1, depth: box.depth + 1 });
    x = x1;
  }
}

// Pixels of a box in a view {x0, x1} on `width` pixels; null when it lies outside.
export function pixels(box, view, width) {
  const scale = width / (view.x1 - view.x0);
  const left = (box.x0 - view.x0) * scale;
  const right = (box.x1 - view.x0) * scale;
  if (right <= 0 || left >= width) return null;
  return { left: Math.max(0, left), right: Math.min(width, right) };
}

// The box at x (0 to 1) in a row, or null.
export function hit(row, x) {
  let low = 0;
  let high = row.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    const box = row[middle];
    if (x < box.x0) high = middle - 1;
    else if (x >= box.x1) low = middle + 1;
    else return box;
  }
  return null;
}

// The box of an item's node, or null.
export function find(rows, node) {
  for (const row of rows) {
    const box = row.find((each) => each.item.node === node);
    if (box) return box;
  }
  return null;
}
