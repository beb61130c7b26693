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
  let last = null; // the newest answer

  const area = make("textarea", { id, rows: "2", maxlength: "500", "aria-describedby": `${id}-rank`, autocapitalize: "none" });
  area.value = start;
  const rank = make("div", { id: `${id}-rank`, class: "change", role: "status" });
  const words = make("div", { class: "said" });
  const unknown = make("p", { class: "soft unknown" });
  const fetched = make("ul", { class: "strip wide", "aria-label": "Pictures this caption fetches, best first" });
  const keep = make("button", { class: "main" }, "Keep this caption");
  const form = make(
    "form",
    { class: "editor", "aria-label": `Edit the caption of ${picture.name}` },
    make("label", { for: id }, "Your caption"),
    area,
    rank,
    words,
    unknown,
    make("h4", {}, "It fetches"),
    fetched,
    make("div", { class: "actions" }, keep, make("button", { type: "button", class: "quiet", onclick: () => close(null) }, "Cancel")),
  );

  const written = () => area.value.trim().replace(/\s+/g, " ");

  function close(kept) {
    newest.stop();
    onClose(kept);
  }

  const ask = (caption, signal) => {
    const body = { caption, limit: FETCHED };
    return uploads.asking(pictures.searched(picture), (ids) => post("api/fetches", { ...body, id: picture.id, ids }, signal));
  };

  function showRank({ caption, rank: now, of, rank_is_exact: exact }) {
    rank.replaceChildren(rankLine(changeText(caption === start ? null : before, now, of, exact), now === 1));
  }

  function show(answer) {
    showRank(answer);
    words.replaceChildren(captionWords(answer, { label: "Your caption", view, grid: picture.grid }));
    const strange = answer.words.filter((word) => word.known === false).map((word) => word.word);
    unknown.textContent = strange.length ? `Not known to the captioner: ${strange.join(", ")}` : "";
    fetched.replaceChildren(
      ...answer.results.map((result) => {
        const own = result.where === "upload" && result.id === picture.id;
        return make("li", { class: own ? "own" : null, title: result.name }, resultImage(result, pictures), own ? make("span", { class: "tag" }, "this one") : null);
      }),
    );
  }

  async function look() {
    const caption = written();
    if (!form.isConnected) return;
    keep.disabled = !caption;
    if (!caption) {
      newest.stop();
      rank.replaceChildren(make("p", { class: "soft" }, "Write something."));
      words.replaceChildren();
      unknown.textContent = "";
      fetched.replaceChildren();
      return;
    }
    form.classList.add("asking");
    try {
      const answer = await newest((signal) => ask(caption, signal));
      if (!answer) return;
      show((last = { caption, ...answer }));
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
    const caption = written();
    if (!caption) return;
    const same = caption === start && !picture.edited;
    const { words: known = null, rank: place = null, of = null, rank_is_exact: exact = true } = last?.caption === caption ? last : {};
    close(same ? null : { caption, words: known, rank: exact ? place : null, of });
  });
  // What the caption fetches as it is; typing does not stop this question, since ranks are compared with its answer.
  async function compare() {
    try {
      const answer = await ask(start);
      before = answer.rank;
      if (last) showRank(last);
      else if (written() === start) show((last = { caption: start, ...answer }));
    } catch (error) {
      if (!last) rank.replaceChildren(make("p", { class: "wrong" }, error.message));
    }
  }
  if (start) compare();
  return {
    element: form,
    focus() {
      area.focus();
      area.setSelectionRange(area.value.length, area.value.length);
    },
  };
}
