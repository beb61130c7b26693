// Ask for distinctive captions: of each new picture against similar ones of the collection, or of a selection.

import { post } from "./api.js";

const NEAREST = 9;

export class Telling {
  #waiting = [];
  #running = false;

  /** @param {{pictures: Object, uploads: Object, collection: boolean, most: number}} options */
  constructor(options) {
    Object.assign(this, options);
  }

  /** Tell new pictures from the collection's nearest; without a collection, from all others that were added. */
  add(done) {
    this.#waiting.push(...done);
    for (const picture of done) this.pictures.set(picture, { queued: true });
    if (!this.#running) this.#run();
  }

  async #run() {
    this.#running = true;
    while (this.#waiting.length) {
      let group = this.collection ? [this.#waiting.shift()] : this.#waiting.splice(0);
      for (const picture of group) this.pictures.set(picture, { queued: false });
      if (!this.collection) {
        const earlier = this.pictures.captioned().filter((picture) => !group.includes(picture));
        group = [...group, ...earlier.reverse()].slice(0, this.most);
      }
      group = group.filter(this.pictures.has);
      if (group.length > (this.collection ? 0 : 1)) await this.together(group, this.collection ? NEAREST : 0).catch(() => {});
    }
    this.#running = false;
  }

  /** Tell pictures from each other, and from similar ones of the collection. */
  async together(group, distractors) {
    for (const picture of group) this.pictures.set(picture, { telling: true, tellError: null });
    try {
      const answer = await this.uploads.asking(group, (ids) => post("api/tell-apart", { ids, distractors, one_group: true }));
      for (const found of answer.groups) this.#apply(found);
      return answer;
    } catch (error) {
      for (const picture of group) this.pictures.set(picture, { tellError: picture.told ? null : error.message });
      throw error;
    } finally {
      for (const picture of group) this.pictures.set(picture, { telling: false });
    }
  }

  #apply({ pictures: members, distractors = [] }) {
    const shown = members.map((member) => this.pictures.byId(member.id));
    const first = ({ id, same_as }) => same_as ?? id; // the same picture may have been sent twice
    members.forEach((member, place) => {
      if (!shown[place]) return;
      const { plain, distinctive, same_as } = member;
      const others = shown.filter((other, at) => other && first(members[at]) !== first(member));
      const same = same_as ? this.pictures.byId(same_as) : null;
      this.pictures.set(shown[place], { told: { plain, distinctive, others, distractors, same } });
    });
  }
}
