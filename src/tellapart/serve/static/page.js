// The page: connects what a person does with the parts that do it.

import * as api from "./api.js";
import { makeCard } from "./card.js";
import { at } from "./dom.js";
import { setUpExport } from "./exporting.js";
import { Pictures } from "./pictures.js";
import { setUpSearch } from "./search.js";
import { complain, hear, say } from "./status.js";
import { Telling } from "./telling.js";
import { count, plural, shortName } from "./text.js";
import { showTold } from "./told.js";
import { Uploads } from "./uploads.js";

const LIMITS = { max_upload_bytes: 20e6, max_pictures: 20, max_told: 20 };

api.takeToken();
api.events.addEventListener("busy", ({ detail }) => say(`The server is busy. Trying again in ${plural(Math.max(1, Math.ceil(detail)), "second")}.`));
api.events.addEventListener("token", () => {
  if (!at("token").open) at("token").showModal();
});
at("token").addEventListener("close", () => {
  const text = at("token-text").value.trim();
  if (!text) return;
  at("token-text").value = "";
  api.setToken(text);
  start();
});

let started = false;

async function start() {
  try {
    const about = await api.get("api/about");
    if (!started) run(about);
    started = true;
  } catch (error) {
    if (error.status !== 401) complain(error.message, start);
  }
}

function describe({ version, captioner, retriever, collection }) {
  at("collection").textContent = collection ? `${plural(collection.pictures, "picture")} in ${collection.name}` : "";
  const named = (model, kind) => (model.shipped ? `the shipped ${kind}` : model.name);
  const models = [captioner && `captions by ${named(captioner, "captioner")}`, retriever && `search by ${named(retriever, "retriever")}`];
  at("about").textContent = [`tellapart ${version}`, ...models].filter(Boolean).join(" · ");
}

function run(about) {
  describe(about);
  const limits = { ...LIMITS, ...about.limits };
  const pictures = new Pictures();
  const cards = new Map();
  const collection = about.collection?.pictures ? about.collection : null;

  const uploads = new Uploads({
    pictures,
    limits,
    onBatch(done, batch) {
      telling.add(done);
      const failed = batch.filter((picture) => picture.state === "failed").length;
      const parts = [done.length && `${plural(done.length, "picture")} captioned`, failed && `${plural(failed, "picture")} could not be read`];
      const left = uploads.left ? `, ${count(uploads.left)} to go` : "";
      if (parts.some(Boolean)) say(`${parts.filter(Boolean).join(", ")}${left}.`);
    },
    onError: (error) => complain(error.message),
    onTwice: (picture) => say(`${shortName(picture.name)} is already here.`),
  });
  const telling = new Telling({ pictures, uploads, collection: collection !== null, most: limits.max_told });
  const openExport = setUpExport({ say });

  function goTo(picture) {
    const { element, article } = cards.get(picture);
    element.scrollIntoView({ block: "center" });
    article.focus({ preventScroll: true });
  }

  const search = setUpSearch({ pictures, uploads, collection, goTo, hear, complain });

  function remove(gone) {
    const place = pictures.list.indexOf(gone[0]);
    for (const picture of gone) pictures.remove(picture);
    say(`${plural(gone.length, "picture")} removed.`);
    const next = pictures.list[Math.min(place, pictures.list.length - 1)];
    if (next) cards.get(next).article.focus();
    else at("choose").focus();
  }

  const context = {
    pictures,
    uploads,
    say,
    onSimilar: search.like,
    onRemove: (picture) => remove([picture]),
    onTell: (picture) => telling.add([picture]),
    onSelect: (picture, selected) => pictures.set(picture, { selected }),
  };

  // What is shown follows from the list of pictures.
  function arrange() {
    for (const [picture, card] of cards) {
      if (pictures.has(picture)) continue;
      card.element.remove();
      cards.delete(picture);
      leave(picture);
    }
    for (const picture of pictures.list) {
      if (cards.has(picture)) continue;
      const card = makeCard(picture, context);
      cards.set(picture, card);
      at("cards").append(card.element);
    }
    tools();
  }

  /** A picture was removed: it leaves those that were told from it. */
  function leave(gone) {
    for (const picture of pictures.list) {
      if (!picture.told?.others.includes(gone)) continue;
      picture.told.others = picture.told.others.filter((other) => other !== gone);
      cards.get(picture)?.update();
    }
    at("told-pictures").querySelector(`[data-key="${gone.key}"]`)?.remove();
    if (!at("told-pictures").childElementCount) at("told").hidden = true;
  }

  function tools() {
    const some = pictures.list.length > 0;
    const all = pictures.captioned();
    const selected = pictures.selected();
    document.body.classList.toggle("begun", some);
    at("tools").hidden = !all.length;
    at("hint").hidden = !all.length;
    at("select-all").textContent = all.length && selected.length === all.length ? "Select none" : "Select all";
    at("selected").hidden = !selected.length;
    at("selected-count").textContent = `${count(selected.length)} selected`;
    at("tell").disabled = !collection && selected.length < 2;
    at("from").hidden = !collection;
  }

  pictures.addEventListener("list", arrange);
  pictures.addEventListener("change", ({ detail }) => {
    cards.get(detail)?.update();
    tools();
  });

  // Adding pictures: drop them anywhere, choose files, or paste.
  function add(files) {
    if (files.length) uploads.add(files);
  }

  const carriesFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  let inside = 0; // elements of the page that the pointer entered and did not leave
  const over = (entered) => {
    inside = entered;
    at("drop").classList.toggle("over", inside > 0);
  };
  document.addEventListener("dragenter", (event) => carriesFiles(event) && over(inside + 1));
  document.addEventListener("dragleave", (event) => carriesFiles(event) && over(inside - 1));
  document.addEventListener("dragover", (event) => carriesFiles(event) && event.preventDefault());
  document.addEventListener("drop", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    over(0);
    const folders = [...event.dataTransfer.items].filter((item) => item.webkitGetAsEntry?.()?.isDirectory);
    if (folders.length) complain("Folders cannot be dropped here. Open the folder and drop the pictures in it.");
    const names = folders.map((item) => item.webkitGetAsEntry().name);
    add([...event.dataTransfer.files].filter((file) => !names.includes(file.name)));
  });
  document.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    add(files);
  });
  at("choose").addEventListener("click", () => at("files").click());
  at("files").addEventListener("change", (event) => {
    add([...event.target.files]);
    event.target.value = ""; // the same file can be chosen again
  });

  // The selection.
  const selectAll = (selected) => pictures.captioned().forEach((picture) => pictures.set(picture, { selected }));
  at("select-all").addEventListener("click", () => selectAll(pictures.selected().length < pictures.captioned().length));
  at("select-none").addEventListener("click", () => {
    selectAll(false);
    at("select-all").focus();
  });
  at("export-all").addEventListener("click", () => openExport(pictures.list));
  at("export-selected").addEventListener("click", () => openExport(pictures.selected()));
  at("remove-selected").addEventListener("click", () => remove(pictures.selected()));
  at("tell").addEventListener("click", tell);
  at("told-close").addEventListener("click", () => {
    at("told").hidden = true;
    at("pictures").focus();
  });

  async function tell() {
    const group = pictures.selected();
    if (group.length > limits.max_told) {
      return complain(`At most ${count(limits.max_told)} pictures can be told apart at once. Select fewer.`);
    }
    at("tell").disabled = true;
    say(`Telling ${plural(group.length, "picture")} apart…`);
    try {
      const answer = await telling.together(group, collection ? Number(at("distractors").value) : 0);
      selectAll(false);
      showTold(answer, pictures);
      say(`${plural(group.length, "picture")} told apart.`);
    } catch (error) {
      complain(error.message, tell);
    }
    tools();
  }

  // Added pictures live in this tab only.
  window.addEventListener("beforeunload", (event) => {
    if (pictures.list.some((picture) => picture.edited)) event.preventDefault();
  });
}

start();
