// The pictures a person added, and what is known of each. "change" is fired for one, "list" when some come or go.

const MOST_IDS = 500;

export class Pictures extends EventTarget {
  list = [];
  #number = 0;

  add(file) {
    const picture = {
      key: `p${++this.#number}`,
      file,
      name: file.name || `pasted ${this.#number}.png`,
      url: URL.createObjectURL(file),
      state: "waiting", // → captioned → told; or failed
      id: null,
      grid: null,
      plain: null, // {caption, words, log_probability}
      told: null, // {plain, distinctive, others: pictures, distractors, same: the picture it is a copy of}
      queued: false, // for telling
      telling: false,
      edited: null, // {caption, rank, of, words}
      error: null,
      selected: false,
    };
    this.list.push(picture);
    this.dispatchEvent(new Event("list"));
    return picture;
  }

  remove(picture) {
    this.list = this.list.filter((one) => one !== picture);
    URL.revokeObjectURL(picture.url);
    this.dispatchEvent(new Event("list"));
  }

  /** Set values of a picture and tell those who show it. */
  set(picture, values) {
    Object.assign(picture, values);
    this.dispatchEvent(new CustomEvent("change", { detail: picture }));
  }

  has = (picture) => this.list.includes(picture);
  byId = (id) => this.list.find((picture) => picture.id === id);
  captioned = () => this.list.filter((picture) => picture.plain);

  /** The newest, and this one: as many as a request may name. */
  searched(also = null) {
    const newest = this.captioned().slice(-MOST_IDS);
    return !also || newest.includes(also) ? newest : [...newest.slice(1), also];
  }
  selected = () => this.list.filter((picture) => picture.selected);
}

/** The caption that counts: the person's own, else the distinctive one, else the plain one. */
export const bestCaption = (picture) =>
  picture.edited?.caption ?? picture.told?.distinctive.caption ?? picture.plain?.caption ?? "";
