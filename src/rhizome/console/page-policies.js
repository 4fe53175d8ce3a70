// Policies, and those of operators.

import { del, get, path, put } from "./api.js";
import { attempt, confirmDialog, formDialog, typedObject } from "./dialogs.js";
import { h } from "./dom.js";
import { visible } from "./format.js";
import { objectText, vhostField } from "./page-queues.js";
import { plainTable } from "./table.js";

const APPLY_TO = [["all", "queues and exchanges"], ["queues", "queues"], ["exchanges", "exchanges"]];

export function policiesPage({ changed, may }) {
  let vhosts = [];
  let failure = null;
  const lists = { policies: null, "operator-policies": null };

  async function refresh(background) {
    try {
      vhosts = (await get("/api/vhosts?columns=name", { background })).map((each) => each.name);
      for (const kind of Object.keys(lists)) lists[kind] = await get(`/api/${kind}`, { background });
      failure = null;
    } catch (error) {
      failure = error.message;
    }
  }

  async function edit(kind, policy) {
    const saved = await formDialog({
      title: policy ? `Policy ${visible(policy.name)}` : "New policy", action: "Save",
      fields: [
        { ...vhostField(vhosts), ...(policy ? { value: policy.vhost } : {}) },
        { name: "name", label: "Name", value: policy?.name, required: true },
        { name: "pattern", label: "Pattern", value: policy?.pattern ?? "^", required: true, hint: "A regular expression that names are searched for" },
        { name: "apply-to", label: "Applies to", kind: "choice", value: policy?.["apply-to"] ?? "queues", options: APPLY_TO },
        { name: "definition", label: "Definition", kind: "text", rows: 4, value: policy ? JSON.stringify(policy.definition, null, 2) : "",
          hint: 'JSON, such as {"max-length": 1000, "message-ttl": 60000}', required: true },
        { name: "priority", label: "Priority", kind: "number", value: policy?.priority ?? 0, hint: "Of several that match the highest counts" },
      ],
      send: async (values) => {
        const body = { pattern: values.pattern, "apply-to": values["apply-to"], priority: Number(values.priority), definition: typedObject(values.definition, "Definition") };
        await put(path(kind, values.vhost, values.name), body);
      },
    });
    if (saved) await again();
  }

  async function again() {
    await refresh();
    changed();
  }

  async function remove(kind, policy) {
    const agreed = await confirmDialog({ title: `Delete policy ${visible(policy.name)}?`, text: "What it set goes back to what the queues and exchanges were declared with.", action: "Delete", danger: true });
    if (agreed && await attempt(() => del(path(kind, policy.vhost, policy.name)), "The policy is gone.")) await again();
  }

  const section = (kind, title, about, allowed) => h("section", { class: "panel" },
    h("div", { class: "panel-head" }, h("h2", {}, title), allowed && h("button", { class: "primary", onclick: () => edit(kind, null) }, "New policy")),
    h("p", { class: "quiet" }, about),
    lists[kind] === null ? h("p", { class: "empty" }, "Loading…") : plainTable(title, [
      { label: "Name", cell: (row) => [visible(row.name), vhosts.length > 1 && h("span", { class: "quiet" }, ` ${visible(row.vhost)}`)] },
      { label: "Pattern", cell: (row) => h("code", {}, visible(row.pattern)) },
      { label: "Applies to", cell: (row) => row["apply-to"] },
      { label: "Definition", cell: (row) => objectText(row.definition) },
      { label: "Priority", numeric: true, cell: (row) => row.priority },
      { label: "", cell: (row) => allowed && h("span", { class: "buttons" },
          h("button", { class: "small", onclick: () => edit(kind, row), "aria-label": `Edit ${row.name}` }, "Edit"),
          h("button", { class: "small danger", onclick: () => remove(kind, row), "aria-label": `Delete ${row.name}` }, "Delete")) },
    ], lists[kind], "No policies."));

  return {
    title: () => "Policies",
    refresh,
    view: () => h("div", { class: "page" },
      h("h1", {}, "Policies"),
      failure && h("p", { class: "failure", role: "alert" }, failure),
      section("policies", "Policies", "Settings for all queues and exchanges whose names match.", may("policymaker")),
      section("operator-policies", "Operator policies", "Limits that policies and arguments can't exceed.", may("administrator"))),
  };
}
