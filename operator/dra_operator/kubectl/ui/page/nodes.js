// Nodes: what is asked (filters, group, order, search), the totals, the heat map, and the table with the devices of the
// lines in sight. The server filters and counts; a refresh brings a few numbers for each node.

import { address, ask, byId, counted, make, percent } from "./dom.js";
import * as map from "./map.js";
import { Table } from "./table.js";

const STATES = ["free", "taken", "shared", "tainted", "unusable", "drawn"];
const FACETS = ["class", "model", "driver", "rack", "zone", "namespace"];
const MOST_GROUPS = 24; // that are listed
const MOST_KEPT = 2000; // lines whose devices are kept
const PAUSE_MS = 80; // after the last scrolling, before devices are asked for
const question = { group: "", order: "name", state: "", find: "" };
let news = { cells: [], groups: [], tag: "", query: {} };
let kept = new Map(); // group and node -> the answer with its devices
let fresh = new Set(); // lines whose devices are those of `news`
let timer = 0;
let changed = () => {};
let problem = () => {};
const shortName = (id) => id.slice(id.lastIndexOf("/") + 1);
const keyOf = (cell) => `${cell[1] < news.groups.length ? news.groups[cell[1]][0] : ""}\n${cell[0]}`;

/** What the page asks for, without what is empty. */
export const query = () => Object.fromEntries(Object.entries(question).filter(([, value]) => value));

/** `onChange`: another question is to be asked; `onProblem(text)`: an answer did not come. */
export function listen(onChange, onProblem) {
  [changed, problem] = [onChange, onProblem];
}

/** Asks for one value of a facet, as from the details of a class. */
export function choose(facet, value) {
  question[facet] = value;
  changed();
}

const table = new Table(byId("rows"), {
  columns: [
    { title: "Node", class: "name" },
    { title: "In use", class: "number" },
    { title: "Devices", class: "tiles" },
  ],
  name: (index) => `node ${news.cells[index][0]}, ${groupOf(news.cells[index])}${map.sentence(news.cells[index])}`,
  cells(index) {
    const cell = news.cells[index];
    const group = news.groups.length > 1 ? make("span", { class: "quiet" }, ` ${news.groups[cell[1]][0]}`) : "";
    const condition = cell[2] ? make("span", { class: "condition" }, ` ${cell[2]}`) : "";
    const name = make("span", { class: "long", title: cell[0] }, cell[0]);
    return [[name, group, condition], `${map.used(cell)}/${map.all(cell)}`, tilesOf(cell)];
  },
  open: (index) => { location.hash = address("node", news.cells[index][0]); },
  need(from, to) {
    clearTimeout(timer);
    timer = setTimeout(() => load(from, to), PAUSE_MS);
  },
});

byId("rows").addEventListener("active", (event) => map.mark(event.detail));
map.listen((index) => {
  table.activate(index);
  table.open(index);
});

function groupOf(cell) {
  return news.groups.length > 1 ? `${question.group} ${news.groups[cell[1]][0]}, ` : "";
}

function tilesOf(cell) {
  const answer = kept.get(keyOf(cell));
  if (!answer) return [];
  const tiles = answer.tiles.map(([id, state, claims]) => {
    const words = `node ${cell[0]}, device ${shortName(id)}: ${state}${claims ? `, claim ${claims}` : ""}`;
    const isNew = answer.before && answer.before.get(id) !== `${state} ${claims}`;
    return make("button", {
      class: isNew ? "tile changed" : "tile", type: "button", tabindex: "-1", "data-id": id, "data-state": state,
      title: `${id}: ${state}${claims ? `, ${claims}` : ""}`, "aria-label": words,
    });
  });
  delete answer.before;
  return answer.more ? [...tiles, make("span", { class: "quiet" }, ` +${answer.more}`)] : tiles;
}

async function load(from, to) {
  let first = from;
  while (first < to && fresh.has(first)) first += 1;
  if (first === to) return;
  const { tag } = news;
  try {
    const answer = await ask("tiles", { ...news.query, offset: first, limit: to - first });
    if (tag !== news.tag || answer.revision !== news.revision) return; // the next news asks again
    if (kept.size > MOST_KEPT) kept = new Map();
    answer.lines.forEach((line, place) => {
      const key = keyOf(news.cells[first + place]);
      const old = kept.get(key);
      if (old && !fresh.has(first + place)) line.before = new Map(old.tiles.map(([id, state, claims]) => [id, `${state} ${claims}`]));
      kept.set(key, line);
      fresh.add(first + place);
    });
    table.draw(true);
  } catch (error) {
    problem(error.message);
  }
}

byId("rows").addEventListener("click", (event) => {
  const tile = event.target.closest(".tile");
  if (tile) location.hash = address("device", tile.dataset.id);
});

/** Shows a new answer, and to what. */
export function take(answer, asked) {
  news = { ...answer, query: asked };
  fresh = new Set();
  drawStates();
  drawFacets();
  drawGroups();
  const share = (answer.totals.taken ?? 0) + (answer.totals.shared ?? 0);
  const inUse = answer.totals.all ? `, ${percent(share / answer.totals.all)} in use` : "";
  const cut = answer.left_out ? `; ${counted(answer.left_out, "line")} left out, narrow the search` : "";
  const text = `${counted(answer.devices, "device")} on ${counted(answer.nodes, "node")}${inUse}${cut}`;
  if (byId("found").textContent !== text) byId("found").textContent = text;
  byId("clear").hidden = !Object.keys(query()).some((name) => name !== "order" && name !== "group");
  map.show(answer.cells, answer.groups, `Heat map of ${text}. The table below says the same.`);
  table.show(answer.cells.length);
}

/** Draws what was hidden before. */
export const draw = () => table.draw(true);

/** Leads the focus back to the table. */
export const focus = () => byId("rows").focus();

function drawStates() {
  const box = byId("states");
  if (!box.children.length) {
    box.append(...STATES.map((state) => make("button", { class: "state", type: "button", "data-state": state })));
  }
  for (const button of box.children) {
    const { state } = button.dataset;
    const number = news.totals[state] ?? 0;
    button.textContent = `${state} ${number.toLocaleString("en")}`;
    button.setAttribute("aria-pressed", String(question.state === state));
    button.hidden = !number && question.state !== state;
  }
}

function drawFacets() {
  const box = byId("facets");
  if (!box.children.length) {
    for (const facet of FACETS) box.append(make("label", {}, `${facet} `, make("select", { "data-facet": facet })));
  }
  for (const select of box.querySelectorAll("select")) {
    const { facet } = select.dataset;
    const { values, more } = news.facets[facet];
    const chosen = question[facet] ?? "";
    const options = values.map(([value, number]) => [value, `${value} (${number.toLocaleString("en")})`]);
    if (chosen && !values.some(([value]) => value === chosen)) options.push([chosen, chosen]);
    const shape = JSON.stringify(options);
    select.parentElement.hidden = !chosen && values.length < 2;
    if (select.dataset.shape !== shape) { // an open menu is left alone while its values are the same
      select.dataset.shape = shape;
      select.replaceChildren(
        make("option", { value: "" }, "any"),
        ...options.map(([value, text]) => make("option", { value }, text)),
        ...(more ? [make("option", { disabled: "" }, `${counted(more, "other value")}: search for names`)] : []),
      );
    }
    select.value = chosen;
  }
  byId("group").value = question.group;
}

function drawGroups() {
  const box = byId("groups");
  box.hidden = !question.group;
  if (box.hidden) return;
  const most = news.groups.slice(0, MOST_GROUPS);
  const lines = most.map(([name, nodes, devices, inUse]) => {
    const button = make("button", { class: "group", type: "button", "data-name": name, title: "Show only these" }, name);
    const words = ` ${counted(nodes, "node")}, ${percent(inUse / devices)} of ${counted(devices, "device")} in use`;
    return make("li", {}, button, make("span", { class: "quiet" }, words));
  });
  const more = news.groups.length - most.length;
  if (more > 0) lines.push(make("li", { class: "quiet" }, `and ${counted(more, "group")} more`));
  box.replaceChildren(...lines);
}

byId("groups").addEventListener("click", (event) => {
  const name = event.target.closest("button")?.dataset.name;
  if (name !== undefined) choose(question.group, name);
});

byId("states").addEventListener("click", (event) => {
  const state = event.target.closest("button")?.dataset.state;
  if (state) choose("state", question.state === state ? "" : state);
});

byId("facets").addEventListener("change", (event) => choose(event.target.dataset.facet, event.target.value));
byId("group").addEventListener("change", (event) => choose("group", event.target.value));
byId("order").addEventListener("change", (event) => choose("order", event.target.value));
byId("find").addEventListener("input", (event) => choose("find", event.target.value.trim().slice(0, 1000)));
byId("clear").addEventListener("click", () => {
  for (const name of ["state", "find", ...FACETS]) question[name] = "";
  byId("find").value = "";
  byId("find").focus();
  changed();
});
