// Users, what they may do, and virtual hosts.

import { del, get, path, put } from "./api.js";
import { attempt, confirmDialog, formDialog } from "./dialogs.js";
import { h } from "./dom.js";
import { count, visible } from "./format.js";
import { vhostField } from "./page-queues.js";
import { plainTable } from "./table.js";

const TAGS = ["administrator", "monitoring", "policymaker", "management", "auditor"];

export function usersPage({ changed, session }) {
  let users = null;
  let vhosts = [];
  let permissions = [];
  let failure = null;

  async function refresh(background) {
    try {
      [users, permissions, vhosts] = await Promise.all([
        get("/api/users", { background }), get("/api/permissions", { background }), get("/api/vhosts", { background }),
      ]);
      failure = null;
    } catch (error) {
      failure = error.message;
    }
  }

  async function again() {
    await refresh();
    changed();
  }

  const names = () => vhosts.map((each) => each.name);

  async function addUser() {
    const made = await formDialog({
      title: "New user", action: "Create",
      fields: [
        { name: "name", label: "Name", required: true },
        { name: "password", label: "Password", kind: "password", required: true },
        { name: "type", label: "Type", kind: "choice", value: "application", options: [["application", "application"], ["console", "console: people, no AMQP"]] },
        { name: "tags", label: "Tags", hint: `Any of ${TAGS.join(", ")}; none for an application` },
      ],
      send: async ({ name, ...body }) => {
        await put(path("users", name), body);
      },
    });
    if (made) await again();
  }

  async function changeUser(user) {
    const saved = await formDialog({
      title: `User ${visible(user.name)}`, action: "Save",
      fields: [
        { name: "password", label: "New password", kind: "password", hint: "Empty: it stays as it is" },
        { name: "tags", label: "Tags", value: user.tags.join(","), hint: `Any of ${TAGS.join(", ")}` },
      ],
      send: async ({ password, tags }) => {
        const secret = password ? { password } : { password_hash: user.password_hash, hashing_algorithm: user.hashing_algorithm };
        await put(path("users", user.name), { tags, ...secret });
      },
    });
    if (saved) await again();
  }

  async function removeUser(user) {
    const agreed = await confirmDialog({ title: `Delete user ${visible(user.name)}?`, text: "Its connections are closed at once.", action: "Delete", danger: true });
    if (agreed && await attempt(() => del(path("users", user.name)), "The user is gone.")) await again();
  }

  async function permit(user) {
    const saved = await formDialog({
      title: `What ${visible(user.name)} may do`, action: "Save",
      intro: "Regular expressions that names are searched for; empty: nothing.",
      fields: [
        vhostField(names()),
        { name: "configure", label: "Configure", value: ".*", hint: "Declare and delete" },
        { name: "write", label: "Write", value: ".*", hint: "Publish" },
        { name: "read", label: "Read", value: ".*", hint: "Consume, get, bind from" },
      ],
      send: async ({ vhost, ...body }) => {
        await put(path("permissions", vhost, user.name), body);
      },
    });
    if (saved) await again();
  }

  async function forbid(row) {
    if (await attempt(() => del(path("permissions", row.vhost, row.user)), "The permission is gone.")) await again();
  }

  async function addVhost() {
    const made = await formDialog({
      title: "New virtual host", action: "Create",
      fields: [{ name: "name", label: "Name", required: true }, { name: "description", label: "Description" }],
      send: async ({ name, description }) => {
        await put(path("vhosts", name), { description });
      },
    });
    if (made) await again();
  }

  async function removeVhost(vhost) {
    const agreed = await confirmDialog({
      title: `Delete virtual host ${visible(vhost.name)}?`, action: "Delete", danger: true,
      text: `Everything in it goes for good, ${count(vhost.messages)} messages included; its connections are closed.`,
    });
    if (agreed && await attempt(() => del(path("vhosts", vhost.name)), "The virtual host is gone.")) await again();
  }

  function permissionCell(user) {
    const own = permissions.filter((each) => each.user === user.name);
    if (!own.length) return h("span", { class: "quiet" }, "none");
    return own.map((each) => h("div", { key: each.vhost, class: "permission" },
      h("b", {}, visible(each.vhost)), " ",
      ["configure", "write", "read"].map((kind) => [h("span", { class: "quiet" }, `${kind} `), h("code", {}, visible(each[kind]) || "nothing"), " "]),
      h("button", { class: "small", onclick: () => forbid(each), "aria-label": `Revoke in ${each.vhost}` }, "Revoke")));
  }

  function view() {
    return h("div", { class: "page" },
      h("h1", {}, "Users"),
      failure && h("p", { class: "failure", role: "alert" }, failure),
      h("section", { class: "panel" },
        h("div", { class: "panel-head" }, h("h2", {}, "Users"), h("button", { class: "primary", onclick: addUser }, "New user")),
        users === null ? h("p", { class: "empty" }, "Loading…") : plainTable("users", [
          { label: "Name", cell: (row) => [visible(row.name), row.name === session.user && h("span", { class: "tag" }, "you")] },
          { label: "Type", cell: (row) => row.type },
          { label: "Tags", cell: (row) => row.tags.map((tag) => h("span", { class: "tag" }, visible(tag))) },
          { label: "May", cell: permissionCell },
          { label: "", cell: (row) => h("span", { class: "buttons" },
              h("button", { class: "small", onclick: () => permit(row), "aria-label": `Permit ${row.name}` }, "Permit"),
              h("button", { class: "small", onclick: () => changeUser(row), "aria-label": `Change ${row.name}` }, "Change"),
              row.name !== session.user && h("button", { class: "small danger", onclick: () => removeUser(row), "aria-label": `Delete ${row.name}` }, "Delete")) },
        ], users)),
      h("section", { class: "panel" },
        h("div", { class: "panel-head" }, h("h2", {}, "Virtual hosts"), h("button", { onclick: addVhost }, "New virtual host")),
        plainTable("virtual hosts", [
          { label: "Name", cell: (row) => visible(row.name) },
          { label: "Description", cell: (row) => visible(row.description || "–") },
          { label: "Messages", numeric: true, cell: (row) => count(row.messages) },
          { label: "", cell: (row) => row.name !== "/" && h("button", { class: "small danger", onclick: () => removeVhost(row), "aria-label": `Delete ${row.name}` }, "Delete") },
        ], vhosts)));
  }

  return { title: () => "Users", refresh, view };
}
