// The page that asks who you are.

import { h } from "./dom.js";

let failure = null;
let busy = false;

export function loginPage({ reason, logIn, changed }) {
  const submit = async (event) => {
    event.preventDefault();
    const form = event.currentTarget;
    busy = true;
    failure = null;
    changed();
    try {
      await logIn(form.elements.user.value, form.elements.password.value);
      form.reset();
    } catch (error) {
      failure = error.status === 401 ? "That is not right, or this user may not use the console." : error.message;
      form.elements.password.value = "";
      form.elements.password.focus();
    }
    busy = false;
    changed();
  };
  return h("div", { class: "login", key: "login" },
    h("form", { onsubmit: submit, method: "post", autocomplete: "on" },
      h("img", { src: "/console/logo.svg", alt: "", width: 56, height: 56 }),
      h("h1", {}, "Rhizome"),
      h("p", { class: "quiet" }, "One message broker made of many"),
      reason && !failure && h("p", { class: "warning", role: "status", key: "reason" }, reason),
      failure && h("p", { class: "failure", role: "alert", key: "failure" }, failure),
      h("div", { class: "field", key: "user" },
        h("label", { for: "user" }, "User"),
        h("input", { id: "user", name: "user", autocomplete: "username", required: true, ref: (element) => setTimeout(() => element.focus()), spellcheck: "false", autocapitalize: "none" })),
      h("div", { class: "field", key: "password" },
        h("label", { for: "password" }, "Password"),
        h("input", { id: "password", name: "password", type: "password", autocomplete: "current-password", required: true })),
      h("button", { class: "primary", type: "submit", disabled: busy }, busy ? "One moment…" : "Log in")));
}
