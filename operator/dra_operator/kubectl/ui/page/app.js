// Asks for news, and leads from the address to what is shown: #device=ID, #node=NAME, #class=NAME, #pod=KEY, #claim=KEY,
// or the name of a view.

import { ask, byId } from "./dom.js";
import * as lists from "./lists.js";
import * as nodes from "./nodes.js";
import * as panel from "./panel.js";
import * as usage from "./usage.js";

const PAUSE_MS = 3000;
const TYPING_MS = 150; // after the last letter of a search
const TABS = ["nodes", "waiting", "claims", "classes"];
const VIEW_OF = { node: "nodes", device: "nodes", pod: "waiting", claim: "claims", class: "classes" };
const known = { tag: "", revision: "" };
let tab = "nodes";
let timer = 0;
let asking = null; // ends the question that is under way

async function refresh() {
  clearTimeout(timer);
  asking?.abort();
  const mine = asking = new AbortController();
  if (!document.hidden || !known.tag) {
    try {
      const asked = nodes.query();
      const news = await ask("overview", { ...asked, known: known.tag }, mine.signal);
      if (news.cells) take(news, asked);
      usage.show(news.history, news.live);
      tell(news);
    } catch (error) {
      if (error.name === "AbortError") return; // another question is under way
      complain(`No answer from kubectl dra ui (${error.message}). Is it still running?`);
    }
  }
  timer = setTimeout(refresh, PAUSE_MS);
}

function take(news, asked) {
  const isFirst = !known.tag;
  const isNew = news.revision !== known.revision;
  Object.assign(known, { tag: news.tag, revision: news.revision });
  nodes.take(news, asked);
  byId("tab-waiting").textContent = `Waiting (${news.waiting.toLocaleString("en")})`;
  byId("empty").hidden = !news.empty;
  byId("empty").textContent = `${news.empty.toLocaleString("en")} nodes have no devices.`;
  byId("notes").replaceChildren(...news.notes.map((note) => Object.assign(document.createElement("li"), { textContent: note })));
  if (isNew) showList();
  if (isFirst || isNew) follow({ quietly: !isFirst });
  // The second frame begins once the first one is painted; the bench and the tests wait for this mark.
  if (isFirst) requestAnimationFrame(() => requestAnimationFrame(() => performance.mark("first picture")));
}

function showList() {
  if (!known.revision) return; // the first news show it
  if (tab === "nodes") nodes.draw();
  else lists[tab].refresh(known.revision);
  if (tab === "waiting") lists.judge(known.revision);
}

function tell(news) {
  const time = new Date(news.taken).toLocaleTimeString();
  byId("status").textContent = news.live ? `live, as of ${time}` : `snapshot of ${news.taken.replace("T", " ").replace("Z", " UTC")}`;
  byId("status").dataset.live = news.live && !news.error;
  if (news.error) complain(`The cluster cannot be read: ${news.error}. Shown is what there was at ${time}.`);
  else byId("error").hidden = true;
  if (tab === "waiting") lists.judge(known.revision);
}

function complain(text) {
  byId("error").hidden = false;
  if (byId("error").textContent !== text) byId("error").textContent = text;
}

/** What the address says. `quietly`: the same again, with news. */
function follow({ quietly = false } = {}) {
  const [kind, ...rest] = location.hash.slice(1).split("=");
  let name = "";
  try {
    name = decodeURIComponent(rest.join("="));
  } catch {
    // an address that no link of the page has
  }
  if (kind in VIEW_OF && name) {
    if (!quietly && byId("panel").hidden && !["node", "device"].includes(kind) && tab === "nodes") choose(VIEW_OF[kind]);
    panel.show(kind, name, { quietly, choose: (value) => { nodes.choose("class", value); location.hash = "nodes"; } });
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
  showList();
}

for (const name of TABS) {
  byId(`tab-${name}`).addEventListener("click", () => { location.hash = name; });
  byId(`tab-${name}`).addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const other = TABS[(TABS.indexOf(name) + step + TABS.length) % TABS.length];
    location.hash = other;
    byId(`tab-${other}`).focus();
  });
}

const focusTable = () => (tab === "nodes" ? nodes : lists[tab]).focus();

function closeDetails() {
  location.hash = tab;
  focusTable();
}

byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  focusTable();
});

let typing = 0;
nodes.listen(() => {
  clearTimeout(typing);
  typing = setTimeout(refresh, TYPING_MS);
}, complain);
byId("close").addEventListener("click", closeDetails);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !byId("panel").hidden) closeDetails();
  const isTyping = event.target.closest("input, select, textarea");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    byId(tab === "nodes" ? "find" : `${tab}-find`).focus();
  }
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
addEventListener("hashchange", () => follow());
refresh();
