// Elements from texts, questions to the server, and the clipboard. Names and messages come from users and drivers: they
// become text, never markup.

export const byId = (id) => document.getElementById(id);

/** `make("p", {class: "quiet"}, "text", element)`; a value of null leaves the attribute out. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** The answer to a question; an Error with the server's words otherwise. */
export async function ask(path, query = {}, signal = undefined) {
  const answer = await fetch(`api/${path}?${new URLSearchParams(query)}`, { cache: "no-store", signal });
  if (!answer.ok) throw new Error(answer.status === 404 ? "It does not exist any more." : await answer.text());
  return answer.json();
}

export const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
export const percent = (share) => `${Math.round(share * 100)} %`;
export const address = (kind, name) => `#${kind}=${encodeURIComponent(name)}`;
export const badge = (state) => make("span", { class: "badge", "data-state": state }, state);

/** A button that copies a command; nothing for a name that no command can have. */
export function copyButton(command, tabindex = null) {
  if (!command) return null;
  const button = make("button", { class: "copy", type: "button", title: command, tabindex }, "Copy command");
  button.addEventListener("click", (event) => {
    event.stopPropagation();
    copy(command);
  });
  return button;
}

/** Copies a command, and says so where screen readers hear it; where the browser does not allow it, shows it. */
export async function copy(command) {
  try {
    await navigator.clipboard.writeText(command);
    say(`Copied: ${command}`);
  } catch {
    say(`This browser does not let the page copy. The command is: ${command}`);
  }
}

let silence = 0;

function say(text) {
  const said = byId("said");
  said.textContent = text;
  said.hidden = false;
  clearTimeout(silence);
  silence = setTimeout(() => { said.hidden = true; }, 8000);
}
