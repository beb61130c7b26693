// Numbers and names as people read them.

/** 1st, 2nd, 3rd, 4th, 11th, 21st … */
export function ordinal(n) {
  const tens = n % 100;
  const ending = tens >= 11 && tens <= 13 ? "th" : ({ 1: "st", 2: "nd", 3: "rd" }[n % 10] ?? "th");
  return `${count(n)}${ending}`;
}

/** 12345 → 12,345 */
export const count = (n) => n.toLocaleString("en-US");

/** "1 picture", "2 pictures" */
export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

/** A size of a file: "640 kB", "12.3 MB". */
export function size(bytes) {
  if (bytes < 1e6) return `${Math.max(1, Math.round(bytes / 1e3))} kB`;
  const mega = bytes / 1e6;
  return `${mega < 100 && !Number.isInteger(mega) ? mega.toFixed(1) : Math.round(mega)} MB`;
}

/** The probability of a logarithm, "92 %"; small ones are not shown as none. */
export function percent(logProbability) {
  const share = 100 * Math.exp(logProbability);
  return share < 1 ? "less than 1 %" : `${Math.round(share)} %`;
}

/** What a rank means. */
export function rankText(rank, of) {
  if (of <= 1) return "nothing to be told from";
  return rank === 1 ? `finds its picture: 1st of ${count(of)}` : `its picture comes ${ordinal(rank)} of ${count(of)}`;
}

/** How a rank changed by an edit. */
export function changeText(before, after, of, exact = true) {
  const now = exact ? `${ordinal(after)} of ${count(of)}` : `after the ${ordinal(after - 1)} of ${count(of)}`;
  if (before === null) return `Now ${now}`;
  if (before === after) return `Still ${now}`;
  return `${after < before ? "Up" : "Down"} from ${ordinal(before)} to ${now}`;
}

const TOO_LONG = 40;

/** A file's name, short enough for a sentence, with its ending. */
export function shortName(name) {
  return name.length <= TOO_LONG ? name : `${name.slice(0, TOO_LONG - 13)}…${name.slice(-12)}`;
}
