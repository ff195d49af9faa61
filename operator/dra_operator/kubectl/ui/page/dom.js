// Elements from texts. Names and messages come from users and drivers: they become text, never markup.

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
export async function ask(path, query = {}) {
  const answer = await fetch(`api/${path}?${new URLSearchParams(query)}`, { cache: "no-store" });
  if (!answer.ok) throw new Error(answer.status === 404 ? "It does not exist any more." : await answer.text());
  return answer.json();
}

export const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
