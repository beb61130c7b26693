// Search while typing, among the collection and the pictures that were added. Old answers are dropped.

import { post } from "./api.js";
import { at, debounced, make, newestOnly } from "./dom.js";
import { bestCaption } from "./pictures.js";
import { plural, shortName } from "./text.js";
import { resultImage } from "./thumbs.js";

const DELAY = 180;
const LIMIT = 24;
const FAR = 0.5; // of the best similarity

/** @param {Object} context pictures, uploads, collection (or null), goTo, hear, complain */
export function setUpSearch({ pictures, uploads, collection, goTo, hear, complain }) {
  const newest = newestOnly();
  const form = at("search");
  const query = at("query");
  let asked = null; // what the shown results are for

  const among = () => (collection ? new FormData(form).get("among") : "uploads");

  function offer() {
    const some = pictures.captioned().length > 0;
    form.hidden = !(collection || some);
    at("among").hidden = !(collection && some);
    if (collection && !some) form.elements.among.value = "both";
  }

  /** @param {Object} body what to look for: a query, or a picture (`like`) that was added or is in the collection */
  async function find(body, title) {
    asked = { body, title };
    const { query: words, like: model } = body;
    const where = among();
    const held = where === "collection" ? [] : pictures.searched();
    const involved = [...new Set(model?.file ? [...held, model] : held)];
    const send = (signal) => {
      const request = { limit: LIMIT, among: where, ids: held.map((picture) => picture.id) };
      return model ? post("api/search/picture", { ...request, id: model.id }, signal) : post("api/search", { ...request, query: words }, signal);
    };
    at("found").hidden = false;
    at("found").setAttribute("aria-busy", "true");
    try {
      const answer = await newest((signal) => uploads.asking(involved, () => send(signal)));
      if (answer) show(answer.results, title);
    } catch (error) {
      at("found").removeAttribute("aria-busy");
      complain(error.message, () => find(body, title));
    }
  }

  function show(results, title) {
    at("found").removeAttribute("aria-busy");
    at("found-title").textContent = title;
    const text = results.length ? plural(results.length, "picture") : "Nothing found. Try other words.";
    at("found-count").textContent = text;
    hear(`${title}: ${text}`);
    // The tail of results that are far from the best. Captions count for the order too, so only the tail.
    const best = Math.max(...results.map((result) => result.score));
    const last = results.findLastIndex((result) => result.score >= FAR * best || best <= 0);
    at("results").replaceChildren(...results.map((result, place) => shown(result, place > last)));
  }

  function shown(result, far) {
    const picture = result.where === "upload" ? pictures.byId(result.id) : null;
    const image = resultImage(result, pictures);
    image.alt = "";
    const caption = result.caption || (picture && bestCaption(picture));
    const similarity = result.score.toFixed(3);
    const meaning = `similarity ${similarity} by the retriever${far ? ", less than half of the best: it may not be what you look for" : ""}`;
    return make(
      "li",
      { class: far ? "far" : null },
      make(
        "button",
        { type: "button", title: `${result.name}\n${meaning}`, onclick: () => (picture ? goTo(picture) : like(result)) },
        image,
        make("span", { class: caption ? "what" : "what file" }, caption || result.name),
        make("span", { class: "near" }, make("span", { class: "unseen" }, ", similarity "), similarity),
        picture ? make("span", { class: "tag" }, "yours") : null,
        make("span", { class: "unseen" }, picture ? ", go to this picture" : ", find pictures like this"),
      ),
    );
  }

  function like(model) {
    query.value = "";
    find({ like: model }, `Like ${shortName(model.name)}`);
    at("found-title").focus();
    at("found").scrollIntoView({ block: "start" });
  }

  function close() {
    newest.stop();
    asked = null;
    query.value = "";
    at("found").hidden = true;
    at("results").replaceChildren();
  }

  function typed() {
    const text = query.value.trim();
    if (text) find({ query: text }, `“${shortName(text)}”`);
    else close();
  }

  query.addEventListener("input", debounced(typed, DELAY));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    typed();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
  });
  at("among").addEventListener("change", () => {
    if (asked) find(asked.body, asked.title);
  });
  at("found-close").addEventListener("click", () => {
    close();
    query.focus();
  });
  document.addEventListener("keydown", (event) => {
    const writing = event.target.closest("input:not([type=checkbox], [type=radio]), textarea, select, dialog");
    if (event.key !== "/" || writing || event.ctrlKey || event.metaKey || event.altKey || form.hidden) return;
    event.preventDefault();
    query.focus();
  });
  pictures.addEventListener("list", offer);
  pictures.addEventListener("change", offer);
  offer();
  return { like };
}
