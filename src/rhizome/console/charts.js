// Charts as SVG. Lines stretch to the width that there is; text beside them does not.

import { h } from "./dom.js";
import { clock } from "./format.js";

const WIDTH = 1000;
const HEIGHT = 200;

let hovered = null; // {id, share}: where the pointer is, as a share of the width

// A chart of points [{at, NAME: number, ...}] with a line for each of series
// [{name, label, tone}]; `format` makes text of a number, `changed` is called to draw again.
export function lineChart({ id, title, points, series, format, changed }) {
  const top = niceTop(Math.max(0, ...points.flatMap((point) => series.map((each) => point[each.name]))));
  const first = points[0]?.at ?? 0;
  const span = Math.max(1, (points.at(-1)?.at ?? 0) - first);
  const x = (point) => ((point.at - first) / span) * WIDTH;
  const y = (value) => HEIGHT - (value / top) * (HEIGHT - 8);
  const near = hovered?.id === id ? nearest(points, first + hovered.share * span) : null;
  const latest = near ?? points.at(-1);

  return h("figure", { class: "chart", key: id },
    h("figcaption", {},
      h("span", { class: "chart-title" }, title),
      h("span", { class: "legend" }, series.map((each) =>
        h("span", { class: `key tone-${each.tone}` }, each.label, " ",
          h("b", {}, latest ? format(latest[each.name]) : "–")))),
      h("time", { class: "chart-when" }, near ? clock(near.at) : "")),
    h("div", { class: "plot" },
      h("span", { class: "scale full" }, format(top)),
      h("span", { class: "scale half" }, format(top / 2)),
      points.length < 2
        ? h("p", { class: "empty" }, "Collecting…")
        : h("svg", {
            viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
            "aria-label": described(title, series, points, format),
            onpointermove: (event) => hover(id, event, changed),
            onpointerleave: () => { hovered = null; changed(); },
          },
          [1, 0.5].map((share) => h("line", {
            class: "grid", x1: 0, x2: WIDTH, y1: y(top * share), y2: y(top * share),
          })),
          series.map((each) => {
            const line = points.map((point) => `${x(point).toFixed(1)},${y(point[each.name]).toFixed(1)}`);
            return h("g", { class: `tone-${each.tone}` },
              each.filled && h("polygon", { class: "area", points: `0,${HEIGHT} ${line.join(" ")} ${WIDTH},${HEIGHT}` }),
              h("polyline", { class: "line", points: line.join(" ") }));
          }),
          near && h("line", { class: "cursor", x1: x(near), x2: x(near), y1: 0, y2: HEIGHT }))),
    h("div", { class: "ticks", "aria-hidden": "true" },
      h("span", {}, ago(span)), h("span", {}, ago(span / 2)), h("span", {}, "now")));
}

function hover(id, event, changed) {
  const box = event.currentTarget.getBoundingClientRect();
  hovered = { id, share: (event.clientX - box.left) / Math.max(1, box.width) };
  changed();
}

function nearest(points, at) {
  let found = null;
  for (const point of points) {
    if (found === null || Math.abs(point.at - at) < Math.abs(found.at - at)) found = point;
  }
  return found;
}

function described(title, series, points, format) {
  const last = points.at(-1);
  return `${title}: ` + series.map((each) => `${each.label} ${format(last[each.name])}`).join(", ");
}

function ago(ms) {
  const seconds = Math.round(ms / 1000);
  return seconds < 90 ? `${seconds} s ago` : `${Math.round(seconds / 60)} min ago`;
}

function niceTop(value) {
  if (value <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 2, 2.5, 5, 10]) {
    if (step * power >= value) return step * power;
  }
  return value;
}

// A line without axes, for a row of a table.
export function sparkline(values, label) {
  if (!values || values.length < 2) return h("span", { class: "spark none", "aria-hidden": "true" });
  const top = Math.max(1, ...values);
  const points = values.map((value, at) =>
    `${((at / (values.length - 1)) * 100).toFixed(1)},${(22 - (value / top) * 20).toFixed(1)}`);
  return h("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img", "aria-label": label },
    h("polygon", { class: "area", points: `0,24 ${points.join(" ")} 100,24` }),
    h("polyline", { class: "line", points: points.join(" ") }));
}

// How full something is, as a bar.
export function meter(used, most, label) {
  const share = most > 0 ? Math.min(1, used / most) : 0;
  return h("div", { class: "meter", role: "img", "aria-label": label, title: label },
    h("div", { class: share > 0.9 ? "fill bad" : share > 0.7 ? "fill warn" : "fill", style: { width: `${(share * 100).toFixed(1)}%` } }));
}
