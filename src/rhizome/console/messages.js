// The messages of a queue: look at them without taking them, publish more, move them elsewhere.

import { get, path, post } from "./api.js";
import { attempt, fieldRow, formDialog, readFields, tell, typedObject } from "./dialogs.js";
import { h } from "./dom.js";
import { bytes, count, moment, plural, visible } from "./format.js";

const PAGE = 10;
const MOVED_MAX = 1000;
const SHOWN_BYTES = 64 * 1024;
const INDENTED_CHARACTERS_MAX = 8 * SHOWN_BYTES; // Each level of nesting indents all that is within it.

const PUBLISH_FIELDS = [
  { name: "payload", label: "Payload", kind: "text", rows: 5 },
  { name: "content_type", label: "Content type", placeholder: "application/json" },
  { name: "headers", label: "Headers", kind: "text", rows: 2, hint: "JSON object" },
  { name: "persistent", label: "Persistent", kind: "flag", value: true },
];

export function messagesPanel({ vhost, name, changed }) {
  let found = null;
  let offset = 0;
  let failure = null;
  let open = "";
  let where = ""; // The condition that messages are searched by; empty: browse.
  let next = null; // Where the search goes on.

  async function browse(from = offset) {
    offset = Math.max(0, from);
    where = "";
    const target = `${path("rhizome", "queues", vhost, name, "messages")}?offset=${offset}&count=${PAGE}&truncate=${SHOWN_BYTES}`;
    try {
      found = await get(target);
      failure = null;
    } catch (error) {
      failure = error.message;
    }
    changed();
  }

  // Messages that meet the condition: each answer looks at a part of the queue.
  async function search(after = "") {
    const query = new URLSearchParams({ where, after, count: PAGE, truncate: SHOWN_BYTES });
    try {
      const answer = await get(`${path("rhizome", "queues", vhost, name, "search")}?${query}`);
      found = answer.messages;
      next = answer.next;
      failure = null;
    } catch (error) {
      failure = error.message;
    }
    changed();
  }

  function condition(event) {
    event.preventDefault();
    where = event.currentTarget.elements.where.value.trim();
    return where ? search() : browse(0);
  }

  async function publish(event) {
    event.preventDefault();
    const form = event.currentTarget;
    const sent = await attempt(async () => {
      await publishMessage(vhost, "amq.default", name, readFields(form, PUBLISH_FIELDS));
      tell("Published.");
    });
    if (sent && found !== null) await browse();
  }

  async function move(queue) {
    const chosen = await formDialog({
      title: `Move messages of ${visible(name)}`, action: "Move",
      intro: "The first ready ones go to the end of another queue. Each is removed here once it is safe there.",
      fields: [
        { name: "to", label: "To queue", required: true, hint: firstDeath(found) },
        { name: "count", label: "How many at most", value: String(Math.min(queue.messages_ready ?? 0, MOVED_MAX)), required: true },
      ],
      send: (values) => post(path("rhizome", "queues", vhost, name, "move"), { to: values.to, count: Number(values.count) }),
    });
    if (chosen) {
      tell(`${plural(chosen.moved, "message was", "messages were")} moved, ${count(chosen.left)} left.`);
      await browse(0);
    }
  }

  function toggle(which) {
    open = open === which ? "" : which;
    if (open === "browse") browse(0);
    changed();
  }

  function view(queue) {
    return h("section", { class: "panel messages" },
      h("div", { class: "panel-head" },
        h("h2", {}, "Messages"),
        h("div", { class: "buttons" },
          h("button", { "aria-expanded": String(open === "browse"), onclick: () => toggle("browse") }, "Browse"),
          h("button", { "aria-expanded": String(open === "publish"), onclick: () => toggle("publish") }, "Publish"),
          queue.type !== "stream" && h("button", { onclick: () => move(queue) }, "Move…"))),
      open === "" && h("p", { class: "quiet" }, "Browsing leaves every message where it is."),
      open === "publish" && h("form", { class: "publish", onsubmit: publish, key: "publish" },
        PUBLISH_FIELDS.map(fieldRow),
        h("div", { class: "buttons" }, h("button", { class: "primary", type: "submit" }, "Publish to this queue"))),
      open === "browse" && h("form", { class: "search", onsubmit: condition, key: "search" },
        h("input", { name: "where", "aria-label": "Condition", placeholder: "headers.tenant = 'a' and body like '%x%'" }),
        h("button", { type: "submit" }, "Search")),
      open === "browse" && browser(queue));
  }

  function browser(queue) {
    if (failure) return h("p", { class: "failure", role: "alert" }, failure);
    if (found === null) return h("p", { class: "empty" }, "Loading…");
    if (where) return searched();
    return h("div", { key: "browser" },
      found.length === 0
        ? h("p", { class: "empty" }, offset ? "No more ready messages." : "No ready messages.")
        : h("ol", { class: "browsed", start: offset + 1 }, found.map(messageItem)),
      h("div", { class: "pager" },
        h("button", { disabled: offset === 0, onclick: () => browse(offset - PAGE) }, "Previous"),
        h("span", {}, found.length ? `${offset + 1} to ${offset + found.length} of ${count(queue.messages_ready)} ready` : ""),
        h("button", { onclick: () => browse() }, "Look again"),
        h("button", { disabled: found.length < PAGE, onclick: () => browse(offset + PAGE) }, "Next")));
  }

  function searched() {
    return h("div", { key: "searched" },
      found.length === 0
        ? h("p", { class: "empty" }, next ? "None so far." : "No message meets the condition.")
        : h("ol", { class: "browsed" }, found.map(messageItem)),
      h("div", { class: "pager" },
        h("button", { onclick: () => search() }, "From the head"),
        h("button", { disabled: !next, onclick: () => search(next) }, "Next")));
  }

  return {
    view,
    reset: () => {
      if (found !== null) return where ? search() : browse(0);
    },
  };
}

export async function publishMessage(vhost, exchange, key, values) {
  const properties = { delivery_mode: values.persistent ? 2 : 1 };
  if (values.content_type) properties.content_type = values.content_type;
  const headers = typedObject(values.headers, "Headers");
  if (Object.keys(headers).length) properties.headers = headers;
  const answer = await post(path("exchanges", vhost, exchange, "publish"), {
    routing_key: key, payload: values.payload, payload_encoding: "string", properties,
  });
  if (!answer.routed) throw new Error("No queue took the message.");
}

// Of a dead letter: where it came from, which is mostly where it is to go again.
function firstDeath(found) {
  const death = found?.[0]?.properties.headers?.["x-death"]?.[0];
  return death ? `The first one died in ${visible(death.queue)} (${visible(death.reason)}).` : "";
}

// Publishers may set the header, too, to anything.
function deaths(headers) {
  const listed = headers?.["x-death"];
  if (!Array.isArray(listed)) return [];
  const known = listed.filter((each) => typeof each?.count === "number");
  return known.map((each) => ["Died", `${plural(each.count, "time")} in ${visible(each.queue)}: ${visible(each.reason)}`]);
}

function messageItem(message) {
  const { headers, ...properties } = message.properties;
  const rows = [
    ...deaths(headers),
    ["Exchange", message.exchange || "default"], ["Routing key", message.routing_key],
    ["Id", message.id], ["Arrived", moment(message.arrived_ms)], ["Size", bytes(message.size)],
    ...Object.entries(properties).map(([name, value]) => [name.replaceAll("_", " "), value]),
    ...Object.entries(headers ?? {}).map(([name, value]) => [`header ${name}`, typeof value === "object" ? JSON.stringify(value) : value]),
  ];
  if (message.delivery_count) rows.push(["Came back", `${message.delivery_count} times`]);
  return h("li", { key: message.id },
    h("pre", { class: "payload", tabindex: 0, "aria-label": "Payload" }, payloadText(message)),
    message.size > SHOWN_BYTES && h("p", { class: "quiet" }, `Only the first ${bytes(SHOWN_BYTES)} are shown.`),
    h("dl", { class: "facts tight" }, rows.map(([name, value]) => [h("dt", {}, visible(name)), h("dd", {}, visible(value))])));
}

function payloadText(message) {
  if (message.payload_encoding === "base64") return hexDump(message.payload);
  if (/json/.test(message.properties.content_type ?? "") || /^\s*[{[]/.test(message.payload)) {
    try {
      const indented = JSON.stringify(JSON.parse(message.payload), null, 2);
      if (indented.length <= INDENTED_CHARACTERS_MAX) return indented;
    } catch {
      // Not JSON after all, or nested too deeply.
    }
  }
  return message.payload;
}

const HEX_BYTES_MAX = 2048;

// Binary as hexadecimal beside what can be read of it.
function hexDump(base64) {
  const data = atob(base64);
  const lines = [];
  for (let at = 0; at < Math.min(data.length, HEX_BYTES_MAX); at += 16) {
    const piece = Array.from(data.slice(at, at + 16), (sign) => sign.charCodeAt(0));
    const hex = piece.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const text = piece.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex}  ${text}`);
  }
  if (data.length > HEX_BYTES_MAX) lines.push("…");
  return lines.join("\n");
}
