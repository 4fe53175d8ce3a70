// The cluster drawn as it is: brokers, who is root, where groups are at home and where they have
// copies, links, and who takes over from whom.

import { h } from "./dom.js";
import { rate, visible } from "./format.js";

const CARD = { width: 168, height: 92 };
const SMALL = { width: 132, height: 56 };
const CHIPS = { left: 14, width: 142, gap: 4, more: 24 };
const NARROW_STEP = 150;

export function clusterDrawing(data, { selected, select, narrow }) {
  const primaries = data.brokers.filter((broker) => broker.role !== "secondary");
  const secondaries = data.brokers.filter((broker) => broker.role === "secondary");
  const layout = place(primaries, secondaries, narrow);
  const shownMap = selected ? { [selected]: data.failover_map[selected] ?? [] } : data.failover_map;

  return h("svg", {
      class: "cluster", viewBox: `0 0 ${layout.width} ${layout.height}`, role: "group",
      "aria-label": `Cluster of ${data.brokers.length} brokers, root ${data.cluster.root ?? "none"}`,
    },
    h("defs", {},
      h("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" },
        h("path", { class: "arrowhead", d: "M0 0.5 8 4 0 7.5Z" }))),
    h("g", { class: "links" }, linkLines(data, layout)),
    h("g", { class: "takeovers" }, takeoverArrows(shownMap, layout, selected)),
    data.brokers.map((broker) => card(broker, data, layout.spots.get(broker.name), selected, select)));
}

// Where the brokers stand: primaries on an ellipse, on a phone in two columns; secondaries below.
function place(primaries, secondaries, narrow) {
  const count = primaries.length;
  const width = narrow ? 400 : 700 + Math.max(0, count - 5) * 100;
  const spots = new Map();
  const top = 18 + CARD.height / 2;
  let centre = { x: width / 2, y: top };
  if (narrow && count > 1) {
    const rows = Math.ceil(count / 2);
    centre.y += ((rows - 1) * NARROW_STEP) / 2;
    primaries.forEach((broker, at) => {
      // One that has no neighbour stands in the middle: of three, the first.
      const alone = count % 2 === 1 && at === 0;
      const row = Math.floor((at + (count % 2)) / 2);
      const side = (at + (count % 2)) % 2 ? 1 : -1;
      spots.set(broker.name, { x: width / 2 + (alone ? 0 : side * 100), y: top + row * NARROW_STEP, ...CARD });
    });
  } else {
    const radiusX = count <= 1 ? 0 : count === 2 ? 180 : count === 3 ? 235 : width / 2 - CARD.width / 2 - 6;
    const radiusY = count <= 2 ? 0 : count === 3 ? 128 : 150 + Math.max(0, count - 5) * 26;
    centre = { x: width / 2, y: top + radiusY };
    const start = count === 2 ? Math.PI : -Math.PI / 2;
    primaries.forEach((broker, at) => {
      const angle = start + (2 * Math.PI * at) / Math.max(1, count);
      spots.set(broker.name, {
        x: centre.x + radiusX * Math.cos(angle), y: centre.y + radiusY * Math.sin(angle), ...CARD,
      });
    });
  }
  let bottom = Math.max(...[...spots.values()].map((spot) => spot.y + CARD.height / 2), 100) + 22;
  const perRow = Math.floor(width / (narrow ? 140 : 172));
  secondaries.forEach((broker, at) => {
    const row = Math.floor(at / perRow);
    const inRow = Math.min(perRow, secondaries.length - row * perRow);
    const step = Math.min(width / inRow, 172);
    spots.set(broker.name, {
      x: width / 2 + ((at % perRow) - (inRow - 1) / 2) * step,
      y: bottom + 34 + row * (SMALL.height + 18) + SMALL.height / 2,
      ...SMALL,
    });
  });
  if (secondaries.length) bottom += 34 + Math.ceil(secondaries.length / perRow) * (SMALL.height + 18);
  return { spots, width, height: bottom + 6, centre };
}

// Each link is told by both its ends; one that only one end knows is on its way up or down.
function linkLines(data, layout) {
  const ends = new Map();
  for (const [name, load] of Object.entries(data.loads)) {
    for (const link of load.links) {
      const key = [name, link.broker].sort().join("\n");
      const known = ends.get(key) ?? { names: [name, link.broker].sort(), told: 0, congested: false };
      known.told += 1;
      known.congested ||= link.congested;
      ends.set(key, known);
    }
  }
  return [...ends.entries()].map(([key, link]) => {
    const [one, other] = link.names.map((name) => layout.spots.get(name));
    if (!one || !other) return null;
    const answered = link.names.filter((name) => name in data.loads).length;
    const kind = link.congested ? "congested" : link.told < answered ? "uncertain" : "up";
    return h("line", { key: `link ${key}`, class: `link ${kind}`, x1: one.x, y1: one.y, x2: other.x, y2: other.y },
      h("title", {}, `link ${visible(link.names.join(" – "))}${link.congested ? ", congested" : ""}`));
  });
}

function takeoverArrows(map, layout, selected) {
  return Object.entries(map).flatMap(([name, successors]) => {
    const from = layout.spots.get(name);
    if (!from || (from.width === SMALL.width && name !== selected)) return [];
    return successors.slice(0, name === selected ? 3 : 1).map((successor, order) => {
      const to = layout.spots.get(successor.broker);
      if (!to) return null;
      const bend = curve(from, to, layout.centre, order);
      return h("g", { key: `takeover ${name} ${successor.broker}`, class: order ? "takeover later" : "takeover" },
        h("path", { d: bend.path, "marker-end": "url(#arrow)" }),
        name === selected && h("text", { x: bend.x, y: bend.y, "text-anchor": "middle" },
          order ? `then ${visible(successor.broker)}` : `${visible(successor.broker)} takes over`));
    });
  });
}

// A curve outside of the straight link, from border to border.
function curve(from, to, centre, order) {
  const middle = { x: (from.x + to.x) / 2, y: (from.y + to.y) / 2 };
  let away = { x: middle.x - centre.x, y: middle.y - centre.y };
  if (Math.hypot(away.x, away.y) < 30) away = { x: -(to.y - from.y), y: to.x - from.x };
  const size = Math.hypot(away.x, away.y) || 1;
  const push = 46 + order * 26;
  const knee = { x: middle.x + (away.x / size) * push, y: middle.y + (away.y / size) * push };
  const start = border(from, knee);
  const end = border(to, knee);
  return {
    path: `M${start.x.toFixed(1)} ${start.y.toFixed(1)} Q${knee.x.toFixed(1)} ${knee.y.toFixed(1)} ${end.x.toFixed(1)} ${end.y.toFixed(1)}`,
    x: (middle.x + knee.x) / 2 + (away.x / size) * 14,
    y: (middle.y + knee.y) / 2 + (away.y / size) * 14 + 4,
  };
}

// Where the line from the middle of a card to a point leaves the card.
function border(spot, toward) {
  const dx = toward.x - spot.x;
  const dy = toward.y - spot.y;
  const scale = Math.min(
    (spot.width / 2 + 5) / Math.max(0.01, Math.abs(dx)),
    (spot.height / 2 + 5) / Math.max(0.01, Math.abs(dy)));
  return { x: spot.x + dx * Math.min(1, scale), y: spot.y + dy * Math.min(1, scale) };
}

function card(broker, data, spot, selected, select) {
  const small = spot.width === SMALL.width;
  const load = data.loads[broker.name];
  const isRoot = data.cluster.root === broker.name;
  const left = spot.x - spot.width / 2;
  const top = spot.y - spot.height / 2;
  const choose = () => select(broker.name === selected ? null : broker.name);
  const words = [broker.role, broker.status, isRoot ? "root" : ""].filter(Boolean).join(", ");
  return h("g", {
      key: `broker ${broker.name}`, tabindex: 0, role: "button",
      "aria-pressed": String(broker.name === selected), "aria-label": `${broker.name}: ${words}`,
      class: ["broker", broker.role, `is-${broker.status}`, isRoot && "root", broker.name === selected && "selected"]
        .filter(Boolean).join(" "),
      transform: `translate(${left.toFixed(1)} ${top.toFixed(1)})`,
      onclick: choose,
      onkeydown: (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        choose();
      },
    },
    h("rect", { class: "card", width: spot.width, height: spot.height, rx: 12 }),
    isRoot && h("g", { class: "crown" },
      h("rect", { x: spot.width - 54, y: -10, width: 42, height: 20, rx: 10 }),
      h("text", { x: spot.width - 33, y: 4, "text-anchor": "middle" }, "root")),
    h("circle", { class: "dot", cx: 18, cy: small ? 20 : 22, r: 5 }),
    h("text", { class: "name", x: 31, y: small ? 25 : 27 }, short(broker.name, small ? 11 : 15)),
    h("text", { class: "quiet", x: 16, y: small ? 44 : 47 },
      load && broker.status !== "stopped"
        ? small ? `${broker.connections} conn.` : `${rate(load.rates.published)} in · ${rate(load.rates.delivered)} out`
        : broker.status),
    !small && chips(broker, data));
}

function chips(broker, data) {
  const homes = data.groups.filter((group) => group.home === broker.name);
  const copies = data.groups.filter((group) => group.home !== broker.name && isStandby(group, broker.name));
  const all = [
    ...homes.map((group) => ({ group, kind: "home" })),
    ...copies.map((group) => ({ group, kind: isInSync(group, broker.name) ? "copy" : "lagging" })),
  ];
  const shown = fitting(all);
  const words = { home: "home of", copy: "in-sync copy of", lagging: "standby, not in sync, of" };
  return h("g", { class: "chips", transform: `translate(${CHIPS.left} 60)` },
    shown.map(({ group, kind, x, width }) => h("g", {
        key: `${kind} ${group.id} ${group.epoch}`, class: `chip ${kind}`, transform: `translate(${x} 0)`,
      },
      h("title", {}, `${words[kind]} group ${group.id}, epoch ${group.epoch}${contents(group)}`),
      h("rect", { width, height: 18, rx: 5 }),
      h("text", { x: width / 2, y: 13, "text-anchor": "middle" }, group.id))),
    all.length > shown.length && h("text", { class: "more", x: endOf(shown) + 2, y: 13 }, `+${all.length - shown.length}`));
}

// As many chips as there is room for, side by side. Groups of streams have numbers of five digits.
function fitting(all) {
  const shown = [];
  for (const each of all) {
    const x = endOf(shown);
    const width = Math.max(20, 7 * String(each.group.id).length + 9);
    const room = CHIPS.width - (shown.length + 1 < all.length ? CHIPS.more : 0);
    if (x + width > room) break;
    shown.push({ ...each, x, width });
  }
  return shown;
}

function endOf(shown) {
  const last = shown.at(-1);
  return last ? last.x + last.width + CHIPS.gap : 0;
}

// Who doesn't monitor isn't told what is in a group.
function contents(group) {
  return group.queues === null ? "" : `: ${group.queues} queues, ${group.messages} messages`;
}

export function isStandby(group, name) {
  return isInSync(group, name) || group.failover.includes(name);
}

function isInSync(group, name) {
  return group.in_sync.some((member) => member.broker === name);
}

function short(name, most) {
  const text = visible(name);
  return text.length <= most ? text : text.slice(0, most - 1) + "…";
}
