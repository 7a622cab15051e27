// Elements from JavaScript, with text as text: nothing in this page parses data as HTML.
//
// Owns the two ways in which the page changes: making an element, and replacing what is in one.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, options, children) {
  for (const [name, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    } else if (name === "data") {
      Object.assign(element.dataset, value);
    } else if (name === "vars") {
      for (const [property, text] of Object.entries(value)) element.style.setProperty(property, text);
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// h("p", {class: "note"}, "text", h("b", {}, "more")): a string among the children becomes a text node.
export function h(name, options = {}, ...children) {
  return fill(document.createElement(name), options, children);
}

// The same for SVG.
export function s(name, options = {}, ...children) {
  return fill(document.createElementNS(SVG, name), options, children);
}

export function byId(id) {
  return document.getElementById(id);
}

// Set the text of an element; nothing happens when it is there already, so that live regions stay quiet.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function replace(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
}

// Whether animations are wanted.
export function moves() {
  return !window.matchMedia("(prefers-reduced-motion: reduce)").matches;
}

// Build what is in an element again, but only when the data it is built from differs: what a reader has selected or
// focused stays as it is otherwise.
const built = new WeakMap();
export function rebuild(element, data, build) {
  const text = JSON.stringify(data);
  if (built.get(element) === text) return;
  built.set(element, text);
  replace(element, build(data));
}

// Make the children of an element match a list, each known by a key: those that are there already are updated in
// place and keep focus and state.
export function keyed(element, items, key, make, update) {
  const old = new Map([...element.children].map((child) => [child.dataset.key, child]));
  const wanted = items.map((item) => {
    const name = String(key(item));
    let child = old.get(name);
    if (child === undefined) {
      child = make(item);
      child.dataset.key = name;
    }
    old.delete(name);
    update?.(child, item);
    return child;
  });
  for (const child of old.values()) child.remove();
  wanted.forEach((child, i) => {
    if (element.children[i] !== child) element.insertBefore(child, element.children[i] ?? null);
  });
}
