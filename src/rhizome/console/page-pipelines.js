// Services of flows on Spark, as they tell of themselves.

import { get } from "./api.js";
import { h } from "./dom.js";
import { count, duration, moment, rate, visible } from "./format.js";
import { plainTable } from "./table.js";

const BAD = { halted: "bad", silent: "bad", waiting: "warn" };

function state(text) {
  return h("span", { class: BAD[text] ? `tag ${BAD[text]}` : "" }, text);
}

function lag(flow) {
  const streams = Object.entries(flow.lag).sort((one, other) => other[1] - one[1]);
  const all = streams.map(([name, messages]) => `${visible(name)}: ${count(messages)}`).join("\n");
  return h("span", { title: all || null }, count(flow.lag_total),
    streams.length > 1 && h("span", { class: "quiet block" }, `${visible(streams[0][0])}: ${count(streams[0][1])}`));
}

function trouble(flow) {
  if (!flow.error) return "–";
  return h("span", { title: visible(flow.error) }, h("span", { class: "quiet block" }, moment(flow.error_ms)),
    visible(flow.error.split("\n")[0].slice(0, 160)));
}

function service(row) {
  const key = `${row.vhost} ${row.name} ${row.node}`;
  return h("section", { class: "panel", key },
    h("div", { class: "panel-head" },
      h("h2", { class: "name" }, visible(row.name)),
      h("span", {}, state(row.state))),
    h("p", { class: "quiet" }, `On ${visible(row.host)}, in ${visible(row.vhost)}, reported ${duration(row.age_ms)} ago by ${visible(row.user)} to ${visible(row.node)}.`),
    plainTable(key, [
      { label: "Flow", cell: (flow) => visible(flow.name) },
      { label: "State", cell: (flow) => state(flow.state) },
      { label: "Batch", numeric: true, cell: (flow) => (flow.batch === null ? "–" : count(flow.batch)) },
      { label: "Messages", numeric: true, cell: (flow) => count(flow.rows) },
      { label: "Rate", numeric: true, cell: (flow) => rate(flow.rows_per_second) },
      { label: "Lag", numeric: true, cell: lag },
      { label: "Last batch took", numeric: true, cell: (flow) => (flow.batch_ms ? `${(flow.batch_ms / 1000).toFixed(1)} s` : "–") },
      { label: "Restarts", numeric: true, cell: (flow) => count(flow.restarts) },
      { label: "Set aside", numeric: true, cell: (flow) => (flow.set_aside ? h("span", { class: "tag warn" }, count(flow.set_aside)) : "–") },
      { label: "Last error", cell: trouble },
    ], row.flows, "It has no flows."));
}

export function pipelinesPage({ changed }) {
  let rows = null;
  let failure = null;
  return {
    title: () => "Pipelines",
    refresh: async (background) => {
      try {
        rows = await get("/api/rhizome/pipelines", { background });
        failure = null;
      } catch (error) {
        failure = error.message;
      }
      changed();
    },
    view: () => h("div", { class: "page" },
      h("h1", {}, "Pipelines"),
      h("p", { class: "quiet" }, "Services of flows on Spark (rhizome pipeline run) that report to this cluster."),
      failure ? h("p", { class: "empty" }, failure)
        : rows === null ? h("p", { class: "empty" }, "Loading…")
          : rows.length ? rows.map(service) : h("p", { class: "empty" }, "No service reports here.")),
  };
}
