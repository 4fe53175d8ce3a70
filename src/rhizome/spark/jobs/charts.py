"""Charts as SVG, and the page that holds them: one file, and nothing to be loaded. Its only script
searches long tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 860
HEIGHT: Final = 240
_LEFT: Final = 70
_RIGHT: Final = 12
_TOP: Final = 12
_BOTTOM: Final = 34
_TICKS: Final = 5
_LABELS_MAX: Final = 8
_COLOURS: Final = ("#2f6fde", "#d9822b", "#2a9d5c", "#b0418a", "#7a7f87")

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2127; --soft: #6b7280; --line: #d7dae0; --back: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --soft: #9aa1ab; --line: #3a3f47; --back: #16181c; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back);
  max-width: 900px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; }
p { color: var(--soft); margin: .2rem 0; }
svg { width: 100%; height: auto; } svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; } td.number, th.number { text-align: right; }
.figures { display: flex; flex-wrap: wrap; gap: 1.2rem 2.4rem; margin: 1rem 0; }
.figures b { display: block; font-size: 1.5rem; font-weight: 600; }
.figures span, .key { color: var(--soft); font-size: .85rem; }
input { font: inherit; color: inherit; background: var(--back); border: 1px solid var(--line);
  border-radius: 4px; padding: .2rem .5rem; width: 20rem; max-width: 100%; }
"""

# Rows that a search doesn't find are hidden; without one the first few are shown.
_SEARCH: Final = """
for (const box of document.querySelectorAll("input[data-first]")) {
  const rows = [...box.nextElementSibling.tBodies[0].rows];
  const names = rows.map(row => row.cells[0].textContent.toLowerCase());
  const show = () => {
    const wanted = box.value.toLowerCase();
    rows.forEach((row, place) => {
      row.hidden = wanted ? !names[place].includes(wanted) : place >= Number(box.dataset.first);
    });
  };
  box.addEventListener("input", show);
  show();
}
"""


@dataclass(frozen=True)
class Series:
    """One line of a chart; None is a gap."""

    name: str
    values: Sequence[float | None]


def number_text(value: float) -> str:
    """1234567 as 1.23M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def milliseconds_text(value: float) -> str:
    """1500 as 1.5 s; below a second in ms."""
    for limit, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:.3g} ms"


def line_chart(
    labels: Sequence[str],
    series: Sequence[Series],
    unit: str,
    text: Callable[[float], str] = number_text,
) -> str:
    """Lines over equal steps, with an axis from zero to a round number; `text` writes a value."""
    top = _round_up(max((v for s in series for v in s.values if v is not None), default=0.0))
    inner = WIDTH - _LEFT - _RIGHT
    step = inner / max(1, len(labels) - 1)
    parts = [_axis(top, unit, text), _labels(labels, lambda place: _LEFT + place * step)]
    for place, each in enumerate(series):
        colour = _COLOURS[place % len(_COLOURS)]
        for run in _runs(each.values):
            points = " ".join(f"{_LEFT + n * step:.1f},{_y(v, top):.1f}" for n, v in run)
            parts.append(
                f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
            )
            if len(run) == 1:
                n, v = run[0]
                parts.append(
                    f'<circle cx="{_LEFT + n * step:.1f}" cy="{_y(v, top):.1f}" r="2.5" '
                    f'fill="{colour}"/>'
                )
    return _svg(parts) + _key(series)


def bar_chart(labels: Sequence[str], values: Sequence[float], unit: str) -> str:
    """Bars, one for each label."""
    top = _round_up(max(values, default=0.0))
    inner = WIDTH - _LEFT - _RIGHT
    step = inner / max(1, len(values))
    parts = [
        _axis(top, unit, number_text),
        _labels(labels, lambda place: _LEFT + (place + 0.5) * step),
    ]
    for place, value in enumerate(values):
        y = _y(value, top)
        parts.append(
            f'<rect x="{_LEFT + place * step + step * 0.1:.1f}" y="{y:.1f}" '
            f'width="{step * 0.8:.1f}" height="{HEIGHT - _BOTTOM - y:.1f}" fill="{_COLOURS[0]}">'
            f"<title>{escape(labels[place])}: {number_text(value)}</title></rect>"
        )
    return _svg(parts)


def _y(value: float, top: float) -> float:
    return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * value / top


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, ..."""
    if value <= 0:
        return 1.0
    power = 1.0
    while power < value:
        power *= 10
    while power / 10 >= value:
        power /= 10
    return next(p for p in (power / 5, power / 2, power) if p >= value)


def _axis(top: float, unit: str, text: Callable[[float], str]) -> str:
    found = []
    for tick in range(_TICKS + 1):
        value = top * tick / _TICKS
        y = _y(value, top)
        found.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            'stroke="var(--line)" stroke-width="1"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{text(value)}{escape(unit)}</text>"
        )
    return "".join(found)


def _labels(labels: Sequence[str], x: object) -> str:
    assert callable(x)
    every = max(1, -(-len(labels) // _LABELS_MAX))
    return "".join(
        f'<text x="{x(place):.1f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(label)}</text>'
        for place, label in enumerate(labels)
        if place % every == 0
    )


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """What lies between gaps."""
    found: list[list[tuple[int, float]]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            found.append([])
        else:
            found[-1].append((place, value))
    return [run for run in found if run]


def _key(series: Sequence[Series]) -> str:
    if len(series) < 2:
        return ""
    names = [
        f'<span style="color:{_COLOURS[place % len(_COLOURS)]}">&#9632;</span> {escape(each.name)}'
        for place, each in enumerate(series)
    ]
    return f'<div class="key">{" &nbsp; ".join(names)}</div>'


def _svg(parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'


# --- pages


def figures(pairs: Sequence[tuple[str, str]]) -> str:
    """Large figures with what they are below them."""
    cells = "".join(f"<div><b>{escape(v)}</b><span>{escape(k)}</span></div>" for k, v in pairs)
    return f'<div class="figures">{cells}</div>'


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[object]],
    searched: bool = False,
    shown_first: int = 0,
) -> str:
    """A table; numbers go to the right. One that is searched shows its first rows, and those whose
    first cell has what is typed above it."""
    if not rows:
        return "<p>none</p>"
    numeric = [all(isinstance(row[n], (int, float)) for row in rows) for n in range(len(headings))]
    mark = [' class="number"' if each else "" for each in numeric]
    head = "".join(f"<th{mark[n]}>{escape(name)}</th>" for n, name in enumerate(headings))
    body = "".join(
        "<tr>"
        + "".join(f"<td{mark[n]}>{_cell(value)}</td>" for n, value in enumerate(row))
        + "</tr>"
        for row in rows
    )
    search = (
        f'<input type="search" data-first="{shown_first}" aria-label="Search"'
        f' placeholder="search {len(rows):,} of them">'
        if searched
        else ""
    )
    return f"{search}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return escape(str(value)) if value not in (None, "") else "<i>none</i>"


def page(title: str, subtitle: str, sections: Sequence[tuple[str, str]]) -> str:
    """A whole document."""
    body = "".join(
        f"<h2>{escape(heading)}</h2>{content}" if heading else content
        for heading, content in sections
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1><p>{escape(subtitle)}</p>{body}"
        f"{f'<script>{_SEARCH}</script>' if 'data-first=' in body else ''}</body></html>"
    )
