// The heat map: one square for each node, in the order of the table beside it, on one canvas. A square says how much is in
// use; a corner says that something is wrong. The table says the same in words, so the canvas is a picture and no control.

import { byId, counted, percent } from "./dom.js";

const MOST_HEIGHT = 300; // of the picture, if the squares can be made so small
const LARGEST = 56;
const SMALLEST = 4;
const TITLE = 18; // height of the title of a group
const MOST_TITLES = 24; // with more groups their names are only in the tip and the table
export const STEPS = 6; // shades from nothing to all in use

const canvas = byId("map");
const painted = document.createElement("canvas"); // all squares; a key paints only the mark on a copy of it
const tip = byId("tip");
let cells = [];
let groups = [];
let active = -1;
let size = 0;
let places = []; // index -> [x, y]
let titles = []; // [text, y]
let bottom = 0;

/** A cell is [node, group, condition, free, taken, shared, tainted, unusable, drawn]. */
export const all = (cell) => cell[3] + cell[4] + cell[5] + cell[6] + cell[7] + cell[8];
export const used = (cell) => cell[4] + cell[5];
export const isTroubled = (cell) => Boolean(cell[2] || cell[6] || cell[7]);
const shade = (share) => (share === 0 ? 0 : share === 1 ? STEPS - 1 : 1 + Math.min(STEPS - 3, Math.floor(share * (STEPS - 2))));

export function show(newCells, newGroups, text) {
  [cells, groups] = [newCells, newGroups];
  canvas.setAttribute("aria-label", text);
  draw();
}

/** The line of the table that has the focus; -1 for none. */
export function mark(index) {
  active = index;
  copy();
}

/** Gives each cell a place for squares of some size; returns the height of all. */
function arrange(width) {
  const hasTitles = groups.length > 1 && groups.length <= MOST_TITLES;
  const columns = Math.max(1, Math.floor(width / size));
  places = new Array(cells.length);
  titles = [];
  let [x, y, group] = [0, 0, -1];
  cells.forEach((cell, index) => {
    if (cell[1] !== group) {
      if (hasTitles) {
        if (x) y += size;
        if (group >= 0) y += 6;
        titles.push([groups[cell[1]], y]);
        [x, y] = [0, y + TITLE];
      } else if (group >= 0 && x) x += 1; // a gap of one square
      group = cell[1];
    }
    if (x >= columns) [x, y] = [0, y + size];
    places[index] = [x * size, y];
    x += 1;
  });
  return y + (cells.length ? size : 0);
}

function draw() {
  const width = canvas.parentElement.clientWidth;
  if (!width) return;
  for (size = LARGEST; size > SMALLEST; size -= size > 16 ? 4 : 1) {
    if (arrange(width) <= MOST_HEIGHT) break;
  }
  bottom = arrange(width);
  const scale = devicePixelRatio || 1;
  for (const one of [canvas, painted]) {
    one.width = Math.round(width * scale);
    one.height = Math.round(Math.max(1, bottom) * scale);
  }
  canvas.style.setProperty("width", `${width}px`);
  canvas.style.setProperty("height", `${bottom}px`);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const shades = Array.from({ length: STEPS }, (_, step) => colour(`heat-${step}`));
  const [trouble, line, ink] = ["tainted", "line", "ink"].map(colour);
  const pen = painted.getContext("2d");
  pen.scale(scale, scale);
  const side = size - gap();
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.fillStyle = ink;
  for (const [group, y] of titles) pen.fillText(titleOf(group), 0, y + TITLE / 2, width);
  cells.forEach((cell, index) => {
    const [x, y] = places[index];
    const step = shade(used(cell) / all(cell));
    pen.fillStyle = shades[step];
    pen.fillRect(x, y, side, side);
    if (step === 0 && size > 5) {
      pen.strokeStyle = line;
      pen.strokeRect(x + 0.5, y + 0.5, side - 1, side - 1);
    }
    if (isTroubled(cell)) {
      const part = Math.max(3, side * 0.45);
      pen.fillStyle = trouble;
      pen.beginPath();
      pen.moveTo(x, y);
      pen.lineTo(x + part, y);
      pen.lineTo(x, y + part);
      pen.fill();
    }
    if (size >= 40) {
      pen.fillStyle = colour(step > 3 ? "heat-ink-high" : "heat-ink-low");
      pen.textAlign = "center";
      pen.fillText(`${used(cell)}/${all(cell)}`, x + side / 2, y + side / 2, side - 4);
      pen.textAlign = "start";
    }
  });
  copy();
}

const gap = () => (size > 12 ? 2 : size > 5 ? 1 : 0);

/** The squares, with the mark of the line that has the focus. */
function copy() {
  if (!painted.width || !painted.height) return;
  const pen = canvas.getContext("2d");
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(painted, 0, 0);
  if (!places[active]) return;
  const scale = devicePixelRatio || 1;
  pen.scale(scale, scale);
  const style = getComputedStyle(document.documentElement);
  const [x, y] = places[active];
  const side = size - gap();
  pen.strokeStyle = style.getPropertyValue("--accent");
  pen.lineWidth = 3;
  pen.strokeRect(x - 1.5, y - 1.5, side + 3, side + 3);
  pen.strokeStyle = style.getPropertyValue("--ink");
  pen.lineWidth = 1;
  pen.strokeRect(x - 3.5, y - 3.5, side + 7, side + 7);
}

const titleOf = ([name, nodes, devices, inUse]) =>
  `${name}: ${counted(nodes, "node")}, ${percent(inUse / devices)} of ${counted(devices, "device")} in use`;

/** What a line of the table and a square say. */
export function sentence(cell) {
  const words = [`${used(cell)} of ${all(cell)} in use`];
  if (cell[6]) words.push(`${cell[6]} tainted`);
  if (cell[7]) words.push(`${cell[7]} unusable`);
  if (cell[8]) words.push(`${cell[8]} drawn`);
  if (cell[2]) words.push(cell[2]);
  return words.join(", ");
}

function at(event) {
  const box = canvas.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  return places.findIndex((place) => place && x >= place[0] && x < place[0] + size && y >= place[1] && y < place[1] + size);
}

/** `open(index)`: a square was pressed. */
export function listen(open) {
  canvas.addEventListener("click", (event) => {
    const index = at(event);
    if (index >= 0) open(index);
  });
  canvas.addEventListener("pointermove", (event) => {
    const cell = cells[at(event)];
    tip.hidden = !cell;
    if (!cell) return;
    const group = groups.length > 1 ? ` (${groups[cell[1]][0]})` : "";
    tip.textContent = `${cell[0]}${group}: ${sentence(cell)}`;
    tip.style.setProperty("left", `${Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8)}px`);
    tip.style.setProperty("top", `${event.clientY + 16}px`);
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  new ResizeObserver(() => { if (canvas.parentElement.clientWidth !== canvas.clientWidth) draw(); }).observe(canvas.parentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}
