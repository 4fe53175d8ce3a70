// A small virtual document: pages say what should be there, and only what differs is changed, so
// that focus, selection and scrolling survive a refresh.
//
// Everything that comes from a broker is text here. There is no way to put markup in: children
// become text nodes, and properties are set one by one, never parsed.

const SVG = "http://www.w3.org/2000/svg";
const CONTROLS = new Set(["input", "select", "textarea"]);
const PROPERTIES = new Set(["checked", "disabled", "hidden", "indeterminate", "selected", "open"]);

// h("a", {href: "#/queues"}, "queues"): children are strings, numbers, nodes, arrays of them;
// null, undefined, false and true are nothing.
export function h(tag, props, ...children) {
  return { tag, props: props ?? {}, children: flat(children), key: props?.key };
}

function flat(children, found = []) {
  for (const child of children) {
    if (Array.isArray(child)) flat(child, found);
    else if (child === null || child === undefined || typeof child === "boolean") continue;
    else if (typeof child === "object") found.push(child);
    else found.push({ text: String(child) });
  }
  return found;
}

const shown = new WeakMap();

// Make the content of an element what a tree says.
export function render(element, ...tree) {
  const next = flat(tree);
  patchChildren(element, shown.get(element) ?? [], next, false);
  shown.set(element, next);
}

function create(node, svg) {
  if (node.text !== undefined) return document.createTextNode(node.text);
  const inSvg = svg || node.tag === "svg";
  const element = inSvg ? document.createElementNS(SVG, node.tag) : document.createElement(node.tag);
  for (const [name, value] of Object.entries(node.props)) setProp(element, name, undefined, value);
  patchChildren(element, [], node.children, inSvg && node.tag !== "foreignObject");
  node.props.ref?.(element);
  return element;
}

function alike(before, after) {
  if (before.text !== undefined || after.text !== undefined) {
    return before.text !== undefined && after.text !== undefined;
  }
  if (before.tag !== after.tag || before.key !== after.key) return false;
  // What somebody has typed stays in its field: a control never becomes another one, or a password
  // would be shown where a name was.
  return !CONTROLS.has(before.tag)
    || ["id", "name", "type"].every((each) => before.props[each] === after.props[each]);
}

function patch(element, before, after, svg) {
  if (after.text !== undefined) {
    if (before.text !== after.text) element.data = after.text;
    return;
  }
  const inSvg = svg || after.tag === "svg";
  for (const name of Object.keys(before.props)) {
    if (!(name in after.props)) setProp(element, name, before.props[name], undefined);
  }
  for (const [name, value] of Object.entries(after.props)) {
    if (value !== before.props[name] || name === "value" || name === "checked") {
      setProp(element, name, before.props[name], value);
    }
  }
  patchChildren(element, before.children, after.children, inSvg && after.tag !== "foreignObject");
}

function patchChildren(parent, before, after, svg) {
  const keyed = new Map();
  const free = [];
  const elements = Array.from(parent.childNodes).slice(0, before.length);
  before.forEach((node, at) => {
    if (node.key !== undefined) keyed.set(node.key, at);
    else free.push(at);
  });
  const kept = new Set();
  const made = after.map((node) => {
    let at = -1;
    if (node.key !== undefined) at = keyed.get(node.key) ?? -1;
    else if (free.length) at = free.shift();
    if (at >= 0 && !kept.has(at) && alike(before[at], node)) {
      kept.add(at);
      patch(elements[at], before[at], node, svg);
      return elements[at];
    }
    return create(node, svg);
  });
  elements.forEach((element, at) => {
    if (!kept.has(at)) element.remove();
  });
  made.forEach((element, at) => {
    if (parent.childNodes[at] !== element) parent.insertBefore(element, parent.childNodes[at] ?? null);
  });
}

function setProp(element, name, before, value) {
  if (name === "key" || name === "ref") return;
  if (name.startsWith("on")) {
    element[name] = value ?? null;
  } else if (name === "style") {
    for (const part of Object.keys(before ?? {})) {
      if (!(part in (value ?? {}))) element.style.removeProperty(part);
    }
    for (const [part, text] of Object.entries(value ?? {})) element.style.setProperty(part, text);
  } else if (name === "value") {
    if (element.value !== String(value ?? "")) element.value = value ?? "";
  } else if (PROPERTIES.has(name)) {
    element[name] = Boolean(value);
  } else if (value === undefined || value === null || value === false) {
    element.removeAttribute(name);
  } else {
    element.setAttribute(name, value === true ? "" : String(value));
  }
}
