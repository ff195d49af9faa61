// Nodes as cards, devices as tiles. One tile can be reached by Tab, the arrow keys lead to the others.

import { byId, counted, make } from "./dom.js";

const grid = byId("grid");
const tiles = new Map(); // id of a device -> its tile
const cards = new Map(); // name of a node -> its card
let shape = ""; // which nodes and devices there are: only if that changes, the grid is built again
let nodes = [];
let state = null; // only devices in this state are shown

const isUsed = (device) => device[1] === "taken" || device[1] === "shared";
const shortName = (id) => id.slice(id.lastIndexOf("/") + 1);

export function show(newNodes) {
  nodes = newNodes;
  const newShape = JSON.stringify(nodes.map((node) => [node.name, node.devices.map((device) => device[0])]));
  if (newShape === shape) update();
  else build(newShape);
  arrange();
}

export const exists = (id) => tiles.has(id);
export const focus = (id) => tiles.get(id)?.focus();

/** Marks the device whose details are shown; null for none. */
export function mark(id) {
  grid.querySelector("[aria-current]")?.removeAttribute("aria-current");
  tiles.get(id)?.setAttribute("aria-current", "true");
}

export function filter(newState) {
  state = newState;
  arrange();
}

function build(newShape) {
  const focused = document.activeElement?.dataset?.id;
  shape = newShape;
  tiles.clear();
  cards.clear();
  for (const node of nodes) {
    const box = make("div", { class: "tiles" });
    for (const device of node.devices) {
      const tile = make("button", { class: "tile", tabindex: "-1", "data-id": device[0] });
      tiles.set(device[0], tile);
      paint(tile, device);
      box.append(tile);
    }
    const title = make("h2", {}, make("button", { class: "node", tabindex: "-1", "data-node": node.name, title: node.name }, node.name));
    const card = make("section", { class: "card" }, title, make("p", { class: "count" }), box);
    cards.set(node.name, card);
    caption(card, node);
  }
  if (focused) focus(focused);
}

function update() {
  for (const node of nodes) {
    for (const device of node.devices) {
      const tile = tiles.get(device[0]);
      if (tile.dataset.state !== device[1] || tile.dataset.claim !== device[2]) {
        paint(tile, device);
        tile.classList.add("changed");
        tile.addEventListener("animationend", () => tile.classList.remove("changed"), { once: true });
      }
    }
    caption(cards.get(node.name), node);
  }
}

function paint(tile, [id, itsState, claim]) {
  tile.dataset.state = itsState;
  tile.dataset.claim = claim;
  tile.title = `${id}: ${itsState}${claim ? `, ${claim}` : ""}`;
  tile.setAttribute("aria-label", `${shortName(id)}, ${itsState}${claim ? `, claim ${claim}` : ""}`);
}

function caption(card, node) {
  const used = node.devices.filter(isUsed).length;
  const text = `${used} of ${node.devices.length} in use${node.condition ? `, ${node.condition}` : ""}`;
  card.querySelector(".count").textContent = text;
  card.setAttribute("aria-label", `${node.name}, ${text}`);
  card.dataset.condition = node.condition;
}

/** Order and filters: cards are moved and hidden, not built again. */
function arrange() {
  const text = byId("find").value.trim().toLowerCase();
  const share = (node) => node.devices.filter(isUsed).length / node.devices.length;
  const orders = { name: () => 0, free: (one, other) => share(one) - share(other), used: (one, other) => share(other) - share(one) };
  const sorted = [...nodes].sort(orders[byId("order").value]);
  const wanted = ([id, itsState, claim], node) =>
    (state === null || itsState === state) &&
    (!text || [node.name, id, claim].some((word) => word.toLowerCase().includes(text)));
  let shownNodes = 0;
  let shownDevices = 0;
  const shown = [];
  for (const node of sorted) {
    const card = cards.get(node.name);
    const fits = node.devices.filter((device) => wanted(device, node));
    const names = new Set(fits.map((device) => device[0]));
    for (const device of node.devices) tiles.get(device[0]).classList.toggle("dim", !names.has(device[0]));
    if (fits.length) {
      shown.push(card);
      shownNodes += 1;
      shownDevices += fits.length;
    }
  }
  if (shown.length !== grid.children.length || shown.some((card, place) => grid.children[place] !== card)) {
    grid.replaceChildren(...shown);
  }
  grid.classList.toggle("dense", nodes.length > 200);
  byId("found").textContent = `${counted(shownDevices, "device")} on ${counted(shownNodes, "node")}`;
  if (!grid.querySelector('.tile[tabindex="0"]')) grid.querySelector(".tile")?.setAttribute("tabindex", "0");
}

function move(from, key) {
  const every = [...grid.querySelectorAll(".tile:not(.dim)")];
  const place = every.indexOf(from);
  if (key === "ArrowRight") return every[place + 1];
  if (key === "ArrowLeft") return every[place - 1];
  if (key === "Home") return every[0];
  if (key === "End") return every.at(-1);
  const down = key === "ArrowDown";
  const { top, left } = from.getBoundingClientRect();
  const candidates = down ? every.slice(place + 1) : every.slice(0, place).reverse();
  let row = null;
  let best;
  for (const tile of candidates) { // the nearest of the next row
    const box = tile.getBoundingClientRect();
    if (down ? box.top <= top : box.top >= top) continue;
    if (row === null) row = box.top;
    if (box.top !== row) break;
    if (!best || Math.abs(box.left - left) < Math.abs(best.getBoundingClientRect().left - left)) best = tile;
  }
  return best;
}

grid.addEventListener("keydown", (event) => {
  const tile = event.target.closest(".tile");
  if (!tile || !["ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) return;
  event.preventDefault();
  move(tile, event.key)?.focus();
});

grid.addEventListener("focusin", (event) => {
  const tile = event.target.closest(".tile");
  if (!tile) return;
  grid.querySelectorAll('.tile[tabindex="0"]').forEach((other) => other.setAttribute("tabindex", "-1"));
  tile.setAttribute("tabindex", "0");
});

byId("find").addEventListener("input", arrange);
byId("order").addEventListener("change", arrange);
