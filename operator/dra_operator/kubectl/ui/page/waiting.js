// Who waits, in groups with the same reason; the details say why, and what helps.

import { ask, byId, counted, make } from "./dom.js";

const view = byId("view-waiting");
let shown = null; // the revision of the cluster that is shown

/** Asks again only if the cluster has changed. */
export async function show(revision) {
  if (revision === shown) return;
  if (shown === null) view.replaceChildren(make("p", { class: "quiet" }, "asking all nodes…"));
  try {
    const answer = await ask("waiting");
    shown = answer.revision;
    draw(answer.groups);
  } catch (error) {
    view.replaceChildren(make("p", { class: "problem" }, error.message));
  }
}

function draw(groups) {
  const focused = view.contains(document.activeElement) ? document.activeElement.hash : "";
  if (!groups.length) {
    view.replaceChildren(make("p", {}, "Nobody waits for devices."));
    return;
  }
  view.replaceChildren(...groups.map((group) => {
    const links = group.keys.map((key) =>
      make("li", {}, make("a", { href: `#${group.kind}=${encodeURIComponent(key)}` }, key)));
    return make("section", { class: "group", "data-clear": group.clear },
      make("h2", {}, counted(group.keys.length, group.kind)),
      make("p", {}, group.reason),
      make("ul", { class: "keys" }, ...links));
  }));
  if (focused) [...view.querySelectorAll("a")].find((link) => link.hash === focused)?.focus();
}
