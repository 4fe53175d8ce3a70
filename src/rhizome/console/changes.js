// Changes of the cluster: each is shown before it is made, and made only as it was shown.

import { path, post } from "./api.js";
import { attempt, confirmDialog, formDialog, openDialog, tell } from "./dialogs.js";
import { h } from "./dom.js";
import { visible } from "./format.js";

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
