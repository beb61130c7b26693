// Write what the page has: a table, JSON lines, or alt text. The keys are those of `tellapart tell-apart`.

import { at } from "./dom.js";
import { bestCaption } from "./pictures.js";
import { plural } from "./text.js";

export const COLUMNS = ["id", "caption", "words", "source", "plain", "rank", "plain_rank", "of"];
const ENDS = { csv: "captions.csv", jsonl: "captions.jsonl", html: "alt-text.html" };
const KINDS = { csv: "text/csv", jsonl: "application/jsonl", html: "text/html" };

/** One row for each picture that has a caption. An edited caption is ranked among more pictures than the plain one. */
export function rows(pictures) {
  return pictures
    .filter((picture) => picture.plain)
    .map((picture) => {
      const { name, plain, told, edited } = picture;
      const ranked = edited ?? told?.distinctive ?? {};
      return {
        id: name,
        caption: bestCaption(picture),
        words: edited ? [] : (told?.distinctive.words ?? []).filter((word) => word.distinguishing).map((word) => word.word),
        source: edited ? "edited" : told ? "distinctive" : "plain",
        plain: plain.caption,
        rank: ranked.rank ?? null,
        plain_rank: edited ? null : (told?.plain.rank ?? null),
        of: ranked.of ?? null,
      };
    });
}

/**
 * A cell of a table. Text that a spreadsheet would run as a formula (it starts with = + - @, a tab or a line end, also
 * after blanks or in their wide forms) gets an apostrophe in front. Numbers stay numbers.
 */
export function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^(\s*[=+\-@＝＋－＠]|[\t\r\n])/.test(value) ? `'${value}` : value;
  return /[",\r\n;']|^\s|\s$/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function csv(pictures) {
  const lines = rows(pictures).map((row) => COLUMNS.map((column) => cell(column === "words" ? row.words.join(" ") : row[column])).join(","));
  return `${[COLUMNS.join(","), ...lines].join("\r\n")}\r\n`;
}

export const jsonl = (pictures) => rows(pictures).map((row) => `${JSON.stringify(row)}\n`).join("");

const escaped = (text) => text.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);

/** An `img` for each picture, with its caption as alt text. */
export function altText(pictures, which = "best") {
  return rows(pictures)
    .map((row) => `<img src="${escaped(encodeURIComponent(row.id))}" alt="${escaped(which === "plain" ? row.plain : row.caption)}">\n`)
    .join("");
}

/** @param {{say: Function}} context */
export function setUpExport({ say }) {
  const dialog = at("export");
  const form = dialog.querySelector("form");
  let chosen = [];

  const format = () => form.elements.format.value;

  function text() {
    if (format() === "csv") return csv(chosen);
    return format() === "jsonl" ? jsonl(chosen) : altText(chosen, form.elements.which.value);
  }

  function preview() {
    at("which").hidden = format() !== "html";
    at("export-text").value = text();
    at("export-status").textContent = "";
  }

  form.addEventListener("change", preview);
  at("download").addEventListener("click", () => {
    // Spreadsheets take a table for UTF-8 only with a mark at its start.
    const content = format() === "csv" ? `\ufeff${text()}` : text();
    const address = URL.createObjectURL(new Blob([content], { type: `${KINDS[format()]};charset=utf-8` }));
    const link = document.createElement("a");
    link.href = address;
    link.download = ENDS[format()];
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
    at("export-status").textContent = `${ENDS[format()]} is downloaded.`;
  });
  at("copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      at("export-status").textContent = "Copied.";
    } catch {
      at("export-text").select();
      at("export-status").textContent = "The browser did not allow copying. The text is selected: copy it with your keyboard.";
    }
  });
  return (pictures) => {
    chosen = pictures.filter((picture) => picture.plain);
    if (!chosen.length) return say("There is nothing to export yet.");
    at("export-title").textContent = `Export ${plural(chosen.length, "picture")}`;
    preview();
    dialog.showModal();
  };
}
