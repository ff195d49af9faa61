// A list that the server sorts, searches and cuts: the page has the lines in sight and a few around them.

import { ask, byId, copy, counted, make } from "./dom.js";
import { Table } from "./table.js";

const PAGE = 50; // lines of one answer

export class Listing {
  /**
   * `name` is that of the list on the server and of its elements; `columns`: {title, sort?, class?};
   * `cells(row)`, `words(row)`, `hash(row)`, `command(row)`: of a line; `nouns`: of one line and of several; `kinds`: what filters it is called.
   */
  constructor(name, { columns, cells, words, hash, command, nouns, order, kinds = "" }) {
    Object.assign(this, { name, nouns, kinds });
    this.wish = { sort: order, find: "", kind: "" };
    this.rows = new Map(); // index -> a line, perhaps of an earlier answer
    this.fresh = new Set(); // pages that are of the newest revision and wish
    this.total = 0;
    this.sight = [0, PAGE];
    this.revision = null;
    this.isLoading = false;
    const row = (index) => this.rows.get(index);
    this.table = new Table(byId(`${name}-rows`), {
      columns,
      cells: (index) => (row(index) ? cells(row(index)) : null),
      name: (index) => (row(index) ? words(row(index)) : "loading"),
      open: (index) => { if (row(index)) location.hash = hash(row(index)); },
      copy: (index) => { if (row(index) && command(row(index))) copy(command(row(index))); },
      need: (from, to) => { this.sight = [from, to]; this.load(); },
      sort: (key) => this.ask({ sort: this.wish.sort === key ? `-${key}` : key }),
    });
    this.table.sorted(order);
    byId(`${name}-find`).addEventListener("input", (event) => this.ask({ find: event.target.value.trim().slice(0, 1000) }));
    byId(`${name}-kinds`)?.addEventListener("click", (event) => {
      const kind = event.target.closest("button")?.dataset.kind;
      if (kind !== undefined) this.ask({ kind: this.wish.kind === kind ? "" : kind });
    });
  }

  ask(change) {
    this.wish = { ...this.wish, ...change };
    this.fresh.clear();
    this.rows.clear();
    this.table.sorted(this.wish.sort);
    this.table.box.scrollTop = 0;
    this.load();
  }

  /** Asks again for the lines in sight if the cluster has changed, or `anyway`. */
  refresh(revision, anyway = false) {
    if (revision === this.revision && !anyway) {
      this.table.draw();
      return;
    }
    this.revision = revision;
    this.fresh.clear();
    this.load();
  }

  missing() {
    const last = Math.max(this.sight[0] + 1, Math.min(this.sight[1], this.total));
    for (let page = Math.floor(this.sight[0] / PAGE); page * PAGE < last; page += 1) {
      if (!this.fresh.has(page)) return page;
    }
    return null;
  }

  async load() {
    if (this.isLoading) return;
    this.isLoading = true;
    const found = byId(`${this.name}-found`);
    if (!found.textContent) found.textContent = "loading"; // an empty table would say that there are none
    try {
      for (let page = this.missing(); page !== null; page = this.missing()) {
        const { wish, revision } = this;
        const answer = await ask(this.name, { ...wish, offset: page * PAGE, limit: PAGE });
        if (wish !== this.wish || revision !== this.revision) continue;
        this.take(page, answer);
      }
      found.classList.remove("problem");
    } catch (error) {
      found.textContent = error.message;
      found.classList.add("problem");
    } finally {
      this.isLoading = false;
    }
  }

  take(page, answer) {
    this.fresh.add(page);
    this.total = answer.total;
    for (let index = 0; index < PAGE; index += 1) {
      const row = answer.rows[index];
      if (row) this.rows.set(page * PAGE + index, row);
      else this.rows.delete(page * PAGE + index);
    }
    const of = answer.total === answer.all ? "" : ` of ${answer.all.toLocaleString("en")}`;
    const noun = this.nouns[answer.all === 1 ? 0 : 1];
    const text = answer.all ? `${answer.total.toLocaleString("en")}${of} ${noun}` : `no ${noun}`;
    if (byId(`${this.name}-found`).textContent !== text) byId(`${this.name}-found`).textContent = text;
    this.drawKinds(answer);
    this.table.show(answer.total);
  }

  drawKinds(answer) {
    const box = byId(`${this.name}-kinds`);
    if (!box) return;
    const shape = JSON.stringify([answer.kinds, this.wish.kind]);
    if (box.dataset.shape === shape) return;
    box.dataset.shape = shape;
    const focused = box.contains(document.activeElement) ? document.activeElement.dataset.kind : null;
    const lines = answer.kinds.map(([kind, number]) => {
      const pressed = String(this.wish.kind === kind);
      return make("li", {}, make("button", { type: "button", class: "kind", "data-kind": kind, "aria-pressed": pressed },
        make("strong", {}, number.toLocaleString("en")), ` ${kind}`));
    });
    if (answer.more_kinds) lines.push(make("li", { class: "quiet" }, `and ${counted(answer.more_kinds, this.kinds)} more: search for a word`));
    box.replaceChildren(...lines);
    if (focused !== null) [...box.querySelectorAll("button")].find((button) => button.dataset.kind === focused)?.focus();
  }

  /** Leads the focus back to the table. */
  focus() { this.table.box.focus(); }
}
