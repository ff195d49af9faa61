// The lists of the page: who waits and why, claims, and classes.

import { address, ask, byId, copyButton, make } from "./dom.js";
import { Listing } from "./listing.js";

const JUDGE_MS = 3000; // between two answers about causes, or four times as long as one takes
const number = (value) => value.toLocaleString("en");
const long = (text) => make("span", { class: "long", title: text }, text);

export const waiting = new Listing("waiting", {
  columns: [
    { title: "Pod", sort: "name", class: "name" },
    { title: "Age", sort: "age", class: "number" },
    { title: "What keeps it", sort: "cause", class: "text" },
    { title: "", class: "action" },
  ],
  order: "-age",
  nouns: ["pod or claim waits", "pods and claims wait"],
  kinds: "cause",
  cells: (row) => [
    long(row.kind === "pod" ? row.key : `claim ${row.key}`),
    row.age || "unknown",
    long(row.cause),
    copyButton(row.command, "-1"),
  ],
  words: (row) => `${row.kind} ${row.key}, waits ${row.age || "for an unknown time"}: ${row.cause}`,
  hash: (row) => address(row.kind, row.key),
  command: (row) => row.command,
});

export const claims = new Listing("claims", {
  columns: [
    { title: "Claim", sort: "name", class: "name" },
    { title: "Age", sort: "age", class: "number" },
    { title: "State", sort: "state", class: "state-word" },
    { title: "Devices", sort: "devices", class: "number" },
    { title: "Requests", class: "text" },
    { title: "Pods", class: "text" },
    { title: "Node", sort: "node", class: "text" },
  ],
  order: "name",
  nouns: ["claim", "claims"],
  kinds: "state",
  cells: (row) => [
    long(row.key), row.age || "unknown", row.state, number(row.devices), long(row.requests),
    long(row.pods + (row.more_pods ? ` and ${row.more_pods} more` : "")), long(row.node),
  ],
  words: (row) => `claim ${row.key}, ${row.state}, ${row.devices} devices, asks for ${row.requests}, pods ${row.pods || "none"}`,
  hash: (row) => address("claim", row.key),
  command: () => "",
});

export const classes = new Listing("classes", {
  columns: [
    { title: "Class", sort: "name", class: "name" },
    { title: "Devices", sort: "devices", class: "number" },
    { title: "In use", sort: "used", class: "number" },
    { title: "Free", sort: "free", class: "number" },
    { title: "Trouble", sort: "trouble", class: "number" },
    { title: "Pending claims", sort: "waiting", class: "number" },
    { title: "Selectors", class: "text" },
    { title: "", class: "action" },
  ],
  order: "name",
  nouns: ["class", "classes"],
  cells: (row) => [
    long(row.resource ? `${row.name} (${row.resource})` : row.name),
    ...["devices", "used", "free", "trouble"].map((name) => (row.known ? number(row[name]) : "?")),
    number(row.waiting), long(row.selectors || "every device"), copyButton(row.command, "-1"),
  ],
  words: (row) => (row.known
    ? `class ${row.name}, ${row.used} of ${row.devices} devices in use, ${row.free} free, ${row.waiting} claims wait`
    : `class ${row.name}, devices not counted, ${row.waiting} claims wait`),
  hash: (row) => address("class", row.name),
  command: (row) => row.command,
});

let judged = ""; // the revision whose causes are worked out
let next = 0;

/** Has the causes worked out, if the cluster has changed and the last answer is not too young. */
export async function judge(revision) {
  if (revision === judged || performance.now() < next) return;
  next = Infinity;
  byId("waiting-judged").hidden = false;
  let seconds = 0;
  try {
    const answer = await ask("judge");
    ({ seconds } = answer);
    judged = answer.revision;
    waiting.refresh(answer.revision, true);
  } catch {
    // the condition of each pod is shown instead; the next refresh tries again
  }
  byId("waiting-judged").hidden = true;
  next = performance.now() + Math.max(JUDGE_MS, 4000 * seconds);
}
