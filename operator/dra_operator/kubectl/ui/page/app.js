// Asks for news, and leads from the address to what is shown: #device=ID, #node=NAME, #pod=KEY, #claim=KEY, #waiting.

import { ask, byId, counted, make } from "./dom.js";
import * as grid from "./grid.js";
import * as panel from "./panel.js";
import * as usage from "./usage.js";
import * as waiting from "./waiting.js";

const PAUSE_MS = 3000;
const STATES = ["free", "taken", "shared", "tainted", "unusable"];
const TABS = ["nodes", "waiting"];
const known = { revision: "", totals: {} };
let tab = "nodes";
let last = null; // the device that was shown last, for the focus

async function refresh() {
  if (!document.hidden) {
    try {
      const news = await ask("overview", { known: known.revision });
      if (news.nodes) take(news);
      usage.add(known.totals, news.taken, news.live);
      tell(news);
    } catch (error) {
      complain(`No answer from kubectl dra ui (${error.message}). Is it still running?`);
    }
  }
  setTimeout(refresh, PAUSE_MS);
}

function take(news) {
  const isFirst = !known.revision;
  Object.assign(known, { revision: news.revision, totals: news.totals });
  grid.show(news.nodes);
  drawStates(news.totals);
  byId("tab-waiting").textContent = `Waiting (${news.waiting})`;
  const notes = news.empty ? [`${counted(news.empty, "node")} without devices`, ...news.notes] : news.notes;
  byId("notes").replaceChildren(...notes.map((note) => make("li", {}, note)));
  if (tab === "waiting") waiting.show(known.revision);
  follow({ quietly: !isFirst });
}

function tell(news) {
  const time = new Date(news.taken).toLocaleTimeString();
  byId("status").textContent = news.live ? `live, as of ${time}` : `snapshot of ${news.taken.replace("T", " ").replace("Z", " UTC")}`;
  byId("status").dataset.live = news.live && !news.error;
  if (news.error) complain(`The cluster cannot be read: ${news.error}. Shown is what there was at ${time}.`);
  else byId("error").hidden = true;
}

function complain(text) {
  byId("error").hidden = false;
  if (byId("error").textContent !== text) byId("error").textContent = text;
}

function drawStates(totals) {
  const box = byId("states");
  if (!box.children.length) {
    box.append(...STATES.map((state) => make("button", { class: "state", "data-state": state, "aria-pressed": "false" })));
  }
  for (const button of box.children) {
    const number = totals[button.dataset.state] ?? 0;
    button.textContent = `${button.dataset.state} ${number}`;
    button.hidden = !number && button.getAttribute("aria-pressed") === "false";
  }
}

byId("states").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const isOn = button.getAttribute("aria-pressed") === "true";
  for (const other of byId("states").children) other.setAttribute("aria-pressed", String(other === button && !isOn));
  grid.filter(isOn ? null : button.dataset.state);
});

/** What the address says. `quietly`: the same again, with news. */
function follow({ quietly = false } = {}) {
  const [kind, ...rest] = location.hash.slice(1).split("=");
  const name = decodeURIComponent(rest.join("="));
  grid.mark(kind === "device" ? name : null);
  if (["device", "node", "pod", "claim"].includes(kind) && name) {
    if (kind === "device") last = name;
    if (kind === "pod" || kind === "claim") choose("waiting");
    panel.show(kind, name, { quietly });
  } else {
    if (TABS.includes(kind)) choose(kind);
    panel.close();
  }
}

function choose(name) {
  tab = name;
  for (const each of TABS) {
    byId(`tab-${each}`).setAttribute("aria-selected", String(each === name));
    byId(`tab-${each}`).tabIndex = each === name ? 0 : -1;
    byId(`view-${each}`).hidden = each !== name;
  }
  if (name === "waiting") waiting.show(known.revision);
}

for (const name of TABS) {
  byId(`tab-${name}`).addEventListener("click", () => { location.hash = name; });
  byId(`tab-${name}`).addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const other = TABS[(TABS.indexOf(name) + 1) % TABS.length];
    location.hash = other;
    byId(`tab-${other}`).focus();
  });
}

byId("grid").addEventListener("click", (event) => {
  const tile = event.target.closest(".tile");
  const node = event.target.closest(".node");
  if (tile) location.hash = `device=${encodeURIComponent(tile.dataset.id)}`;
  else if (node) location.hash = `node=${encodeURIComponent(node.dataset.node)}`;
});

function closeDetails() {
  const hash = location.hash;
  location.hash = tab;
  if (tab === "waiting") byId("view-waiting").querySelector(`a[href="${CSS.escape(hash)}"]`)?.focus();
  else if (last && grid.exists(last)) grid.focus(last);
  else byId("main").focus();
}

byId("close").addEventListener("click", closeDetails);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !byId("panel").hidden) closeDetails();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) byId("status").textContent = "reading…"; });
addEventListener("hashchange", () => follow());
refresh();
