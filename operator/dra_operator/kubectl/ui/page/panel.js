// The details beside the grid: a device, the tree of a node, or why a pod waits.

import { ask, byId, counted, make } from "./dom.js";

const KINDS = { node: "Node", numa: "NUMA node", pcie: "PCIe root", counters: "Shared counters", device: "" };
const panel = byId("panel");
const details = byId("details");
let asked = 0; // an answer that arrives after the next question is dropped

/** `what` is kind and name, as in the address: device=ID, node=NAME, pod=KEY, claim=KEY. */
export async function show(kind, name, { quietly = false } = {}) {
  const mine = ++asked;
  if (!quietly) {
    panel.hidden = false;
    details.replaceChildren(make("h2", { tabindex: "-1" }, name), make("p", { class: "quiet" }, "looking…"));
    details.firstChild.focus();
  }
  let content;
  try {
    content = await draw(kind, name);
  } catch (error) {
    content = [make("h2", { tabindex: "-1" }, name), make("p", { class: "problem" }, error.message)];
  }
  if (mine !== asked) return;
  const hadFocus = details.contains(document.activeElement);
  details.replaceChildren(...content);
  if (!quietly || hadFocus) details.querySelector("h2").focus();
}

export function close() {
  asked += 1;
  panel.hidden = true;
  details.replaceChildren();
}

async function draw(kind, name) {
  if (kind === "device") return drawDevice(await ask("device", { id: name }));
  if (kind === "node") return drawNode(await ask("topology", { node: name }));
  return drawWhy(await ask("why", { kind, key: name }));
}

function drawDevice(device) {
  const head = [
    make("h2", { tabindex: "-1" }, device.name),
    make("p", {}, badge(device.state), ` ${device.driver}`),
    list([["Pool", device.pool], ["Node", device.node ? link("node", device.node) : "several nodes"]]),
  ];
  const holders = device.holders.map((holder) =>
    make("section", { class: "holder" }, make("h3", {}, `Claim ${holder.claim}`), list([
      ["Pods", holder.pods.length ? holder.pods.join(", ") : "none"],
      ["Owner", holder.owner],
      ["Since", holder.age ? `${holder.age} (${holder.since})` : ""],
      ["Takes", entries(holder.capacity)],
      ["Access", holder.admin ? "admin: it keeps nobody else from the device" : ""],
    ])));
  const capacity = Object.entries(device.capacity).map(([name, left]) => [name, `${left.left} of ${left.total} left`]);
  return [
    ...head,
    ...(holders.length ? holders : [make("p", {}, "No claim has it.")]),
    ...titled("Taints", device.taints.length ? make("ul", {}, ...device.taints.map((taint) => make("li", {}, taint))) : null),
    ...titled("Capacity", capacity.length ? list(capacity) : null),
    ...titled("Attributes", Object.keys(device.attributes).length ? list(Object.entries(device.attributes)) : null),
  ];
}

function drawNode(tree) {
  return [make("h2", { tabindex: "-1" }, tree.name), make("p", { class: "quiet" }, tree.detail), branches(tree.children)];
}

function branches(children) {
  return make("ul", { class: "tree" }, ...children.map((child) => {
    const words = child.device
      ? [badge(child.device.state), " ", link("device", deviceId(child.device), child.name)]
      : [make("strong", {}, `${KINDS[child.kind]} ${child.name}`)];
    const claims = child.device ? child.device.holders.map((holder) => holder.claim).join(", ") : "";
    const more = [claims, child.detail].filter(Boolean).join("; ");
    return make("li", {}, ...words, more ? make("span", { class: "quiet" }, ` ${more}`) : null,
      child.children.length ? branches(child.children) : null);
  }));
}

function drawWhy(why) {
  const fixes = why.fixes.map((fix) => make("li", {}, fix.text, make("span", { class: "quiet" }, ` (then it fits on ${fix.node})`)));
  return [
    make("h2", { tabindex: "-1" }, why.key),
    ...titled(fixes.length > 1 ? "Any one of these helps" : "This helps", fixes.length ? make("ul", { class: "fixes" }, ...fixes) : null),
    fixes.length ? make("p", { class: "quiet" }, `${counted(fixes.length, "change")}, tried on a copy of the cluster.`) : "",
    ...titled("Why", make("div", { class: "lines" }, ...why.lines.map(indented))),
  ].filter((element) => element !== "");
}

/** A line that stays indented where it is wrapped. */
function indented(line) {
  const text = line.trimStart();
  const element = make("p", {}, text);
  element.style.setProperty("--indent", line.length - text.length);
  return element;
}

const deviceId = (device) => `${device.driver}/${device.pool}/${device.name}`;
const badge = (state) => make("span", { class: "badge", "data-state": state }, state);
const entries = (object) => Object.entries(object).map(([name, value]) => `${name} ${value}`).join(", ");
const link = (kind, name, text = name) => make("a", { href: `#${kind}=${encodeURIComponent(name)}` }, text);
const titled = (title, content) => (content ? [make("h3", {}, title), content] : []);

/** Names with values; empty values are left out. */
function list(pairs) {
  const shown = pairs.filter(([, value]) => value);
  return make("dl", {}, ...shown.flatMap(([name, value]) => [make("dt", {}, ...parts(name)), make("dd", {}, value)]));
}

/** A qualified name, which is best broken after its domain. */
function parts(name) {
  const [head, ...rest] = name.split("/");
  return rest.length ? [`${head}/`, make("wbr"), rest.join("/")] : [head];
}
