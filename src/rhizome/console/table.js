// Tables: sorted, filtered and paged by the broker; on a phone each row is a card.

import { get } from "./api.js";
import { h } from "./dom.js";
import { count } from "./format.js";

const PAGE_SIZE = 50;
const TYPING_MS = 250;

// A list of the API. `columns`: [{label, sort, cell(row), numeric, hideable}]; `fields`: the columns
// that the broker is asked for.
export class ListTable {
  constructor({ target, columns, fields, changed, rowKey, sort = "name", reverse = false, query = {}, empty = "Nothing here." }) {
    Object.assign(this, { target, columns, fields, changed, rowKey, sort, reverse, query, empty });
    this.page = 1;
    this.filter = "";
    this.data = null;
    this.failure = null;
    this.silent = "";
    this.asked = 0;
    this.typing = null;
  }

  async refresh(background = true) {
    const asked = ++this.asked;
    const query = new URLSearchParams({
      page: this.page, page_size: PAGE_SIZE, sort: this.sort, sort_reverse: this.reverse,
      ...(this.fields ? { columns: this.fields.join(",") } : {}),
      ...(this.filter ? { name: this.filter, use_regex: false } : {}),
      ...this.query,
    });
    try {
      const { text, headers } = await get(`${this.target()}?${query}`, { background, raw: true });
      if (asked !== this.asked) return;
      this.data = JSON.parse(text);
      this.silent = headers.get("x-rhizome-silent") ?? "";
      this.failure = null;
    } catch (error) {
      if (asked !== this.asked) return;
      if (this.page > 1 && error.status === 400) {
        this.page = 1;
        await this.refresh(background);
        return;
      }
      this.failure = error.message;
    }
    this.changed();
  }

  sortBy(column) {
    if (this.sort === column.sort) this.reverse = !this.reverse;
    else {
      this.sort = column.sort;
      this.reverse = Boolean(column.numeric);
    }
    this.page = 1;
    this.refresh(false);
  }

  type(text) {
    this.filter = text;
    clearTimeout(this.typing);
    this.typing = setTimeout(() => {
      this.page = 1;
      this.refresh(false);
    }, TYPING_MS);
  }

  turn(by) {
    this.page += by;
    this.refresh(false);
  }

  view({ tools = null, label }) {
    const data = this.data;
    return h("section", { class: "list" },
      h("div", { class: "toolbar" },
        h("input", {
          type: "search", class: "filter", placeholder: "Filter by name  /", "aria-label": `Filter ${label} by name`,
          autocomplete: "off", spellcheck: "false", oninput: (event) => this.type(event.target.value),
        }),
        tools,
        h("span", { class: "spacer" }),
        data && h("span", { class: "quiet", "aria-live": "polite" }, this.summary(label))),
      this.failure && h("p", { class: "failure", role: "alert" }, this.failure),
      this.silent && h("p", { class: "warning" }, `No answer from ${this.silent}: what is there is missing here.`),
      data === null
        ? !this.failure && h("p", { class: "empty" }, "Loading…")
        : data.items.length === 0
          ? h("p", { class: "empty" }, this.filter ? "Nothing matches." : this.empty)
          : this.table(data.items, label),
      data && data.page_count > 1 && h("nav", { class: "pager", "aria-label": "Pages" },
        h("button", { disabled: data.page <= 1, onclick: () => this.turn(-1) }, "Previous"),
        h("span", {}, `Page ${data.page} of ${data.page_count}`),
        h("button", { disabled: data.page >= data.page_count, onclick: () => this.turn(1) }, "Next")));
  }

  summary(label) {
    const { filtered_count: found, total_count: total } = this.data;
    return found === total ? `${count(total)} ${label}` : `${count(found)} of ${count(total)} ${label}`;
  }

  table(rows, label) {
    return h("table", { class: "rows", "aria-label": label },
      h("thead", {}, h("tr", {}, this.columns.map((column) => h("th", {
          scope: "col", class: column.numeric ? "number" : null,
          "aria-sort": column.sort === this.sort ? (this.reverse ? "descending" : "ascending") : null,
        },
        column.sort
          ? h("button", { class: "sort", onclick: () => this.sortBy(column) }, column.label,
              h("span", { class: "direction", "aria-hidden": "true" },
                column.sort === this.sort ? (this.reverse ? "↓" : "↑") : ""))
          : column.label)))),
      h("tbody", {}, rows.map((row) => h("tr", { key: this.rowKey(row) },
        this.columns.map((column, at) => h(at ? "td" : "th", {
          scope: at ? null : "row", class: column.numeric ? "number" : null, "data-label": column.label,
        }, column.cell(row)))))));
  }
}

// A table of rows that are here already.
export function plainTable(label, columns, rows, empty = "None.") {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  return h("table", { class: "rows", "aria-label": label },
    h("thead", {}, h("tr", {}, columns.map((column) =>
      h("th", { scope: "col", class: column.numeric ? "number" : null }, column.label)))),
    h("tbody", {}, rows.map((row, number) => h("tr", { key: column0(row, number) },
      columns.map((column, at) => h(at ? "td" : "th", {
        scope: at ? null : "row", class: column.numeric ? "number" : null, "data-label": column.label,
      }, column.cell(row)))))));
}

function column0(row, number) {
  return row.key ?? number;
}

// Down and up move from row to row.
addEventListener("keydown", (event) => {
  if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
  const row = event.target.closest?.("tr");
  if (!row || event.target.matches("input, select, textarea")) return;
  const next = event.key === "ArrowDown" ? row.nextElementSibling : row.previousElementSibling;
  const link = next?.querySelector("a, button");
  if (link) {
    event.preventDefault();
    link.focus();
  }
});
