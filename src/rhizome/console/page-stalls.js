// What waits, and for what.

import { h } from "./dom.js";
import { visible } from "./format.js";
import { plainTable } from "./table.js";

const KINDS = {
  alarm: "alarm", isolated: "isolated", publishers: "publishers wait", disk: "disk", link: "link",
  broker: "broker", group: "group", copy: "copy",
};

export function stallsPage({ live }) {
  return {
    title: () => "Stalls",
    view: () => h("div", { class: "page" },
      h("h1", {}, "Stalls"),
      h("p", { class: "quiet" }, "What can't go on at the moment, where, and what it waits for."),
      live.data === null ? h("p", { class: "empty" }, "Loading…") : plainTable("stalls", [
        { label: "Kind", cell: (row) => KINDS[row.kind] ?? visible(row.kind) },
        { label: "Broker", cell: (row) => (row.broker ? visible(row.broker) : "–") },
        { label: "What waits", cell: (row) => visible(row.what) },
        { label: "Why", cell: (row) => visible(row.why) },
      ], live.data.stalls, "Nothing waits. All is well.")),
  };
}
