// Where the captioner looks: a picture with a shade that is clear where a word's attention is.

import { make } from "./dom.js";
import { percent } from "./text.js";

const SIDE = 72; // pixels of the shade's longer side; the browser stretches it over the picture
const DARKEST = 0.78;

/**
 * How dark each point of the shade is, 0 (clear) to 1 (least attention), row by row. Cells have soft edges: a cubic
 * B-spline goes through the grid, since hard or linear ones would look like something in the picture.
 * @param {number[]} attention row by row
 * @param {[number, number]} grid rows, columns
 */
export function shade(attention, [rows, columns], width, height) {
  const down = spline(rows, height);
  const across = spline(columns, width);
  const values = Float32Array.from({ length: width * height }, (_, point) => {
    let sum = 0;
    for (const [row, share] of down[Math.floor(point / width)]) {
      for (const [column, part] of across[point % width]) sum += share * part * attention[row * columns + column];
    }
    return sum;
  });
  const most = values.reduce((one, other) => Math.max(one, other));
  const spread = most - values.reduce((one, other) => Math.min(one, other));
  return values.map((value) => (spread > 1e-5 * most ? (most - value) / spread : 0));
}

/** For each of `length` points along a row of cells: four cells and their weights. */
function spline(cells, length) {
  return Array.from({ length }, (_, point) => {
    const place = ((point + 0.5) / length) * cells - 0.5;
    const first = Math.floor(place);
    const t = place - first;
    const weights = [(1 - t) ** 3, 3 * t ** 3 - 6 * t ** 2 + 4, -3 * t ** 3 + 3 * t ** 2 + 3 * t + 1, t ** 3];
    return weights.map((weight, at) => [Math.min(cells - 1, Math.max(0, first - 1 + at)), weight / 6]);
  });
}

/** Where the middle of the attention lies, in words: "upper left", "centre", "right" … */
export function where(attention, [rows, columns]) {
  let total = 0;
  let down = 0;
  let along = 0;
  attention.forEach((value, cell) => {
    const weight = value * value; // the peaks count
    total += weight;
    down += weight * ((Math.floor(cell / columns) + 0.5) / rows);
    along += weight * (((cell % columns) + 0.5) / columns);
  });
  if (!(total > 0)) return "nowhere";
  const third = (value, low, high) => (value < 0.4 ? low : value > 0.6 ? high : "");
  const place = `${third(down / total, "upper", "lower")} ${third(along / total, "left", "right")}`.trim();
  return { "": "centre", upper: "upper part", lower: "lower part" }[place] ?? place;
}

/** Whether words have a usable attention map. */
export const hasMap = (word, grid) => Array.isArray(word.attention) && word.attention.length === grid[0] * grid[1];

/** What is said about a word: how likely it was, and where the captioner looked. */
export function about(word, grid) {
  const parts = [];
  if (hasMap(word, grid)) parts.push(`looks at the ${where(word.attention, grid)}`);
  if (typeof word.log_probability === "number") parts.push(`${percent(word.log_probability)} likely`);
  return parts.join(", ");
}

/** A picture with its shade. `element` is shown; `show(word, grid)` and `hide()` are for words. */
export function pictureView(source, alt) {
  const image = make("img", { alt, decoding: "async" });
  const canvas = make("canvas", { "aria-hidden": "true" });
  const label = make("p", { class: "seen", "aria-hidden": "true" });
  const element = make("div", { class: "view" }, image, canvas, label);
  image.addEventListener("load", () => element.style.setProperty("--ratio", image.naturalWidth / image.naturalHeight));
  image.addEventListener("error", () => {
    element.classList.add("unseen-picture");
    label.textContent = "This browser cannot show the picture.";
  });
  image.src = source;
  return {
    element,
    image,
    show(word, grid) {
      // The shade has the picture's shape, so that it is cut like the picture where that is cut.
      const longer = Math.max(image.naturalWidth, image.naturalHeight, 1);
      canvas.width = Math.max(1, Math.round((SIDE * image.naturalWidth) / longer));
      canvas.height = Math.max(1, Math.round((SIDE * image.naturalHeight) / longer));
      const context = canvas.getContext("2d");
      const pixels = context.createImageData(canvas.width, canvas.height);
      shade(word.attention, grid, canvas.width, canvas.height).forEach((dark, point) => {
        pixels.data.set([8, 10, 14, Math.round(255 * DARKEST * dark)], 4 * point);
      });
      context.putImageData(pixels, 0, 0);
      label.textContent = `${word.word}${typeof word.log_probability === "number" ? `  ${percent(word.log_probability)}` : ""}`;
      element.classList.add("shaded");
    },
    hide: () => element.classList.remove("shaded"),
  };
}
