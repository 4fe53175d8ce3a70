// The console begins here: login, layout, which page is shown, keys.

import * as api from "./api.js";
import { openDialog, tell } from "./dialogs.js";
import { h, render } from "./dom.js";
import { clock, plural, visible } from "./format.js";
import { live } from "./live.js";
import { loginPage } from "./login.js";
import { clusterPage } from "./page-cluster.js";
import { connectionsPage } from "./page-connections.js";
import { exchangePage, exchangesPage } from "./page-exchanges.js";
import { pipelinesPage } from "./page-pipelines.js";
import { policiesPage } from "./page-policies.js";
import { queuePage, queuesPage } from "./page-queues.js";
import { stallsPage } from "./page-stalls.js";
import { usersPage } from "./page-users.js";

const REFRESH_MS = 3000;

// hash -> page; `may`: the tag that it takes.
const PAGES = [
  { path: "", label: "Cluster", key: "c", make: clusterPage },
  { path: "queues", label: "Queues", key: "q", make: queuesPage, one: queuePage },
  { path: "connections", label: "Connections", key: "n", make: connectionsPage },
  { path: "exchanges", label: "Exchanges", key: "e", make: exchangesPage, one: exchangePage },
  { path: "policies", label: "Policies", key: "p", make: policiesPage },
  { path: "pipelines", label: "Pipelines", key: "l", make: pipelinesPage },
  { path: "users", label: "Users", key: "u", make: usersPage, may: "administrator" },
  { path: "stalls", label: "Stalls", key: "s", make: stallsPage, may: "monitoring" },
];

const app = document.getElementById("app");
let session = null;
let page = null;
let place = null;
let drawing = false;
let refreshing = null;
let prefix = false;
let loggedOut = "";

function may(tag) {
  return session.may.includes(tag);
}

// Draw again, once, before the next frame.
function changed() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    draw();
  });
}

function draw() {
  if (session === null) {
    document.title = "Rhizome";
    render(app, loginPage({ reason: loggedOut, logIn, changed }));
    return;
  }
  document.title = `${page.title()} · ${live.data?.cluster.name ?? session.cluster} · Rhizome`;
  render(app, shell());
}

// ---- layout --------------------------------------------------------------------------------------

function shell() {
  return h("div", { class: "shell", key: "shell" },
    h("a", { class: "skip", href: "#main", onclick: (event) => { event.preventDefault(); document.getElementById("main").focus(); } }, "Skip to content"),
    h("header", { class: "top" },
      h("a", { class: "brand", href: "#/" },
        h("img", { src: "/console/logo.svg", alt: "", width: 26, height: 26 }),
        h("span", {}, "Rhizome")),
      h("span", { class: "cluster-name", title: "Cluster" }, visible(live.data?.cluster.name ?? session.cluster)),
      health(),
      h("span", { class: "spacer" }),
      h("span", { class: "quiet seen-by" }, `seen by ${visible(session.broker)}`),
      h("button", { class: "icon", "aria-label": "Keys", title: "Keys  ?", onclick: showKeys }, "?"),
      h("button", { class: "icon", "aria-label": "Light or dark", title: "Light or dark", onclick: switchTheme }, "◐"),
      h("button", { class: "user", onclick: logOut, title: "Log out" }, h("span", { class: "who" }, `${visible(session.user)} · `), h("span", { class: "quiet" }, "log out"))),
    h("nav", { class: "side", "aria-label": "Pages" }, PAGES.filter((each) => !each.may || may(each.may)).map((each) =>
      h("a", { href: `#/${each.path}`, "aria-current": each.path === place.path ? "page" : null, key: each.path }, each.label))),
    h("main", { id: "main", tabindex: -1, key: location.hash }, outage(), page.view()));
}

function health() {
  if (live.failure) return h("span", { class: "pill bad" }, "no connection");
  if (!live.data) return h("span", { class: "pill" }, "…");
  const stalls = live.data.stalls.length;
  if (live.data.cluster.root === null) return h("a", { class: "pill bad", href: "#/stalls" }, "no root");
  if (stalls) return h("a", { class: "pill warn", href: "#/stalls" }, plural(stalls, "stall"));
  return h("span", { class: "pill good" }, "all well");
}

function outage() {
  if (!live.failure) return null;
  const others = Object.entries(live.data?.loads ?? {})
    .filter(([name]) => name !== session.broker)
    .flatMap(([name, load]) => load.http.slice(0, 1).map((url) => ({ name, url })))
    .filter((each) => /^https?:\/\//.test(each.url));
  return h("div", { class: "outage", role: "alert", key: "outage" },
    h("b", {}, `${visible(session.broker)} does not answer since ${clock(live.failedAt)}: `), live.failure, ". Trying again. ",
    others.length ? h("span", {}, "Other consoles: ", others.map((each) => [
      h("a", { href: each.url, rel: "noreferrer" }, visible(each.name)), " "])) : null);
}

function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("rhizome.theme", root.dataset.theme);
  } catch {
    // Not remembered, then.
  }
}

function showKeys() {
  const keys = [
    ["/", "filter the list"], ["↑ ↓", "from row to row"], ["Esc", "close a dialog"], ["?", "this help"],
    ...PAGES.map((each) => [`g ${each.key}`, `go to ${each.label.toLowerCase()}`]),
  ];
  openDialog((close) => h("div", {},
    h("h2", {}, "Keys"),
    h("dl", { class: "keys" }, keys.map(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)])),
    h("div", { class: "buttons" }, h("button", { class: "primary", onclick: () => close(null) }, "Close"))));
}

// ---- where we are --------------------------------------------------------------------------------

function route() {
  if (session === null) return;
  const [path, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const found = PAGES.find((each) => each.path === path && (!each.may || may(each.may))) ?? PAGES[0];
  let names = [];
  try {
    names = rest.filter(Boolean).map(decodeURIComponent);
  } catch {
    // A hash that somebody has typed: the list, then.
  }
  place = found;
  page?.leave?.();
  const context = { changed, may, session, live };
  page = names.length === 2 && found.one ? found.one(context, ...names) : found.make(context);
  scrollTo(0, 0);
  changed();
  refresh(false);
}

async function refresh(background = true) {
  clearTimeout(refreshing);
  const asking = page;
  if (asking?.refresh && !(background && document.hidden)) {
    try {
      await asking.refresh(background);
    } catch (error) {
      if (!(error instanceof api.ApiFailure)) throw error;
    }
  }
  if (asking === page && session !== null) {
    changed();
    clearTimeout(refreshing);
    refreshing = setTimeout(refresh, REFRESH_MS);
  }
}

// ---- who we are ----------------------------------------------------------------------------------

async function logIn(user, password) {
  begin(await api.logIn(user, password));
}

function begin(found) {
  session = found;
  loggedOut = "";
  live.start();
  route();
}

function end(reason) {
  if (session === null) return;
  session = null;
  page?.leave?.();
  page = null;
  loggedOut = reason;
  live.stop();
  clearTimeout(refreshing);
  for (const dialog of document.querySelectorAll("dialog")) dialog.remove();
  changed();
}

async function logOut() {
  try {
    await api.logOut();
  } catch (error) {
    tell(error.message, "bad");
  }
  end("");
}

// ---- keys ----------------------------------------------------------------------------------------

addEventListener("keydown", (event) => {
  if (session === null || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest?.("input, select, textarea, dialog")) return;
  if (prefix) {
    prefix = false;
    const found = PAGES.find((each) => each.key === event.key && (!each.may || may(each.may)));
    if (found) location.hash = `#/${found.path}`;
  } else if (event.key === "g") {
    prefix = true;
    setTimeout(() => { prefix = false; }, 1200);
  } else if (event.key === "/") {
    const filter = document.querySelector("main .filter");
    if (filter) {
      event.preventDefault();
      filter.focus();
    }
  } else if (event.key === "?") {
    showKeys();
  }
});

addEventListener("hashchange", route);
api.whenLoggedOut((reason) => end(reason));
live.listen(changed);

try {
  begin(await api.resume());
} catch {
  changed();
}
