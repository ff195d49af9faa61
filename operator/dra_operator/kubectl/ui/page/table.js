// A table of any length of which only the lines in sight are in the document. The table itself has the focus, and
// aria-activedescendant names the line: so no key waits for elements, and none is lost when lines are drawn again.

import { make } from "./dom.js";

const BEYOND = 4; // lines that are drawn above and below those in sight
const MOST_LINES = 300000; // browsers cut elements that are higher than some millions of pixels

export class Table {
  /**
   * `columns`: {title, sort?, class?}; `cells(index)`: texts and elements of a line, or null while it is loaded;
   * `open(index)`, `copy(index)`: Enter and C; `need(from, to)`: these lines are in sight; `sort(key)`: a title was pressed;
   * `name(index)`: what a screen reader says of a line.
   */
  constructor(box, { columns, cells, name, open, copy = () => {}, need = () => {}, sort = () => {} }) {
    Object.assign(this, { box, columns, cells, name, open, copy, need });
    this.count = 0;
    this.active = -1;
    this.drawn = new Map(); // index -> the element of a line
    this.head = make("div", { role: "row", class: "head", "aria-rowindex": "1" });
    for (const column of columns) {
      const title = column.sort ? make("button", { type: "button", "data-sort": column.sort }, column.title) : column.title;
      this.head.append(make("span", { role: "columnheader", class: column.class ?? null }, title));
    }
    this.space = make("div", { class: "space", role: "presentation" });
    box.append(make("div", { role: "rowgroup" }, this.head), make("div", { role: "rowgroup" }, this.space));
    this.head.addEventListener("click", (event) => {
      const key = event.target.closest("button")?.dataset.sort;
      if (key) sort(key);
    });
    box.addEventListener("scroll", () => this.draw(), { passive: true });
    box.addEventListener("keydown", (event) => this.press(event));
    box.addEventListener("focus", () => { if (this.active < 0) this.activate(0, false); });
    this.space.addEventListener("click", (event) => {
      const line = event.target.closest("[role=row]");
      if (!line || event.target.closest("button, a")) return;
      this.activate(Number(line.dataset.index), false);
      this.open(this.active);
    });
    new ResizeObserver(() => this.draw(true)).observe(box);
  }

  /** So many lines now; those in sight are drawn again. */
  show(count) {
    this.count = Math.min(count, MOST_LINES);
    this.box.setAttribute("aria-rowcount", String(count + 1));
    if (this.active >= this.count) this.active = this.count - 1;
    this.draw(true);
  }

  /** Which way the lines are sorted: a key, with a minus for the other direction. */
  sorted(order) {
    const key = order.replace(/^-/, "");
    for (const button of this.head.querySelectorAll("button")) {
      const way = button.dataset.sort !== key ? null : order.startsWith("-") ? "descending" : "ascending";
      if (way) button.parentElement.setAttribute("aria-sort", way);
      else button.parentElement.removeAttribute("aria-sort");
    }
  }

  get height() {
    return parseFloat(getComputedStyle(this.box).getPropertyValue("--line-height")) || 36;
  }

  /** Draws the lines in sight; `again`: also those that are drawn already. */
  draw(again = false) {
    const { scrollTop, clientHeight } = this.box;
    if (!clientHeight) return; // not in sight itself
    const height = this.height;
    this.space.style.setProperty("height", `${this.count * height}px`);
    const from = Math.max(0, Math.floor(scrollTop / height) - BEYOND);
    const to = Math.min(this.count, Math.ceil((scrollTop + clientHeight) / height) + BEYOND);
    for (const [index, line] of this.drawn) {
      if (again || index < from || index >= to) {
        line.remove();
        this.drawn.delete(index);
      }
    }
    const fresh = [];
    for (let index = from; index < to; index += 1) {
      if (!this.drawn.has(index)) fresh.push(this.line(index, height));
    }
    this.space.append(...fresh);
    this.mark();
    if (from < to) this.need(from, to);
  }

  line(index, height) {
    const cells = this.cells(index) ?? this.columns.map((_, place) => (place ? "" : "…"));
    const line = make("div", { role: "row", id: this.idOf(index), "data-index": index, "aria-rowindex": index + 2, "aria-label": this.name(index) });
    line.style.setProperty("top", `${index * height}px`);
    this.columns.forEach((column, place) => {
      line.append(make("span", { role: "gridcell", class: column.class ?? null }, ...[cells[place]].flat()));
    });
    this.drawn.set(index, line);
    return line;
  }

  idOf(index) { return `${this.box.id}-${index}`; }

  mark() {
    const line = this.drawn.get(this.active);
    for (const other of this.space.querySelectorAll("[aria-selected]")) other.removeAttribute("aria-selected");
    if (line) {
      line.setAttribute("aria-selected", "true");
      this.box.setAttribute("aria-activedescendant", line.id);
    } else this.box.removeAttribute("aria-activedescendant");
  }

  /** Leads to a line, and scrolls to it. */
  activate(index, scrolls = true) {
    if (!this.count) return;
    this.active = Math.max(0, Math.min(this.count - 1, index));
    if (scrolls) {
      const { height } = this;
      const sight = this.box.clientHeight - this.head.offsetHeight;
      const top = this.active * height;
      if (top < this.box.scrollTop) this.box.scrollTop = top;
      else if (top + height > this.box.scrollTop + sight) this.box.scrollTop = top + height - sight;
    }
    this.draw();
    this.box.dispatchEvent(new CustomEvent("active", { detail: this.active }));
  }

  press(event) {
    if (event.target !== this.box || event.ctrlKey || event.altKey || event.metaKey) return;
    const page = Math.max(1, Math.floor((this.box.clientHeight - this.head.offsetHeight) / this.height) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in steps) this.activate(this.active + steps[event.key]);
    else if (this.active >= 0 && (event.key === "Enter" || event.key === " ")) this.open(this.active);
    else if (this.active >= 0 && event.key === "c") this.copy(this.active);
    else return;
    event.preventDefault();
  }
}
