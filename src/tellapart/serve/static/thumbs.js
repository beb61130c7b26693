// Small pictures: results of a search, and what a picture is told from.

import { showThumbnail } from "./api.js";
import { make } from "./dom.js";
import { bestCaption } from "./pictures.js";

/** The image of a picture that was added. */
export const uploadImage = (picture) =>
  make("img", { src: picture.url, alt: bestCaption(picture) || picture.name, loading: "lazy", decoding: "async" });

/** The image of a picture of the collection. */
export function collectionImage(entry) {
  const image = make("img", { alt: entry.caption || entry.name, decoding: "async" });
  showThumbnail(image, entry.thumbnail ?? `/api/collection/${encodeURIComponent(entry.id)}/thumbnail`);
  return image;
}

/** The image of a search result; `pictures` has those that were added. */
export function resultImage(result, pictures) {
  const picture = result.where === "upload" ? pictures.byId(result.id) : null;
  return picture ? uploadImage(picture) : collectionImage(result);
}

/** A row of the pictures that a picture is told from; null if there is none. */
export function against(title, others, distractors) {
  if (!others.length && !distractors.length) return null;
  const item = (image, name) => make("li", { title: name }, image);
  return make(
    "div",
    { class: "against" },
    make("h4", {}, title),
    make(
      "ul",
      { class: "strip" },
      ...others.map((picture) => item(uploadImage(picture), picture.name)),
      ...distractors.map((entry) => item(collectionImage(entry), entry.name)),
    ),
  );
}

/** Whether a caption finds its picture: a sign and words, not only a colour. */
export function rankLine(text, first) {
  return make("p", { class: first ? "rank first" : "rank" }, make("span", { "aria-hidden": "true" }, first ? "✓" : "○"), ` ${text}`);
}
