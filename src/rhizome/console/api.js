// Requests to the broker that served this page. A login is a cookie that scripts can't read and a
// guard that goes with every request.

export class ApiFailure extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

let guard = "login";
let touchedAt = Date.now();
let onLoggedOut = () => {};

for (const kind of ["pointerdown", "keydown"]) {
  addEventListener(kind, () => { touchedAt = Date.now(); }, { passive: true, capture: true });
}

export function whenLoggedOut(work) {
  onLoggedOut = work;
}

// A path from its parts, each encoded: path("queues", vhost, name).
export function path(...parts) {
  return "/api/" + parts.map(encodeURIComponent).join("/");
}

const IDLE_MS = 10_000;

export async function request(method, target, { body, headers = {}, background = false, raw = false } = {}) {
  const sent = { accept: "application/json", "x-rhizome-console": guard, ...headers };
  // What the console asks by itself doesn't keep a login alive.
  if (background && Date.now() - touchedAt > IDLE_MS) sent["x-rhizome-idle"] = "1";
  if (body !== undefined) sent["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(target, {
      method,
      headers: sent,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
      cache: "no-store",
      redirect: "error",
    });
  } catch {
    throw new ApiFailure(0, "the broker can't be reached");
  }
  const text = await answer.text();
  if (answer.ok) return raw ? { text, headers: answer.headers } : text ? JSON.parse(text) : null;
  let reason = answer.statusText;
  try {
    reason = JSON.parse(text).reason || reason;
  } catch {
    // Not one of the broker's own answers.
  }
  if (answer.status === 401 && guard !== "login" && /log in again/i.test(reason)) onLoggedOut(reason);
  throw new ApiFailure(answer.status, reason);
}

export const get = (target, options) => request("GET", target, options);
export const put = (target, body = {}) => request("PUT", target, { body });
export const post = (target, body = {}) => request("POST", target, { body });
export const del = (target, headers) => request("DELETE", target, { headers });

const SESSION = "/api/rhizome/session";

export async function resume() {
  const session = await get(SESSION);
  guard = session.guard;
  return session;
}

export async function logIn(user, password) {
  guard = "login";
  const session = await post(SESSION, { user, password });
  guard = session.guard;
  return session;
}

export async function logOut() {
  try {
    await del(SESSION);
  } finally {
    guard = "login";
  }
}
