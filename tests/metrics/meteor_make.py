"""Makes meteor_own.json: sentences of our own, and what METEOR 1.5 (the Java program of pycocoevalcap) says of them.

python tests/metrics/meteor_make.py
"""

from __future__ import annotations

import json
import random
from pathlib import Path

# (references, candidate), tokens joined by blanks as the COCO tool hands them to METEOR.
WRITTEN: list[tuple[list[str], str]] = [
    (["a dog runs on the grass"], "a dog runs on the grass"),  # identical
    (["a dog runs on the grass", "the puppy is running over a lawn"], "a dog ran on the lawn"),  # stems, irregular
    (["two large boats near the shore"], "two big ships close to the coast"),  # synonyms, paraphrases of two words
    (["a huge amount of snow in front of the house"], "a lot of snow before the house"),
    (["a man in the middle of the road"], "a man amid the road in the centre of the street"),
    (["it is as well as possible to take into account"], "it is also possible to consider"),
    (
        ["the cat and the dog and the bird and the fish sit by the door"],
        "the fish the bird the dog the cat and and and",
    ),
    (["a a a b b c a a b a c a b"], "a b a c a a b a b a a"),  # the beam overflows
    (["big big small large big"], "large large big tiny"),
    (["the red ball", "a red ball on a table", "a ball that is red"], "a ball on the red table"),
    (["a dog", "a dog"], "a cat"),  # equal references: the first counts
    (["a dog runs"], ""),
    ([""], "a dog runs"),
    ([""], ""),
    (["."], "."),
    (["a dog"], "."),
    (["a dog", "cats"], ". , ! ?"),
    (["the man's t-shirt isn't from the u.s.a."], "the man 's t shirt is n't from the usa"),
    (["mr. brown at no. 5 st. james at 5:30 p.m."], "mr. brown at no. 5 st james 5 30 pm"),
    (["A Dog , the DOG"], "a dog , the dog"),
    (["a\u00a0dog runs\u3000home"], "a dog  runs home"),
    (["one ||| a dog runs", "b"], "a dog ||| runs"),  # the tool's own separator
    (["café naïve über"], "cafe naïve über 中文 😀"),
    (["xyzzy plugh"], "frobnicate"),
    (["dogs"], "dog"),
    (["skies generously dying news"], "sky generous die new"),
    (["the mice ate geese and oxen"], "the mouse eats goose and ox"),
    (["the the the the"], "the"),
    (["the"], "the the the the"),
]


MANY = "a the man dog red big large runs running on in of near close to street road"
REPEATED = "a the a of on man men person people big large near close to in front of runs running ran"


def very_long(generator: random.Random) -> tuple[list[str], str]:
    """Longer than the 63 words that fit into a mask."""
    words = MANY.split()
    return [" ".join(generator.choices(words, k=40))], " ".join(generator.choices(words, k=70))


def repeated(generator: random.Random) -> tuple[list[str], str]:
    words = REPEATED.split()
    references = [" ".join(generator.choices(words, k=generator.randint(3, 18))) for _ in range(3)]
    return references, " ".join(generator.choices(words, k=generator.randint(3, 18)))


def main() -> None:
    from pycocoevalcap.meteor.meteor import Meteor

    generator = random.Random(0)
    images = [*WRITTEN, very_long(generator), *(repeated(generator) for _ in range(40))]
    corpus, scores = Meteor().compute_score(
        {i: references for i, (references, _) in enumerate(images)}, {i: [text] for i, (_, text) in enumerate(images)}
    )
    rows = [{"references": r, "candidate": c, "METEOR": s} for (r, c), s in zip(images, scores, strict=True)]
    text = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path = Path(__file__).with_name("meteor_own.json")
    path.write_text(f'{{"corpus": {corpus!r}, "images": [\n{text}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
