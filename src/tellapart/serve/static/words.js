// A caption whose words show where the captioner looks. One tab stop; the arrow keys move between words.

import { about, hasMap } from "./attention.js";
import { make } from "./dom.js";

const GRID = [7, 7];

/**
 * @param {{caption: string, words?: Object[], grid?: [number, number]}} said
 * @param {{label: string, view: Object, grid?: [number, number]}} options `view` is of `pictureView`
 */
export function captionWords(said, { label, view, grid = null }) {
  const cells = said.grid ?? grid ?? GRID;
  const words = said.words?.length ? said.words : said.caption.split(/\s+/).map((word) => ({ word }));
  if (!said.caption) return make("p", { class: "caption soft" }, "(no words)");
  if (!words.some((word) => hasMap(word, cells))) {
    return make("p", { class: "caption" }, ...spaced(words.map((word) => (word.distinguishing ? make("mark", {}, ...marked(word)) : word.word))));
  }
  let pinned = null;
  const buttons = words.map((word, place) => {
    const shows = hasMap(word, cells);
    const button = make(
      "button",
      {
        type: "button",
        class: word.distinguishing ? "word mark" : "word",
        tabindex: place ? "-1" : "0",
        "data-act": `${label} ${place}`,
        "aria-description": about(word, cells) || null,
        "aria-pressed": "false",
      },
      ...(word.distinguishing ? marked(word) : [word.word]),
    );
    const show = () => {
      if (shows) view.show(word, cells);
      else view.hide();
    };
    const leave = () => {
      if (pinned && pinned !== button) pinned.showWord();
      else if (pinned !== button) view.hide();
    };
    button.showWord = show;
    button.addEventListener("pointerenter", show);
    button.addEventListener("pointerleave", leave);
    button.addEventListener("focus", () => {
      buttons.forEach((one) => one.setAttribute("tabindex", one === button ? "0" : "-1"));
      if (button.matches(":focus-visible")) show();
    });
    button.addEventListener("blur", leave);
    button.addEventListener("click", () => {
      const held = pinned !== button;
      pinned?.setAttribute("aria-pressed", "false");
      pinned = held ? button : null;
      button.setAttribute("aria-pressed", String(held));
      if (held) show();
      else view.hide();
    });
    return button;
  });
  const keys = (event) => {
    const here = buttons.indexOf(document.activeElement);
    const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (event.key === "Escape" && pinned) {
      event.stopPropagation(); // an editor around it stays open
      pinned.click();
    }
    if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    buttons[Math.min(buttons.length - 1, Math.max(0, to))].focus();
  };
  return make(
    "div",
    { class: "caption", role: "toolbar", "aria-label": `${label}: ${said.caption}`, onkeydown: keys },
    ...spaced(buttons),
  );
}

const marked = (word) => [word.word, make("span", { class: "unseen" }, ", distinguishing")];

const spaced = (parts) => parts.flatMap((part, place) => (place ? [" ", part] : [part]));
