// One picture that was added: its captions side by side, what it is told from, and what can be done with it.

import { pictureView } from "./attention.js";
import { make } from "./dom.js";
import { openEditor } from "./editor.js";
import { bestCaption } from "./pictures.js";
import { rankText } from "./text.js";
import { against, rankLine } from "./thumbs.js";
import { captionWords } from "./words.js";

/**
 * @param {Object} picture
 * @param {Object} context pictures, uploads, onSimilar, onRemove, onTell, onSelect, say
 */
export function makeCard(picture, context) {
  const title = `name-${picture.key}`;
  const view = pictureView(picture.url, picture.name);
  const says = make("div", { class: "says" });
  const box = make("input", {
    type: "checkbox",
    "aria-label": `Select ${picture.name}`,
    onchange: () => context.onSelect(picture, box.checked),
  });
  const article = make(
    "article",
    { "aria-labelledby": title, tabindex: "-1" },
    make("div", { class: "picture" }, view.element),
    make(
      "div",
      { class: "side" },
      make("header", {}, make("h3", { id: title, title: picture.name }, picture.name), make("label", { class: "select" }, box, make("span", { "aria-hidden": "true" }, "Select"))),
      says,
    ),
  );
  const element = make("li", { class: "card" }, article);
  let editor = null;

  function block(kind, heading, said, rank, note = null) {
    const parts = [make("h4", {}, heading)];
    if (said) parts.push(captionWords(said, { label: `${heading} caption`, view, grid: picture.grid }));
    if (note) parts.push(note);
    if (rank) parts.push(rankLine(rankText(rank.rank, rank.of), rank.rank === 1 && rank.of > 1));
    return make("section", { class: kind }, ...parts);
  }

  function distinctive() {
    const { told, queued, telling, tellError, edited } = picture;
    if (edited) {
      const undo = make("button", { type: "button", class: "link", onclick: () => context.pictures.set(picture, { edited: null }) }, "Go back to the distinctive one");
      const ranked = typeof edited.rank === "number" ? edited : null;
      return block("distinctive", "Yours", edited, ranked, told ? undo : null);
    }
    if (telling) return block("distinctive", "Distinctive", null, null, make("p", { class: "working" }, "Looking for what sets it apart…"));
    if (queued && !told) return block("distinctive", "Distinctive", null, null, make("p", { class: "working" }, "Waiting…"));
    if (tellError) {
      const again = make("button", { type: "button", class: "link", onclick: () => context.onTell(picture) }, "Try again");
      return block("distinctive", "Distinctive", null, null, make("p", { class: "wrong" }, `${tellError} `, again));
    }
    if (told) {
      const copy = told.same && make("p", { class: "soft" }, `The same picture as ${told.same.name}.`);
      return block("distinctive", "Distinctive", told.distinctive, told.distinctive, copy);
    }
    return block("distinctive", "Distinctive", null, null, make("p", { class: "soft" }, "Add a similar picture to tell it apart from."));
  }

  const action = (text, run, extra = {}) => make("button", { type: "button", class: "quiet", onclick: run, ...extra }, text);
  const named = (text) => ({ "aria-label": `${text} ${picture.name}` });

  function edit() {
    if (editor) return;
    editor = openEditor(picture, {
      ...context,
      view,
      onClose: (kept) => {
        editor.element.remove();
        editor = null;
        if (kept) context.pictures.set(picture, { edited: kept });
        says.querySelector(".edit")?.focus();
      },
    });
    says.after(editor.element);
    editor.focus();
  }

  async function copy() {
    try {
      await navigator.clipboard.writeText(bestCaption(picture));
      context.say("Caption copied.");
    } catch {
      context.say("The browser did not allow copying. Select the words instead.");
    }
  }

  function update() {
    const held = says.contains(document.activeElement) ? document.activeElement.dataset.act : null;
    const { state, plain, told } = picture;
    view.hide();
    element.classList.toggle("failed", state === "failed");
    element.classList.toggle("chosen", picture.selected);
    article.setAttribute("aria-busy", String(state === "waiting" || picture.telling));
    box.checked = picture.selected;
    box.disabled = !plain;
    view.image.alt = bestCaption(picture) || picture.name;
    if (state === "waiting") {
      says.replaceChildren(make("p", { class: "working" }, "Writing a caption…"));
      return;
    }
    if (state === "failed") {
      const again = "status" in picture.error; // the request failed, not the file
      says.replaceChildren(
        make("p", { class: "wrong" }, picture.error.message),
        make("div", { class: "actions" }, again ? action("Try again", () => context.uploads.again(picture)) : null, action("Remove", () => context.onRemove(picture), named("Remove"))),
      );
      return;
    }
    says.replaceChildren(
      make("div", { class: "captions" }, block("plain", "Plain", plain, told?.plain), distinctive()),
      ...[told && against("Told from", told.others, told.distractors)].filter(Boolean),
      make(
        "div",
        { class: "actions" },
        action("Edit", edit, { class: "quiet edit", "data-act": "edit", ...named("Edit the caption of") }),
        action("Find similar", () => context.onSimilar(picture), { "data-act": "similar", ...named("Find pictures similar to") }),
        action("Copy", copy, { "data-act": "copy", ...named("Copy the caption of") }),
        action("Remove", () => context.onRemove(picture), { "data-act": "remove", ...named("Remove") }),
      ),
    );
    // An answer that comes while a button has the focus must not take it away.
    if (held) says.querySelector(`[data-act="${held}"]`)?.focus();
  }

  update();
  return { element, article, update };
}
