// What is going on: one request every few seconds while somebody looks, kept with its recent past.

import { ApiFailure, get } from "./api.js";

const EVERY_MS = 2500;
const POINTS_MAX = 150;
const EVENTS_MAX = 30;

class Live {
  constructor() {
    this.data = null;
    this.failure = null;
    this.failedAt = null;
    this.points = [];
    this.events = [];
    this.listeners = new Set();
    this.timer = null;
    this.running = false;
  }

  start() {
    this.running = true;
    this.data = null;
    this.points = [];
    this.events = [];
    this.ask();
  }

  stop() {
    this.running = false;
    clearTimeout(this.timer);
  }

  listen(work) {
    this.listeners.add(work);
    return () => this.listeners.delete(work);
  }

  async ask() {
    clearTimeout(this.timer);
    if (!this.running) return;
    if (!document.hidden) await this.refresh();
    if (this.running) this.timer = setTimeout(() => this.ask(), EVERY_MS);
  }

  async refresh() {
    const query = this.data === null ? "?history=true" : "";
    try {
      const data = await get("/api/rhizome/live" + query, { background: true });
      if (this.data === null) this.points = past(data.loads);
      else this.events = [...happened(this.data, data), ...this.events].slice(0, EVENTS_MAX);
      this.data = data;
      this.failure = null;
      this.points.push(point(data));
      this.points = this.points.slice(-POINTS_MAX);
    } catch (failure) {
      if (!(failure instanceof ApiFailure)) throw failure;
      if (this.failure === null) this.failedAt = Date.now();
      this.failure = failure.message;
    }
    for (const work of this.listeners) work();
  }

  totals() {
    return sums(this.data?.loads ?? {});
  }

  broker(name) {
    return this.data?.brokers.find((each) => each.name === name);
  }
}

export const live = new Live();

addEventListener("visibilitychange", () => {
  if (!document.hidden && live.running) live.ask();
});

function sums(loads) {
  const found = {
    published: 0, delivered: 0, acked: 0, ready: 0, unacked: 0,
    connections: 0, channels: 0, queues: 0, consumers: 0,
  };
  for (const load of Object.values(loads)) {
    for (const name of Object.keys(found)) found[name] += load.rates[name] ?? load[name] ?? 0;
  }
  return found;
}

function point(data) {
  const { published, delivered, acked, ready, unacked } = sums(data.loads);
  return { at: data.now_ms, published, delivered, acked, ready, unacked };
}

// The histories of all brokers added up, sample by sample; their clocks need not agree to the second.
function past(loads) {
  const histories = Object.values(loads).map((load) => load.history).filter(Boolean);
  const count = Math.max(0, ...histories.map((history) => history.times_ms.length));
  const points = [];
  for (let back = count; back >= 1; back -= 1) {
    const point = { at: 0, published: 0, delivered: 0, acked: 0, ready: 0, unacked: 0 };
    for (const history of histories) {
      const at = history.times_ms.length - back;
      if (at < 0) continue;
      point.at = Math.max(point.at, history.times_ms[at]);
      point.ready += history.ready[at];
      point.unacked += history.unacked[at];
      if (at === 0) continue;
      const seconds = Math.max(1, (history.times_ms[at] - history.times_ms[at - 1]) / 1000);
      for (const name of ["published", "delivered", "acked"]) {
        point[name] += Math.max(0, history[name][at] - history[name][at - 1]) / seconds;
      }
    }
    points.push(point);
  }
  return points.slice(1);
}

// What has changed between two looks, in words.
function happened(before, after) {
  const events = [];
  const at = after.now_ms;
  const add = (kind, text) => events.push({ at, kind, text, key: `${at}-${text}` });
  if (after.cluster.root !== before.cluster.root) {
    if (after.cluster.root) add("root", `${after.cluster.root} is root (term ${after.cluster.term})`);
    else add("bad", `${before.cluster.root} is no longer root; an election is under way`);
  }
  const known = new Map(before.brokers.map((broker) => [broker.name, broker]));
  for (const broker of after.brokers) {
    const was = known.get(broker.name);
    if (was === undefined) add("good", `${broker.name} has joined as ${broker.role}`);
    else if (was.status !== broker.status) {
      const kind = ["stopped", "isolated"].includes(broker.status) ? "bad" : "good";
      add(kind, `${broker.name} is ${broker.status} (was ${was.status})`);
    }
    known.delete(broker.name);
  }
  for (const name of known.keys()) add("bad", `${name} has left`);
  const groups = new Map(before.groups.map((group) => [group.id, group]));
  for (const group of after.groups) {
    const was = groups.get(group.id);
    if (was === undefined || (was.home === group.home && was.epoch === group.epoch)) continue;
    if (group.home === null) add("bad", `group ${group.id} has lost its home ${was.home}`);
    else if (was.home === group.home) add("root", `${group.home} is home of group ${group.id} again (epoch ${group.epoch})`);
    else add("root", `${group.home} takes over group ${group.id} from ${was.home ?? "nobody"} (epoch ${group.epoch})`);
  }
  return events.reverse();
}
