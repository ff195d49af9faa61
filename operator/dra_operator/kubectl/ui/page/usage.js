// Utilisation since the page was opened, as a line and in words.

import { byId } from "./dom.js";

const MOST = 500; // points that are kept; then every second one goes
const points = []; // time in ms, share from 0 to 1

export function add(totals, taken, isLive) {
  if (!totals.all) return;
  const share = ((totals.taken ?? 0) + (totals.shared ?? 0)) / totals.all;
  const now = Date.parse(taken);
  if (points.length && points.at(-1)[0] === now) return;
  points.push([now, share]);
  if (points.length > MOST) points.splice(0, points.length, ...points.filter((_, place) => place % 2 === 0));
  draw();
  byId("usage-line").closest("svg").toggleAttribute("hidden", !isLive);
}

function draw() {
  const [start, end] = [points[0][0], points.at(-1)[0]];
  const x = (time) => (end === start ? 160 : ((time - start) / (end - start)) * 160);
  const line = points.length === 1 ? [[start, points[0][1]], ...points] : points;
  const places = line.map(([time, share], place) => `${(points.length === 1 && !place ? 0 : x(time)).toFixed(1)},${(31 - share * 30).toFixed(1)}`);
  byId("usage-line").setAttribute("points", places.join(" "));
  const shares = points.map(([, share]) => share);
  const percent = (share) => `${Math.round(share * 100)} %`;
  const minutes = Math.round((end - start) / 60000);
  const since = minutes ? `, ${percent(Math.min(...shares))} to ${percent(Math.max(...shares))} in ${minutes} min` : "";
  byId("usage-text").textContent = `${percent(shares.at(-1))} in use${since}`;
  byId("usage").hidden = false;
}
