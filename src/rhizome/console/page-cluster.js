// The cluster at a glance: numbers, charts, the drawing, and one broker in detail.

import { astray, drain, moveGroup, rebalance, unpinGroup } from "./changes.js";
import { lineChart, meter } from "./charts.js";
import { h } from "./dom.js";
import { clusterDrawing, isStandby } from "./drawing.js";
import { bytes, clock, count, duration, plural, rate, visible } from "./format.js";

const narrow = matchMedia("(max-width: 46rem)");

export function clusterPage({ changed, may, live }) {
  let selected = null;
  narrow.onchange = changed;
  const select = (name) => {
    selected = name;
    changed();
  };

  function view() {
    const data = live.data;
    if (!data) return h("p", { class: "empty" }, live.failure ? "" : "Loading…");
    if (selected && !live.broker(selected)) selected = null;
    return h("div", { class: "page cluster-page" },
      h("h1", {}, "Cluster"),
      tiles(live.totals()),
      h("div", { class: "overview" },
        h("section", { class: "panel drawing", "aria-label": "Brokers" },
          h("div", { class: "panel-head" },
            h("h2", {}, "Brokers"),
            h("span", { class: "quiet" }, about(data))),
          data.cluster.notes.map((note) => h("p", { class: "warning", key: note }, visible(note))),
          data.silent.length ? h("p", { class: "warning" }, `No answer from ${data.silent.map(visible).join(", ")}.`) : null,
          h("div", { class: "canvas" }, clusterDrawing(data, { selected, select, narrow: narrow.matches })),
          legend()),
        h("div", { class: "charts" },
          lineChart({
            id: "rates", title: "Messages", points: live.points, format: rate, changed,
            series: [
              { name: "published", label: "published", tone: "a", filled: true },
              { name: "delivered", label: "delivered", tone: "b" },
              { name: "acked", label: "acked", tone: "c" },
            ],
          }),
          lineChart({
            id: "depth", title: "In queues", points: live.points, format: count, changed,
            series: [
              { name: "ready", label: "ready", tone: "a", filled: true },
              { name: "unacked", label: "unacked", tone: "b" },
            ],
          }))),
      selected && brokerPanel(live.broker(selected), data, may),
      live.events.length ? h("section", { class: "panel" },
        h("h2", {}, "What happened"),
        h("ul", { class: "events" }, live.events.map((event) =>
          h("li", { key: event.key, class: event.kind }, h("time", {}, clock(event.at)), visible(event.text))))) : null,
      groupsPanel(data, may));
  }

  return { title: () => "Cluster", view };
}

function tiles(totals) {
  const tile = (label, value, href) => {
    const inside = [h("b", {}, value), h("span", {}, label)];
    return href ? h("a", { class: "tile", href }, inside) : h("div", { class: "tile" }, inside);
  };
  return h("div", { class: "tiles" },
    tile("published", rate(totals.published)),
    tile("delivered", rate(totals.delivered)),
    tile("ready", count(totals.ready), "#/queues"),
    tile("unacked", count(totals.unacked), "#/queues"),
    tile("queues", count(totals.queues), "#/queues"),
    tile("consumers", count(totals.consumers)),
    tile("connections", count(totals.connections), "#/connections"));
}

function about(data) {
  const { root, term, quorum } = data.cluster;
  const who = root ? `root ${visible(root)}, term ${term}` : "no root";
  return `${who} · ${quorum.active} of ${quorum.defined} primaries, ${quorum.needed} needed`;
}

function legend() {
  return h("p", { class: "drawing-legend quiet" },
    h("span", { class: "swatch home" }), " home of a group ",
    h("span", { class: "swatch copy" }), " in-sync copy ",
    h("span", { class: "swatch lagging" }), " standby not in sync ",
    h("span", { class: "swatch arrow" }), " who takes over from whom. Choose a broker for more.");
}

function brokerPanel(broker, data, may) {
  const load = data.loads[broker.name];
  const homes = data.groups.filter((group) => group.home === broker.name);
  const copies = data.groups.filter((group) => group.home !== broker.name && isStandby(group, broker.name));
  const successors = data.failover_map[broker.name] ?? [];
  const facts = [
    ["Status", broker.status], ["Role", broker.role], ["Machine", broker.machine || "–"],
    ["Addresses", broker.addresses.join(", ") || "–"],
    ["Home of", homes.length ? homes.map(named).join(", ") : "nothing"],
    ["Copies of", copies.length ? copies.map((group) => `group ${group.id}`).join(", ") : "nothing"],
    ["If it dies", successors.length ? successors.map((each) => each.broker).join(", then ") : "nobody takes over"],
  ];
  if (load) {
    facts.push(["Up", duration(load.uptime_ms)],
      ["Connections", `${count(load.connections)}, ${plural(load.channels, "channel")}`],
      ["Disk free", bytes(load.disk_free_bytes)]);
  }
  return h("section", { class: "panel broker-panel", key: `panel ${broker.name}`, "aria-label": `Broker ${broker.name}` },
    h("div", { class: "panel-head" },
      h("h2", {}, visible(broker.name)),
      h("div", { class: "buttons" },
        load?.http.filter((url) => /^https?:\/\//.test(url) && broker.name !== data.seen_by).slice(0, 1).map((url) =>
          h("a", { class: "button", href: url, rel: "noreferrer" }, "Its console")),
        may("administrator") && broker.status !== "stopped"
          ? h("button", { onclick: () => drain(broker) }, broker.draining ? "Undrain…" : "Drain…") : null)),
    load && h("div", { class: "memory" },
      h("span", { class: "quiet" }, `Memory ${bytes(load.memory_bytes)} of ${bytes(load.memory_max_bytes)}`),
      meter(load.memory_bytes, load.memory_max_bytes, `memory ${bytes(load.memory_bytes)} of ${bytes(load.memory_max_bytes)}`)),
    load?.alarm && h("p", { class: "failure" }, load.alarm),
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, visible(value))))));
}

// Who doesn't monitor isn't told what is in a group.
function named(group) {
  return group.queues === null ? `group ${group.id}` : `group ${group.id} (${plural(group.queues, "queue")})`;
}

function groupsPanel(data, may) {
  if (data.groups.length === 0) return null;
  return h("section", { class: "panel" },
    h("div", { class: "panel-head" },
      h("h2", {}, "Groups"),
      may("administrator") && astray(data.groups, data.brokers).length > 0
        ? h("button", { onclick: () => rebalance(data.groups, data.brokers) }, "Rebalance…") : null),
    h("table", { class: "rows", "aria-label": "Groups" },
      h("thead", {}, h("tr", {}, ["Group", "Home", "In sync", "Failover list", "Epoch", "Queues", "Messages", ""].map((label, at) =>
        h("th", { scope: "col", class: at > 3 ? "number" : null }, label)))),
      h("tbody", {}, data.groups.map((group) => h("tr", { key: group.id },
        h("th", { scope: "row", "data-label": "Group" }, group.id),
        h("td", { "data-label": "Home" }, group.home ? `${visible(group.home)}${group.pinned ? ` (pinned to ${visible(group.pinned)})` : ""}` : h("span", { class: "bad", title: visible(group.unavailable) }, "unavailable")),
        h("td", { "data-label": "In sync" }, group.in_sync.map(memberText).join(", ") || "–"),
        h("td", { "data-label": "Failover list" }, group.failover.map(visible).join(", ") || "–"),
        h("td", { class: "number", "data-label": "Epoch" }, group.epoch),
        h("td", { class: "number", "data-label": "Queues" }, count(group.queues)),
        h("td", { class: "number", "data-label": "Messages" }, count(group.messages)),
        h("td", { class: "number" },
          may("administrator") && group.pinned
            ? h("button", { class: "small", onclick: () => unpinGroup(group), "aria-label": `Unpin group ${group.id}` }, "Unpin…") : null,
          may("administrator") && data.brokers.length > 1 && group.home && !group.local
            ? h("button", { class: "small", onclick: () => moveGroup(group, data.brokers), "aria-label": `Move group ${group.id}` }, "Move…") : null))))));
}

function memberText(member) {
  const notes = [member.copy !== "whole" && "disk", member.lag > 0 && `${count(member.lag)} behind`].filter(Boolean);
  return visible(member.broker) + (notes.length ? ` (${notes.join(", ")})` : "");
}
