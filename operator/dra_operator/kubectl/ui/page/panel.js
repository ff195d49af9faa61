// The details beside the views: a device, the tree of a node, a class, or why a pod or claim waits.

import { address, ask, badge, byId, copyButton, counted, make } from "./dom.js";

const KINDS = { node: "Node", numa: "NUMA node", pcie: "PCIe root", counters: "Shared counters", device: "" };
const panel = byId("panel");
const details = byId("details");
let asked = 0; // an answer that arrives after the next question is dropped
let shown = ""; // what is shown, for the news

/** `what` is kind and name, as in the address: device=ID, node=NAME, class=NAME, pod=KEY, claim=KEY. */
export async function show(kind, name, { quietly = false, choose = () => {} } = {}) {
  const mine = ++asked;
  if (!quietly) {
    shown = "";
    panel.hidden = false;
    details.replaceChildren(make("h2", { tabindex: "-1" }, name), make("p", { class: "quiet" }, "looking…"));
    details.firstChild.focus();
  }
  let content;
  let answer = "";
  try {
    [answer, content] = await draw(kind, name, choose);
  } catch (error) {
    content = [make("h2", { tabindex: "-1" }, name), make("p", { class: "problem" }, error.message)];
  }
  if (mine !== asked || (answer && answer === shown)) return; // the same again: the focus and the scroll stay
  shown = answer;
  const hadFocus = details.contains(document.activeElement);
  details.replaceChildren(...content.filter((element) => element !== null && element !== ""));
  if (!quietly || hadFocus) details.querySelector("h2").focus();
}

export function close() {
  asked += 1;
  panel.hidden = true;
  details.replaceChildren();
}

/** The answer as text, and its elements. */
async function draw(kind, name, choose) {
  const [path, query, elements] = {
    device: ["device", { id: name }, drawDevice],
    node: ["topology", { node: name }, drawNode],
    class: ["class", { name }, (answer) => drawClass(answer, choose)],
  }[kind] ?? ["why", { kind, key: name }, drawWhy];
  const answer = await ask(path, query);
  return [JSON.stringify(answer), elements(answer)];
}

function drawDevice(device) {
  const holders = device.holders.map((holder) =>
    make("section", { class: "holder" }, make("h3", {}, "Claim ", link("claim", holder.claim)), list([
      ["Pods", some(holder.pods, holder.more_pods) || "none"],
      ["Owner", holder.owner],
      ["Since", holder.age ? `${holder.age} (${holder.since})` : ""],
      ["Takes", entries(holder.capacity)],
      ["Access", holder.admin ? "admin: it keeps nobody else from the device" : ""],
    ])));
  const capacity = Object.entries(device.capacity).map(([name, left]) => [name, `${left.left} of ${left.total} left`]);
  return [
    make("h2", { tabindex: "-1" }, device.name),
    make("p", {}, badge(device.state), ` ${device.driver}`),
    list([["Pool", device.pool], ["Node", device.node ? link("node", device.node) : "several nodes"]]),
    ...(holders.length ? holders : [make("p", {}, "No claim has it.")]),
    device.more_holders ? make("p", { class: "quiet" }, `and ${counted(device.more_holders, "holder")} more`) : null,
    ...titled("Taints", device.taints.length ? make("ul", {}, ...device.taints.map((taint) => make("li", {}, taint))) : null),
    ...titled("Capacity", capacity.length ? list(capacity) : null),
    ...titled("Attributes", Object.keys(device.attributes).length ? list(Object.entries(device.attributes)) : null),
  ];
}

function drawNode(tree) {
  return [
    make("h2", { tabindex: "-1" }, tree.name),
    make("p", {}, tree.condition ? make("strong", { class: "condition" }, `${tree.condition} `) : "", make("span", { class: "quiet" }, tree.detail)),
    branches(tree.children),
    tree.left_out ? make("p", { class: "quiet" }, `and ${counted(tree.left_out, "entry").replace("entrys", "entries")} more: the command lists them`) : null,
    commandLine(tree.command),
    ...titled("Labels", Object.keys(tree.labels).length ? list(Object.entries(tree.labels)) : null),
  ];
}

function branches(children) {
  return make("ul", { class: "tree" }, ...children.map((child) => {
    const words = child.id ? [badge(child.state), " ", link("device", child.id, child.name)] : [make("strong", {}, `${KINDS[child.kind]} ${child.name}`)];
    const more = [child.claims, child.detail].filter(Boolean).join("; ");
    return make("li", {}, ...words, more ? make("span", { class: "quiet" }, ` ${more}`) : null,
      child.children.length ? branches(child.children) : null);
  }));
}

function drawClass(found, choose) {
  const button = make("button", { type: "button", class: "group" }, "Show its devices");
  button.addEventListener("click", () => choose(found.name));
  return [
    make("h2", { tabindex: "-1" }, found.name),
    make("p", {}, button),
    list([["Resource", found.resource]]),
    ...titled("Selectors", found.selectors.length ? make("div", { class: "lines" }, ...found.selectors.map((text) => indented(text))) : make("p", {}, "none: every device")),
    ...titled("Claims that wait", found.waiting.length ? make("ul", {}, ...found.waiting.map((key) => make("li", {}, link("claim", key)))) : null),
    found.more_waiting ? make("p", { class: "quiet" }, `and ${counted(found.more_waiting, "claim")} more`) : null,
    commandLine(found.command),
  ];
}

function drawWhy(why) {
  const fixes = why.fixes.map((fix) => make("li", {}, fix.text, make("span", { class: "quiet" }, ` (then it fits on ${fix.node})`)));
  return [
    make("h2", { tabindex: "-1" }, why.key),
    ...titled(fixes.length > 1 ? "Any one of these helps" : "This helps", fixes.length ? make("ul", { class: "fixes" }, ...fixes) : null),
    fixes.length ? make("p", { class: "quiet" }, `${counted(fixes.length, "change")}, tried on a copy of the cluster.`) : null,
    ...titled("Why", make("div", { class: "lines" }, ...why.lines.map(indented))),
    why.more_lines ? make("p", { class: "quiet" }, `and ${counted(why.more_lines, "line")} more: the command prints them`) : null,
    ...titled("Devices", why.devices.length ? make("ul", {}, ...why.devices.map((id) => make("li", {}, link("device", id)))) : null),
    commandLine(why.command),
  ];
}

/** The command that says the same in a terminal. */
function commandLine(command) {
  return command ? make("p", { class: "command" }, make("code", {}, command), " ", copyButton(command)) : null;
}

/** A line that stays indented where it is wrapped. */
function indented(line) {
  const text = line.trimStart();
  const element = make("p", {}, text);
  element.style.setProperty("--indent", Math.min(12, line.length - text.length));
  return element;
}

const some = (words, more) => words.join(", ") + (more ? ` and ${more} more` : "");
const entries = (object) => Object.entries(object).map(([name, value]) => `${name} ${value}`).join(", ");
const link = (kind, name, text = name) => make("a", { href: address(kind, name) }, text);
const titled = (title, content) => (content ? [make("h3", {}, title), content] : []);

/** Names with values; empty values are left out. */
function list(pairs) {
  const shownPairs = pairs.filter(([, value]) => value);
  return make("dl", {}, ...shownPairs.flatMap(([name, value]) => [make("dt", {}, ...parts(name)), make("dd", {}, value)]));
}

/** A qualified name, which is best broken after its domain. */
function parts(name) {
  const [head, ...rest] = name.split("/");
  return rest.length ? [`${head}/`, make("wbr"), rest.join("/")] : [head];
}
