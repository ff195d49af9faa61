// Use since the server started, as a line and in words; the server keeps the points, so that a reload loses none.

import { byId, counted, percent } from "./dom.js";

const [WIDTH, HEIGHT] = [160, 32];

/** A point is [time, devices, in use, waiting, isGap]; nobody looked before a gap, so no line leads to it. */
export function show(points, isLive) {
  byId("usage").hidden = !points.length || !points.at(-1)[1];
  if (byId("usage").hidden) return;
  const times = points.map(([time]) => Date.parse(time));
  const [start, end] = [times[0], times.at(-1)];
  const x = (time) => (end === start ? WIDTH : ((time - start) / (end - start)) * WIDTH);
  const most = Math.max(1, ...points.map((point) => point[3]));
  byId("usage-line").setAttribute("d", path(points, times, x, (point) => point[2] / Math.max(1, point[1])));
  byId("usage-waiting").setAttribute("d", path(points, times, x, (point) => point[3] / most));
  byId("usage-line").closest("svg").toggleAttribute("hidden", !isLive || points.length < 2);
  const shares = points.map((point) => point[2] / Math.max(1, point[1]));
  const waiting = points.map((point) => point[3]);
  const minutes = Math.round((end - start) / 60000);
  const since = minutes ? ` (${percent(Math.min(...shares))} to ${percent(Math.max(...shares))} in ${counted(minutes, "minute")})` : "";
  const span = minutes && Math.min(...waiting) !== Math.max(...waiting) ? ` (${Math.min(...waiting)} to ${Math.max(...waiting)})` : "";
  const text = `${percent(shares.at(-1))} in use${since}, ${waiting.at(-1).toLocaleString("en")} waiting${span}`;
  if (byId("usage-text").textContent !== text) byId("usage-text").textContent = text;
}

function path(points, times, x, share) {
  return points.map((point, place) => {
    const isStart = place === 0 || point[4];
    return `${isStart ? "M" : "L"}${x(times[place]).toFixed(1)},${(HEIGHT - 1 - share(point) * (HEIGHT - 2)).toFixed(1)}`;
  }).join("");
}
