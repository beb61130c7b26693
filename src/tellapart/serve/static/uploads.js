// Send pictures to the service, a few at a time, and again if it has forgotten them.

import { post } from "./api.js";
import { shortName, size } from "./text.js";

const AT_ONCE = 4; // so that the first captions come soon
const FORM = 2000; // bytes of a request around each file

/**
 * Split files into requests: few files each, and none larger than the server takes.
 * @param {{size: number}[]} files
 */
export function requests(files, mostBytes, mostFiles) {
  const split = [];
  let bytes = Infinity;
  for (const file of files) {
    if (bytes + file.size + FORM > mostBytes || split.at(-1).length >= mostFiles) {
      split.push([]);
      bytes = 0;
    }
    split.at(-1).push(file);
    bytes += file.size + FORM;
  }
  return split;
}

/** Why a file cannot be sent, or null. */
export function refusal(file, mostBytes) {
  if (file.type && !file.type.startsWith("image/")) return `${shortName(file.name)} is not a picture. Add JPEG, PNG or WebP files.`;
  if (file.size === 0) return `${shortName(file.name)} is empty. Choose another file.`;
  if (file.size + FORM > mostBytes) {
    return `${shortName(file.name)} is too large: ${size(file.size)}, and this server takes ${size(mostBytes)}. Save it smaller and add it again.`;
  }
  return null;
}

export class Uploads {
  #waiting = [];
  #running = null;
  #full = false; // whether the server cannot hold all pictures at once

  /** @param {{pictures: Object, limits: Object, onBatch: Function, onError: Function, onTwice: Function}} options */
  constructor(options) {
    Object.assign(this, options);
  }

  get left() {
    return this.#waiting.length;
  }

  /** Queue files; refused ones become pictures with an error. */
  add(files) {
    for (const file of files) {
      const twice = this.pictures.list.find((one) => same(one.file, file));
      if (twice) {
        this.onTwice(twice);
        continue;
      }
      const message = refusal(file, this.limits.max_upload_bytes);
      const picture = this.pictures.add(file);
      if (message) this.pictures.set(picture, { state: "failed", error: { code: "refused", message } });
      else this.#waiting.push(picture);
    }
    this.#start();
  }

  /** Try a picture again after an error. */
  again(picture) {
    this.pictures.set(picture, { state: "waiting", error: null });
    this.#waiting.push(picture);
    this.#start();
  }

  #start() {
    this.#running ??= this.#run().finally(() => (this.#running = null));
  }

  async #run() {
    while (this.#waiting.length) {
      const present = this.#waiting.filter((picture) => this.pictures.has(picture));
      const [files = []] = requests(present.map((picture) => picture.file), this.limits.max_upload_bytes, this.#most());
      const batch = present.slice(0, files.length);
      this.#waiting = present.slice(files.length);
      if (batch.length) await this.#send(batch);
    }
  }

  #most = () => Math.min(AT_ONCE, this.limits.max_pictures);

  async #send(batch) {
    let answers;
    try {
      answers = await captions(batch);
    } catch (error) {
      for (const picture of batch) this.pictures.set(picture, { state: "failed", error });
      this.onError(error, batch);
      return;
    }
    const done = [];
    batch.forEach((picture, place) => {
      const answer = answers[place];
      if (!this.pictures.has(picture)) return;
      if (answer.error) {
        this.pictures.set(picture, { state: "failed", error: answer.error });
      } else {
        const { caption, words, log_probability, id, grid, width, height } = answer;
        this.pictures.set(picture, { state: "captioned", id, grid, width, height, plain: { caption, words, log_probability } });
        done.push(picture);
      }
    });
    this.onBatch(done, batch);
  }

  /**
   * Ask something about pictures. Those that the server has forgotten are sent again, and the question is repeated.
   * @param {Object[]} pictures
   * @param {(ids: string[]) => Promise} question
   */
  async asking(pictures, question) {
    for (let attempt = 0; ; attempt++) {
      const ids = pictures.map((picture) => picture.id);
      let gone;
      try {
        const answer = await question(ids);
        gone = answer.forgotten ?? [];
        this.#full ||= attempt > 0 && gone.length > 0;
        if (!gone.length || this.#full) return answer;
      } catch (error) {
        if (error.code !== "forgotten" || attempt === 2) throw error;
        gone = error.ids ?? ids;
      }
      await this.#sendAgain(pictures.filter((picture) => gone.includes(picture.id)));
    }
  }

  async #sendAgain(pictures) {
    let first = 0;
    for (const files of requests(pictures.map((picture) => picture.file), this.limits.max_upload_bytes, this.#most())) {
      const some = pictures.slice(first, (first += files.length));
      (await captions(some)).forEach((answer, place) => (some[place].id = answer.id ?? some[place].id));
    }
  }
}

/** Whether two files are most likely the same; pasted pictures never are. */
const same = (one, other) => one.name === other.name && one.size === other.size && one.lastModified === other.lastModified;

async function captions(batch) {
  const form = new FormData();
  for (const picture of batch) form.append("files", picture.file, picture.name);
  return (await post("api/captions", form)).pictures;
}
