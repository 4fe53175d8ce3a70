// Exchanges and their bindings.

import { del, get, path, post, put } from "./api.js";
import { attempt, confirmDialog, fieldRow, formDialog, readFields, tell, typedObject } from "./dialogs.js";
import { h } from "./dom.js";
import { plural, visible } from "./format.js";
import { publishMessage } from "./messages.js";
import { NO_VHOSTS, objectText, queueLink, vhostField } from "./page-queues.js";
import { ListTable, plainTable } from "./table.js";

const KINDS = ["direct", "fanout", "topic", "headers"];

function exchangeLink(vhost, name) {
  return `#/exchanges/${encodeURIComponent(vhost)}/${encodeURIComponent(name || "amq.default")}`;
}

export function exchangesPage({ changed }) {
  let vhosts = [];
  const table = new ListTable({
    target: () => "/api/exchanges", changed, rowKey: (row) => `${row.vhost} ${row.name}`,
    columns: [
      { label: "Name", sort: "name", cell: (row) => [
          h("a", { class: "name", href: exchangeLink(row.vhost, row.name) }, row.name ? visible(row.name) : "default exchange"),
          vhosts.length > 1 && h("span", { class: "quiet" }, ` ${visible(row.vhost)}`)] },
      { label: "Type", sort: "type", cell: (row) => visible(row.type) },
      { label: "Features", cell: (row) => [
          row.durable ? null : h("span", { class: "tag" }, "transient"), row.auto_delete && h("span", { class: "tag" }, "auto-delete"),
          row.internal && h("span", { class: "tag" }, "internal")] },
      { label: "Policy", sort: "policy", cell: (row) => (row.policy ? visible(row.policy) : "–") },
      { label: "Arguments", cell: (row) => objectText(row.arguments) },
    ],
  });

  async function add() {
    const made = await formDialog({
      title: "New exchange", action: "Create",
      fields: [
        vhostField(vhosts),
        { name: "name", label: "Name", required: true },
        { name: "type", label: "Type", kind: "choice", value: "topic", options: KINDS.map((kind) => [kind, kind]) },
        { name: "durable", label: "Durable", kind: "flag", value: true },
        { name: "auto_delete", label: "Auto-delete: goes with its last binding", kind: "flag" },
        { name: "internal", label: "Internal: clients can't publish to it", kind: "flag" },
        { name: "arguments", label: "Arguments", kind: "text", rows: 2, hint: 'JSON, such as {"alternate-exchange": "unrouted"}' },
      ],
      send: async (values) => {
        const { vhost, name, ...body } = values;
        await put(path("exchanges", vhost, name), { ...body, arguments: typedObject(values.arguments, "Arguments") });
        return values;
      },
    });
    if (made) location.hash = exchangeLink(made.vhost, made.name);
  }

  return {
    title: () => "Exchanges",
    refresh: async (background) => {
      vhosts = (await get("/api/vhosts?columns=name", { background })).map((each) => each.name);
      if (!vhosts.length) table.empty = NO_VHOSTS;
      await table.refresh(background);
    },
    view: () => h("div", { class: "page" },
      h("div", { class: "panel-head" }, h("h1", {}, "Exchanges"),
        vhosts.length > 0 && h("button", { class: "primary", onclick: add }, "New exchange")),
      table.view({ label: "exchanges" })),
  };
}

const PUBLISH_FIELDS = [
  { name: "routing_key", label: "Routing key" },
  { name: "payload", label: "Payload", kind: "text", rows: 4 },
  { name: "content_type", label: "Content type", placeholder: "application/json" },
  { name: "headers", label: "Headers", kind: "text", rows: 2, hint: "JSON object" },
  { name: "persistent", label: "Persistent", kind: "flag", value: true },
];

export function exchangePage({ changed }, vhost, name) {
  let exchange = null;
  let outgoing = [];
  let incoming = [];
  let failure = null;
  const isOwn = name !== "amq.default" && !name.startsWith("amq.");
  const shown = name === "amq.default" ? "default exchange" : visible(name);

  async function refresh(background) {
    try {
      [exchange, outgoing, incoming] = await Promise.all([
        get(path("exchanges", vhost, name), { background }),
        get(path("exchanges", vhost, name, "bindings", "source"), { background }),
        get(path("exchanges", vhost, name, "bindings", "destination"), { background }),
      ]);
      failure = null;
    } catch (error) {
      failure = error.status === 404 ? "There is no such exchange any more." : error.message;
    }
  }

  async function again() {
    await refresh();
    changed();
  }

  async function remove() {
    const agreed = await confirmDialog({
      title: `Delete ${shown}?`, action: "Delete", danger: true,
      text: `The exchange and ${plural(outgoing.length + incoming.length, "binding")} go for good.`,
    });
    if (agreed && await attempt(() => del(path("exchanges", vhost, name)), `${shown} is deleted.`)) location.hash = "#/exchanges";
  }

  async function bind() {
    const made = await formDialog({
      title: `Bind from ${shown}`, action: "Bind",
      fields: [
        { name: "kind", label: "To a", kind: "choice", value: "q", options: [["q", "queue"], ["e", "exchange"]] },
        { name: "destination", label: "Called", required: true },
        { name: "routing_key", label: "Routing key" },
        { name: "arguments", label: "Arguments", kind: "text", rows: 2, hint: "JSON, for headers exchanges" },
      ],
      send: (values) => post(path("bindings", vhost, "e", name, values.kind, values.destination),
        { routing_key: values.routing_key, arguments: typedObject(values.arguments, "Arguments") }).then(() => true),
    });
    if (made) await again();
  }

  async function unbind(row) {
    const target = path("bindings", vhost, "e", row.source, row.destination_type[0], row.destination, row.properties_key);
    if (await attempt(() => del(target), "The binding is gone.")) await again();
  }

  async function publish(event) {
    event.preventDefault();
    const values = readFields(event.currentTarget, PUBLISH_FIELDS);
    await attempt(async () => {
      await publishMessage(vhost, name, values.routing_key, values);
      tell("Published.");
    });
  }

  const columns = (end) => [
    { label: end === "destination" ? "To" : "From", cell: (row) => {
        const isQueue = end === "destination" && row.destination_type === "queue";
        return h("a", { href: isQueue ? queueLink(vhost, row.destination) : exchangeLink(vhost, row[end]) },
          visible(row[end]), " ", h("span", { class: "quiet" }, isQueue ? "queue" : "exchange"));
      } },
    { label: "Routing key", cell: (row) => h("code", {}, visible(row.routing_key)) },
    { label: "Arguments", cell: (row) => objectText(row.arguments) },
    { label: "", cell: (row) => row.source && h("button", { class: "small", onclick: () => unbind(row), "aria-label": `Unbind ${row.destination}` }, "Unbind") },
  ];

  function view() {
    return h("div", { class: "page" },
      h("nav", { class: "crumbs", "aria-label": "Where" }, h("a", { href: "#/exchanges" }, "Exchanges"), " › ", visible(vhost)),
      h("div", { class: "panel-head" },
        h("h1", { class: "name" }, shown, exchange && h("span", { class: "tag" }, visible(exchange.type))),
        exchange && isOwn && h("div", { class: "buttons" }, h("button", { class: "danger", onclick: remove }, "Delete…"))),
      failure && h("p", { class: "failure", role: "alert" }, failure),
      exchange && [
        h("section", { class: "panel" },
          h("div", { class: "panel-head" }, h("h2", {}, "Bindings from here"),
            name !== "amq.default" && h("button", { onclick: bind }, "Bind…")),
          plainTable("bindings from here", columns("destination"), outgoing, "Nothing is bound: what is published here goes nowhere.")),
        incoming.length ? h("section", { class: "panel" }, h("h2", {}, "Bindings to here"), plainTable("bindings to here", columns("source"), incoming)) : null,
        !exchange.internal && h("section", { class: "panel" },
          h("h2", {}, "Publish"),
          h("form", { class: "publish", onsubmit: publish }, PUBLISH_FIELDS.map(fieldRow),
            h("div", { class: "buttons" }, h("button", { class: "primary", type: "submit" }, "Publish")))),
      ]);
  }

  return { title: () => shown, refresh, view };
}
