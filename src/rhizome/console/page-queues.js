// All queues, and one queue with its messages.

import { del, get, path, post, put } from "./api.js";
import { lineChart, sparkline } from "./charts.js";
import { attempt, confirmDialog, formDialog, typedObject } from "./dialogs.js";
import { h } from "./dom.js";
import { bytes, count, duration, moment, plural, rate, visible } from "./format.js";
import { messagesPanel } from "./messages.js";
import { ListTable, plainTable } from "./table.js";

const FIELDS = [
  "name", "vhost", "node", "state", "type", "exclusive", "durable", "messages", "messages_ready",
  "messages_unacknowledged", "consumers", "depths", "message_stats",
];

const HEAD_MS = 30_000; // A message may be large, and is read whole: seldom.

const NO_QUEUES = "No queues yet.";
const NO_OPEN_QUEUES = "No queues in the virtual hosts that your user may enter.";
export const NO_VHOSTS = "Your user may enter no virtual host, so there is nothing to see. An administrator lets it in: Users, or rhizome user permit.";

export function queueLink(vhost, name) {
  return `#/queues/${encodeURIComponent(vhost)}/${encodeURIComponent(name)}`;
}

export function queuesPage({ changed, may, live }) {
  let vhosts = [];
  const table = new ListTable({
    target: () => "/api/queues", changed, fields: FIELDS, query: { history: true },
    rowKey: (row) => `${row.vhost} ${row.name}`, empty: NO_QUEUES,
    columns: [
      { label: "Name", sort: "name", cell: (row) => [
          h("a", { href: queueLink(row.vhost, row.name), class: "name" }, visible(row.name)),
          vhosts.length > 1 && h("span", { class: "quiet" }, ` ${visible(row.vhost)}`),
          tags(row)] },
      { label: "Home", sort: "node", cell: (row) => (row.node ? visible(row.node) : "–") },
      { label: "Depth", cell: (row) => sparkline(row.depths, `depth, now ${row.messages}`) },
      { label: "Ready", sort: "messages_ready", numeric: true, cell: (row) => count(row.messages_ready) },
      { label: "Unacked", sort: "messages_unacknowledged", numeric: true, cell: (row) => count(row.messages_unacknowledged) },
      { label: "In", sort: "message_stats.publish_details.rate", numeric: true, cell: (row) => rate(row.message_stats?.publish_details.rate) },
      { label: "Out", sort: "message_stats.deliver_get_details.rate", numeric: true, cell: (row) => rate(row.message_stats?.deliver_get_details.rate) },
      { label: "Consumers", sort: "consumers", numeric: true, cell: (row) => count(row.consumers) },
    ],
  });

  async function add() {
    const made = await formDialog({
      title: "New queue", action: "Create",
      fields: [
        vhostField(vhosts),
        { name: "name", label: "Name", required: true },
        { name: "durable", label: "Durable: survives a restart", kind: "flag", value: true },
        { name: "auto_delete", label: "Auto-delete: goes with its last consumer", kind: "flag" },
        { name: "arguments", label: "Arguments", kind: "text", rows: 3, hint: 'JSON, such as {"x-max-length": 1000, "x-message-ttl": 60000}' },
      ],
      send: async (values) => {
        const body = { durable: values.durable, auto_delete: values.auto_delete, arguments: typedObject(values.arguments, "Arguments") };
        await put(path("queues", values.vhost, values.name), body);
        return values;
      },
    });
    if (made) location.hash = queueLink(made.vhost, made.name);
  }

  // Who monitors is told of all queues, and shown those of open virtual hosts only.
  function none() {
    return !may("administrator") && live.totals().queues > 0 ? NO_OPEN_QUEUES : NO_QUEUES;
  }

  return {
    title: () => "Queues",
    refresh: async (background) => {
      vhosts = (await get("/api/vhosts?columns=name", { background })).map((each) => each.name);
      table.empty = vhosts.length ? none() : NO_VHOSTS;
      await table.refresh(background);
    },
    view: () => h("div", { class: "page" },
      h("div", { class: "panel-head" }, h("h1", {}, "Queues"),
        vhosts.length > 0 && h("button", { class: "primary", onclick: add }, "New queue")),
      table.view({ label: "queues" })),
  };
}

export function vhostField(vhosts) {
  return { name: "vhost", label: "Virtual host", kind: "choice", value: vhosts.includes("/") ? "/" : vhosts[0],
    options: vhosts.map((each) => [each, visible(each)]) };
}

function tags(row) {
  return [
    row.state === "down" && h("span", { class: "tag bad", title: "Its home does not answer" }, "down"),
    row.exclusive && h("span", { class: "tag", title: "Private: belongs to one connection" }, "private"),
    row.type !== "classic" && h("span", { class: "tag" }, row.type),
    !row.durable && !row.exclusive && h("span", { class: "tag", title: "Does not survive a restart" }, "transient"),
  ];
}

// ---- one queue -----------------------------------------------------------------------------------

export function queuePage({ changed }, vhost, name) {
  let queue = null;
  let bindings = [];
  let points = [];
  let failure = null;
  let headMs = null;
  let headAskedAt = 0;
  const here = path("queues", vhost, name);
  const messages = messagesPanel({ vhost, name, changed });
  let readers = [];

  async function refresh(background) {
    try {
      queue = await get(here, { background });
      bindings = await get(path("queues", vhost, name, "bindings"), { background });
      headMs = queue.head_arrived_ms ?? await headOnDiskMs(background);
      points = asPoints(await get(path("rhizome", "queues", vhost, name, "history"), { background }), headMs);
      if (points.length) points.push(nowPoint(queue, headMs));
      readers = queue.type === "stream"
        ? (await get(path("rhizome", "streams", vhost, name), { background })).reader_details ?? [] : [];
      failure = null;
    } catch (error) {
      failure = error.status === 404 ? "There is no such queue any more." : error.message;
      if (error.status === 404) queue = null;
    }
  }

  // After a takeover or a restart what is next lies on disk: the broker looks there only if it is asked.
  async function headOnDiskMs(background) {
    if (!queue.messages_ready || queue.type === "stream") return null;
    if (Date.now() - headAskedAt < HEAD_MS) return headMs;
    headAskedAt = Date.now();
    try {
      const [first] = await get(`${path("rhizome", "queues", vhost, name, "messages")}?count=1&truncate=0`, { background });
      return first?.arrived_ms ?? null;
    } catch {
      return null; // Who may not look at messages doesn't see how old they are.
    }
  }

  async function purge() {
    const agreed = await confirmDialog({
      title: `Purge ${visible(name)}?`, action: "Purge", danger: true,
      text: `${plural(queue.messages_ready ?? 0, "ready message is", "ready messages are")} thrown away for good. Unacked ones stay with their consumers.`,
    });
    if (agreed && await attempt(() => del(path("queues", vhost, name, "contents")), "The queue is empty.")) {
      messages.reset();
      await refresh();
      changed();
    }
  }

  async function remove() {
    const agreed = await confirmDialog({
      title: `Delete ${visible(name)}?`, action: "Delete", danger: true,
      text: `The queue, ${plural(bindings.length - 1, "binding")} and ${plural(queue.messages ?? 0, "message")} go for good; ${plural(queue.consumers ?? 0, "consumer is", "consumers are")} cancelled.`,
    });
    if (agreed && await attempt(() => del(here), `${visible(name)} is deleted.`)) location.hash = "#/queues";
  }

  async function bind() {
    const made = await formDialog({
      title: `Bind ${visible(name)}`, action: "Bind",
      fields: [
        { name: "source", label: "From exchange", required: true },
        { name: "routing_key", label: "Routing key" },
        { name: "arguments", label: "Arguments", kind: "text", rows: 2, hint: "JSON, for headers exchanges" },
      ],
      send: (values) => post(path("bindings", vhost, "e", values.source, "q", name),
        { routing_key: values.routing_key, arguments: typedObject(values.arguments, "Arguments") }).then(() => true),
    });
    if (made) {
      await refresh();
      changed();
    }
  }

  async function unbind(row) {
    const target = path("bindings", vhost, "e", row.source, "q", name, row.properties_key);
    if (await attempt(() => del(target), "The binding is gone.")) {
      await refresh();
      changed();
    }
  }

  function view() {
    return h("div", { class: "page" },
      h("nav", { class: "crumbs", "aria-label": "Where" }, h("a", { href: "#/queues" }, "Queues"), " › ", visible(vhost)),
      h("div", { class: "panel-head" },
        h("h1", { class: "name" }, visible(name), queue && tags(queue)),
        queue && h("div", { class: "buttons" },
          queue.type !== "stream" && h("button", { onclick: purge }, "Purge…"),
          h("button", { class: "danger", onclick: remove }, "Delete…"))),
      failure && h("p", { class: "failure", role: "alert" }, failure),
      queue === null ? !failure && h("p", { class: "empty" }, "Loading…") : body());
  }

  function body() {
    const now = Date.now();
    const age = headMs === null ? "–" : duration(now - headMs);
    return [
      h("div", { class: "tiles" }, [
        ["ready", count(queue.messages_ready)], ["unacked", count(queue.messages_unacknowledged)],
        ["in", rate(queue.message_stats?.publish_details.rate)], ["out", rate(queue.message_stats?.deliver_get_details.rate)],
        ["oldest waits", age], ["bytes ready", bytes(queue.message_bytes_ready)], ["consumers", count(queue.consumers)],
      ].map(([label, value]) => h("div", { class: "tile" }, h("b", {}, value), h("span", {}, label)))),
      h("div", { class: "charts" },
        lineChart({ id: `depth ${vhost} ${name}`, title: "Depth", points, format: count, changed, series: [
          { name: "ready", label: "ready", tone: "a", filled: true }, { name: "unacked", label: "unacked", tone: "b" }] }),
        lineChart({ id: `rates ${vhost} ${name}`, title: "Messages", points, format: rate, changed, series: [
          { name: "published", label: "in", tone: "a", filled: true }, { name: "delivered", label: "out", tone: "b" },
          { name: "acked", label: "acked", tone: "c" }] }),
        queue.type !== "stream" && lineChart({ id: `age ${vhost} ${name}`, title: "Age of the oldest", points, format: duration, changed,
          series: [{ name: "age", label: "waits", tone: "b", filled: true }] })),
      messages.view(queue),
      h("section", { class: "panel" },
        h("h2", {}, "Consumers"),
        plainTable("consumers", [
          { label: "Tag", cell: (row) => visible(row.consumer_tag) },
          { label: "Connection", cell: (row) => visible(row.channel_details.connection_name) },
          { label: "Broker", cell: (row) => visible(row.channel_details.node) },
          { label: "Acks", cell: (row) => (row.ack_required ? "manual" : "automatic") },
          { label: "Prefetch", numeric: true, cell: (row) => row.prefetch_count || "none" },
          { label: "Active", cell: (row) => (row.active ? "yes" : "waits") },
        ], queue.consumer_details ?? [], "Nobody consumes.")),
      queue.type === "stream" && h("section", { class: "panel" },
        h("h2", {}, "Named readers"),
        plainTable("readers", [
          { label: "Reader", cell: (row) => visible(row.name) },
          { label: "Next offset", numeric: true, cell: (row) => count(row.next) },
          { label: "Lag", numeric: true, cell: (row) => count(row.lag) },
          { label: "Kept", cell: (row) => (row.kept ? "yes" : "while it runs") },
          { label: "About to be dropped", numeric: true, cell: (row) => (row.at_risk
              ? h("span", { class: "tag bad", title: "Retention is about to drop messages that it has not read" }, count(row.at_risk)) : "–") },
        ], readers, "Nobody reads under a name.")),
      h("section", { class: "panel" },
        h("div", { class: "panel-head" }, h("h2", {}, "Bindings"), h("button", { onclick: bind }, "Bind…")),
        plainTable("bindings", [
          { label: "From", cell: (row) => row.source
              ? h("a", { href: `#/exchanges/${encodeURIComponent(vhost)}/${encodeURIComponent(row.source)}` }, visible(row.source))
              : h("span", { class: "quiet" }, "default exchange") },
          { label: "Routing key", cell: (row) => h("code", {}, visible(row.routing_key)) },
          { label: "Arguments", cell: (row) => objectText(row.arguments) },
          { label: "", cell: (row) => row.source && h("button", { class: "small", onclick: () => unbind(row), "aria-label": `Unbind from ${row.source}` }, "Unbind") },
        ], bindings)),
      h("section", { class: "panel" },
        h("h2", {}, "About"),
        h("dl", { class: "facts" }, [
          ["Home", queue.node ?? "unknown"], ["State", queue.state], ["Type", queue.type],
          ["Durable", queue.durable ? "yes" : "no"], ["Auto-delete", queue.auto_delete ? "yes" : "no"],
          ["Dead letters", deadLetters(queue)],
          ["Policy", queue.policy ?? "none"], ["Arguments", JSON.stringify(queue.arguments)],
          ["Policy says", JSON.stringify(queue.effective_policy_definition)],
          ["Idle since", queue.idle_since ? moment(Date.parse(`${queue.idle_since.replace(" ", "T")}Z`)) : "busy"],
        ].map(([label, value]) => [h("dt", {}, label), h("dd", {}, visible(value))]))),
    ];
  }

  return { title: () => visible(name), refresh, view };
}

// Where what expires, is rejected or finds no room goes.
function deadLetters(queue) {
  const said = (name) => queue.arguments[`x-${name}`] ?? queue.effective_policy_definition?.[name];
  const exchange = said("dead-letter-exchange");
  if (exchange === undefined) return "are dropped";
  const key = said("dead-letter-routing-key");
  return `to ${exchange === "" ? "the default exchange" : `exchange ${visible(exchange)}`}${key === undefined ? "" : ` with key ${visible(key)}`}`;
}

export function objectText(value) {
  return Object.keys(value ?? {}).length ? h("code", {}, visible(JSON.stringify(value))) : "–";
}

function nowPoint(queue, headMs) {
  const stats = queue.message_stats;
  return {
    at: Date.now(), ready: queue.messages_ready, unacked: queue.messages_unacknowledged,
    published: stats.publish_details.rate, delivered: stats.deliver_get_details.rate, acked: stats.ack_details.rate,
    age: headMs === null ? 0 : Math.max(0, Date.now() - headMs),
  };
}

// Columns of counters into points with rates.
function asPoints(history, headMs) {
  return history.times_ms.map((at, number) => {
    // What was next lay on disk: it was at least as old as what is next now.
    const age = history.age_ms[number] < 0 ? Math.max(0, at - (headMs ?? at)) : history.age_ms[number];
    const point = { at, ready: history.ready[number], unacked: history.unacked[number], age };
    const seconds = number ? Math.max(1, (at - history.times_ms[number - 1]) / 1000) : 1;
    for (const name of ["published", "delivered", "acked"]) {
      point[name] = number ? Math.max(0, history[name][number] - history[name][number - 1]) / seconds : 0;
    }
    return point;
  });
}
