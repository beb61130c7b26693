// The pictures of a selection side by side, after they were told apart.

import { pictureView } from "./attention.js";
import { at, make } from "./dom.js";
import { rankText } from "./text.js";
import { against, rankLine } from "./thumbs.js";
import { captionWords } from "./words.js";

const firsts = (members, kind) => members.filter((member) => member[kind].rank === 1).length;

/** How many captions of a group find their picture. */
export function summary(members) {
  const all = members.length;
  return `Plain captions find ${firsts(members, "plain")} of ${all}, distinctive captions ${firsts(members, "distinctive")} of ${all}.`;
}

/** Show the groups of an answer. */
export function showTold(answer, pictures) {
  const members = answer.groups.flatMap((group) => group.pictures).filter((member) => pictures.byId(member.id));
  const distractors = answer.groups.flatMap((group) => group.distractors ?? []);
  at("told-sum").textContent = summary(members.filter((member) => !member.same_as));
  at("told-pictures").replaceChildren(...members.map((member) => shown(pictures.byId(member.id), member)));
  const row = against("Also told from, out of the collection", [], distractors);
  at("told-against").replaceChildren(...(row ? [row] : []));
  at("told").hidden = false;
  at("told").scrollIntoView({ block: "start" });
  at("told-title").focus({ preventScroll: true });
}

function shown(picture, { plain, distinctive }) {
  const view = pictureView(picture.url, distinctive.caption);
  return make(
    "li",
    { "data-key": picture.key },
    view.element,
    make("h3", { title: picture.name }, picture.name),
    captionWords(distinctive, { label: "Distinctive caption", view, grid: picture.grid }),
    rankLine(rankText(distinctive.rank, distinctive.of), distinctive.rank === 1 && distinctive.of > 1),
    make("p", { class: "soft" }, `Plain: “${plain.caption}”, ${rankText(plain.rank, plain.of)}`),
  );
}
