// The connections of all brokers.

import { del, get, path } from "./api.js";
import { attempt, formDialog, openDialog } from "./dialogs.js";
import { h } from "./dom.js";
import { bytes, count, duration, visible } from "./format.js";
import { ListTable, plainTable } from "./table.js";

const FIELDS = [
  "name", "user_provided_name", "user", "vhost", "node", "state", "channels", "peer_host", "connected_at",
  "recv_oct_details", "send_oct_details", "ssl", "blocked_reason",
];

export function connectionsPage({ changed, may, session }) {
  const table = new ListTable({
    target: () => "/api/connections", changed, fields: FIELDS, sort: "connected_at", reverse: true,
    rowKey: (row) => `${row.node} ${row.name}`, empty: "Nobody is connected.",
    columns: [
      { label: "Name", sort: "name", cell: (row) => [
          h("button", { class: "link name", onclick: () => show(row) }, visible(row.user_provided_name ?? row.name)),
          row.user_provided_name && h("span", { class: "quiet block" }, visible(row.name))] },
      { label: "User", sort: "user", cell: (row) => visible(row.user) },
      { label: "Broker", sort: "node", cell: (row) => visible(row.node) },
      { label: "State", sort: "state", cell: (row) => [
          h("span", { class: row.state === "running" ? "" : "bad", title: row.blocked_reason || null }, row.state),
          row.ssl && h("span", { class: "tag" }, "TLS")] },
      { label: "Channels", sort: "channels", numeric: true, cell: (row) => count(row.channels) },
      { label: "From client", sort: "recv_oct_details.rate", numeric: true, cell: (row) => `${bytes(row.recv_oct_details.rate)}/s` },
      { label: "To client", sort: "send_oct_details.rate", numeric: true, cell: (row) => `${bytes(row.send_oct_details.rate)}/s` },
      { label: "Age", sort: "connected_at", numeric: true, cell: (row) => duration(Date.now() - row.connected_at) },
    ],
  });

  async function show(row) {
    let connection;
    let channels;
    const gone = !await attempt(async () => {
      [connection, channels] = await Promise.all([get(path("connections", row.name)), get(path("connections", row.name, "channels"))]);
    });
    if (gone) return;
    const own = connection.user === session.user || may("administrator");
    const facts = [
      ["Client", connection.client_properties.product ?? "–"], ["Version", connection.client_properties.version ?? "–"],
      ["Platform", connection.client_properties.platform ?? "–"], ["User", connection.user], ["Virtual host", connection.vhost],
      ["Broker", connection.node], ["State", connection.blocked_reason ? `${connection.state}: ${connection.blocked_reason}` : connection.state],
      ["Received", bytes(connection.recv_oct)], ["Sent", bytes(connection.send_oct)],
      ["Waits to be sent", bytes(connection.send_pend)], ["Heartbeat", `${connection.timeout} s`],
      ["Frames up to", bytes(connection.frame_max)],
    ];
    await openDialog((close) => h("div", {},
      h("h2", { class: "name" }, visible(connection.user_provided_name ?? connection.name)),
      h("p", { class: "quiet" }, visible(connection.name)),
      h("dl", { class: "facts" }, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, visible(value))])),
      h("h3", {}, "Channels"),
      plainTable("channels", [
        { label: "Channel", cell: (channel) => channel.number },
        { label: "Mode", cell: (channel) => (channel.transactional ? "transactions" : channel.confirm ? "confirms" : "plain") },
        { label: "Consumers", numeric: true, cell: (channel) => count(channel.consumer_count) },
        { label: "Prefetch", numeric: true, cell: (channel) => channel.prefetch_count || "none" },
        { label: "Unacked", numeric: true, cell: (channel) => count(channel.messages_unacknowledged) },
        { label: "Unconfirmed", numeric: true, cell: (channel) => count(channel.messages_unconfirmed) },
      ], channels, "No channels."),
      h("div", { class: "buttons" },
        own && h("button", { class: "danger", onclick: () => { close(null); shut(connection); } }, "Close connection…"),
        h("button", { class: "primary", onclick: () => close(null) }, "Done"))), { wide: true });
  }

  async function shut(connection) {
    const closed = await formDialog({
      title: `Close ${visible(connection.user_provided_name ?? connection.name)}?`, action: "Close it",
      intro: "The client is told 320 CONNECTION_FORCED with this reason. Most clients connect again.",
      fields: [{ name: "reason", label: "Reason", value: "Closed by an operator" }],
      // Header fields take Latin-1 only.
      send: (values) => del(path("connections", connection.name), { "x-reason": values.reason.replace(/[^\u0020-\u00ff]/g, "?") }).then(() => true),
    });
    if (closed) await table.refresh(false);
  }

  return {
    title: () => "Connections",
    refresh: (background) => table.refresh(background),
    view: () => h("div", { class: "page" }, h("h1", {}, "Connections"), table.view({ label: "connections" })),
  };
}
