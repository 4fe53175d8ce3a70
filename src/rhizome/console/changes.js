// Changes of the cluster: each is shown before it is made, and made only as it was shown.

import { path, post } from "./api.js";
import { attempt, confirmDialog, formDialog, openDialog, tell } from "./dialogs.js";
import { h } from "./dom.js";
import { plural, visible } from "./format.js";

// Ask what a change would do, show it, and make it if somebody agrees.
async function change(target, order, { title, action, danger }) {
  let preview;
  try {
    preview = await post(target, { ...order, preview: true });
  } catch (error) {
    tell(error.message, "bad");
    return;
  }
  if (preview.refusal) {
    await openDialog((close) => h("div", {},
      h("h2", {}, "That can't be done now"), h("p", {}, visible(preview.refusal)),
      h("div", { class: "buttons" }, h("button", { class: "primary", onclick: () => close(null) }, "Close"))));
    return;
  }
  const agreed = await confirmDialog({
    title, action, danger, text: "This is what will happen:",
    details: [...preview.steps, ...preview.warnings.map((warning) => `Mind: ${warning}`)].map(visible),
  });
  if (agreed) await attempt(async () => tell((await post(target, { ...order, basis: preview.basis })).done));
}

export function drain(broker) {
  const name = visible(broker.name);
  if (broker.draining) {
    return change(path("rhizome", "brokers", broker.name, "undrain"), {}, { title: `Undrain ${name}?`, action: "Undrain" });
  }
  return change(path("rhizome", "brokers", broker.name, "drain"), {}, { title: `Drain ${name}?`, action: "Drain", danger: true });
}

// Groups that were taken over or moved, and could go back to the broker that they came from.
export function astray(groups, brokers) {
  const ready = new Set(brokers.filter((broker) => ["active", "ready"].includes(broker.status) && !broker.draining).map((broker) => broker.name));
  return groups.filter((group) => !group.local && group.home && group.origin && group.origin !== group.home && ready.has(group.origin));
}

export async function rebalance(groups, brokers) {
  const moves = astray(groups, brokers);
  const agreed = await confirmDialog({
    title: "Rebalance?", action: "Rebalance",
    text: "Groups go back to the brokers that they came from, and are no longer pinned. Nothing is lost or repeated; their queues pause for a moment.",
    details: moves.map((group) => `Group ${group.id} with ${plural(group.queues, "queue")} goes from ${visible(group.home)} to ${visible(group.origin)}`),
  });
  if (!agreed) return;
  await attempt(async () => {
    for (const group of moves) {
      const target = path("rhizome", "groups", String(group.id), "move");
      const shown = await post(target, { broker: group.origin, preview: true });
      if (shown.refusal) throw new Error(shown.refusal);
      await post(target, { broker: group.origin, basis: shown.basis });
    }
  }, "The groups go home.");
}

export async function moveGroup(group, brokers) {
  const others = brokers.filter((broker) => broker.role === "primary" && broker.name !== group.home && broker.status !== "stopped");
  const chosen = await formDialog({
    title: `Move group ${group.id}`, action: "Go on", intro: "Its queues go to another broker without losing or repeating a message.",
    fields: [{ name: "broker", label: "To", kind: "choice", value: others[0]?.name, options: others.map((broker) => [broker.name, visible(broker.name)]) }],
    send: async (values) => values,
  });
  if (chosen?.broker) {
    await change(path("rhizome", "groups", String(group.id), "move"), { broker: chosen.broker },
      { title: `Move group ${group.id} to ${visible(chosen.broker)}?`, action: "Move" });
  }
}

export function unpinGroup(group) {
  return change(path("rhizome", "groups", String(group.id), "unpin"), {}, { title: `Unpin group ${group.id}?`, action: "Unpin" });
}
