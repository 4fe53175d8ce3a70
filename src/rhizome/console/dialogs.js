// Dialogs and passing messages. A dialog is the browser's own <dialog>: focus stays in it, Esc
// closes it, and what is behind it can't be reached.

import { h, render } from "./dom.js";

// Open a dialog; `make(close)` says what is in it. Returns a promise of what close was called with.
export function openDialog(make, { wide = false } = {}) {
  return new Promise((resolve) => {
    const element = document.createElement("dialog");
    if (wide) element.className = "wide";
    const close = (value) => {
      element.close();
      element.remove();
      resolve(value);
    };
    element.oncancel = (event) => {
      event.preventDefault();
      close(null);
    };
    element.onclick = (event) => {
      if (event.target === element) close(null);
    };
    const redraw = () => render(element, make(close, redraw));
    redraw();
    document.body.append(element);
    element.showModal();
  });
}

export function confirmDialog({ title, text, action, danger = false, details = [] }) {
  return openDialog((close) => h("form", {
      method: "dialog",
      onsubmit: (event) => { event.preventDefault(); close(true); },
    },
    h("h2", {}, title),
    h("p", {}, text),
    details.length ? h("ul", { class: "steps" }, details.map((line) => h("li", {}, line))) : null,
    h("div", { class: "buttons" },
      h("button", { type: "button", onclick: () => close(false) }, "Cancel"),
      h("button", { type: "submit", class: danger ? "danger" : "primary" }, action))));
}

// A form in a dialog. Fields: {name, label, value, hint, kind, options, required, wide}. `send` gets
// the values and may raise; its message is shown and the dialog stays.
export function formDialog({ title, intro, fields, action, send, wide = false }) {
  let failure = null;
  let busy = false;
  return openDialog((close, redraw) => h("form", {
      method: "post",
      onsubmit: async (event) => {
        event.preventDefault();
        const values = readFields(event.currentTarget, fields);
        busy = true;
        failure = null;
        redraw();
        try {
          close(await send(values) ?? true);
        } catch (error) {
          busy = false;
          failure = error.message;
          redraw();
        }
      },
    },
    h("h2", {}, title),
    intro && h("p", { class: "quiet" }, intro),
    fields.map(fieldRow),
    failure && h("p", { class: "failure", role: "alert" }, failure),
    h("div", { class: "buttons" },
      h("button", { type: "button", onclick: () => close(null) }, "Cancel"),
      h("button", { type: "submit", class: "primary", disabled: busy }, busy ? "One moment…" : action))), { wide });
}

export function fieldRow(field) {
  const id = `field-${field.name}`;
  const autocomplete = field.kind === "password" ? "new-password" : "off";
  const common = { id, name: field.name, required: field.required, autocomplete, spellcheck: "false" };
  let control;
  if (field.kind === "choice") {
    control = h("select", common, field.options.map(([value, label]) =>
      h("option", { value, selected: value === field.value }, label)));
  } else if (field.kind === "text") {
    control = h("textarea", { ...common, rows: field.rows ?? 4, ref: (element) => { element.value = field.value ?? ""; } });
  } else if (field.kind === "flag") {
    return h("label", { class: "field flag", key: id },
      h("input", { ...common, type: "checkbox", ref: (element) => { element.checked = Boolean(field.value); } }), field.label);
  } else {
    control = h("input", { ...common, type: field.kind ?? "text", placeholder: field.placeholder,
      ref: (element) => { element.value = field.value ?? ""; } });
  }
  return h("div", { class: "field", key: id },
    h("label", { for: id }, field.label),
    control,
    field.hint && h("small", {}, field.hint));
}

export function readFields(form, fields) {
  const values = {};
  for (const field of fields) {
    const control = form.elements.namedItem(field.name);
    values[field.name] = field.kind === "flag" ? control.checked : control.value;
  }
  return values;
}

// JSON that somebody has typed: an empty text is an empty object.
export function typedObject(text, what) {
  if (!text.trim()) return {};
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`${what}: ${error.message}`);
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) {
    throw new Error(`${what} must be a JSON object, such as {"x-max-length": 1000}`);
  }
  return value;
}

// A line at the bottom that goes away by itself.
export function tell(text, kind = "good") {
  let shelf = document.getElementById("notes");
  if (!shelf) {
    shelf = document.createElement("div");
    shelf.id = "notes";
    shelf.setAttribute("role", "status");
    shelf.setAttribute("aria-live", "polite");
    document.body.append(shelf);
  }
  const note = document.createElement("p");
  note.className = `note ${kind}`;
  note.textContent = text;
  shelf.append(note);
  setTimeout(() => note.remove(), kind === "bad" ? 8000 : 3500);
}

// Do something and say how it went; true if it went well.
export async function attempt(work, done) {
  try {
    await work();
    if (done) tell(done);
    return true;
  } catch (error) {
    tell(error.message, "bad");
    return false;
  }
}
