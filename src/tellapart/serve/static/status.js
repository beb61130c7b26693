// What the page says: short news in a quiet line, errors until they are closed. Screen readers hear both.

import { at, make } from "./dom.js";

const SHOWN = 6000;
let timer = 0;

/** News for screen readers only, of what others see. */
export const hear = (text) => put(at("heard"), text);

/** News. It goes away by itself. */
export function say(text) {
  clearTimeout(timer);
  put(at("status"), text);
  timer = setTimeout(() => (at("status").textContent = ""), SHOWN);
}

function put(line, text) {
  // The same words again would not be heard.
  line.textContent = line.textContent === text ? `${text}\u00a0` : text;
}

/** An error, with what can be done about it. */
export function complain(message, again = null) {
  const alerts = at("alerts");
  for (const other of alerts.children) if (other.dataset.message === message) other.remove();
  const box = make("div", { class: "alert", "data-message": message }, make("p", {}, message));
  if (again) {
    box.append(make("button", { type: "button", onclick: () => (box.remove(), again()) }, "Try again"));
  }
  box.append(make("button", { type: "button", class: "quiet", onclick: () => box.remove() }, "Close"));
  alerts.append(box);
}
