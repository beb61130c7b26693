// Edit a caption and see at once which pictures it fetches and how the rank of its own picture changes.

import { post } from "./api.js";
import { debounced, make, newestOnly } from "./dom.js";
import { bestCaption } from "./pictures.js";
import { changeText } from "./text.js";
import { rankLine, resultImage } from "./thumbs.js";
import { captionWords } from "./words.js";

const DELAY = 250;
const FETCHED = 12;

export function openEditor(picture, { pictures, uploads, view, onClose }) {
  const id = `edit-${picture.key}`;
  const start = bestCaption(picture);
  const newest = newestOnly();
  let before = null; // the rank of the caption as it was
  let last = null; // the newest answer with its caption

  const area = make("textarea", { id, rows: "2", maxlength: "500", "aria-describedby": `${id}-rank`, autocapitalize: "none" });
  area.value = start;
  const rank = make("div", { id: `${id}-rank`, class: "change", role: "status" });
  const words = make("div", { class: "said" });
  const fetched = make("ul", { class: "strip wide", "aria-label": "Pictures this caption fetches, best first" });
  const keep = make("button", { class: "main" }, "Keep this caption");
  const form = make(
    "form",
    { class: "editor", "aria-label": `Edit the caption of ${picture.name}` },
    make("label", { for: id }, "Your caption"),
    area,
    rank,
    words,
    make("h4", {}, "It fetches"),
    fetched,
    make("div", { class: "actions" }, keep, make("button", { type: "button", class: "quiet", onclick: () => close(null) }, "Cancel")),
  );

  function close(kept) {
    newest.stop();
    onClose(kept);
  }

  function show(answer) {
    rank.replaceChildren(rankLine(changeText(before, answer.rank, answer.of, answer.rank_is_exact ?? true), answer.rank === 1));
    words.replaceChildren(captionWords(last, { label: "Your caption", view, grid: picture.grid }));
    fetched.replaceChildren(
      ...answer.results.map((result) => {
        const own = result.where === "upload" && result.id === picture.id;
        return make("li", { class: own ? "own" : null, title: result.name }, resultImage(result, pictures), own ? make("span", { class: "tag" }, "this one") : null);
      }),
    );
  }

  async function look() {
    const caption = area.value.trim();
    keep.disabled = !caption;
    if (!caption) {
      newest.stop();
      rank.replaceChildren(make("p", { class: "soft" }, "Write something."));
      words.replaceChildren();
      fetched.replaceChildren();
      return;
    }
    form.classList.add("asking");
    try {
      const answer = await newest((signal) => {
        const ask = (ids) => post("api/fetches", { caption, id: picture.id, limit: FETCHED, ids }, signal);
        return uploads.asking(pictures.captioned(), ask);
      });
      if (!answer) return;
      last = { caption, words: answer.words, grid: answer.grid, rank: answer.rank_is_exact === false ? null : answer.rank, of: answer.of };
      show(answer);
      if (caption === start) before = answer.rank;
    } catch (error) {
      rank.replaceChildren(make("p", { class: "wrong" }, error.message));
    }
    form.classList.remove("asking");
  }

  area.addEventListener("input", debounced(look, DELAY));
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close(null);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const caption = area.value.trim().replace(/\s+/g, " ");
    if (!caption) return;
    const same = caption === start && !picture.edited;
    close(same ? null : last?.caption === caption ? last : { caption, words: null, rank: null, of: null });
  });
  look();
  return {
    element: form,
    focus() {
      area.focus();
      area.setSelectionRange(area.value.length, area.value.length);
    },
  };
}
