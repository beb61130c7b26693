"""The true listener: it knows what is in every scene, and takes a caption at its word.

The embedded data set draws its scenes, so their contents are known. A caption is read as claims (`data.scenes.claims`),
and ranks the scenes of its split by the number of its claims that are right there:

    score(c, s) = #{claims of c that are right in s}

No model is involved, so nothing that a model has learnt by heart, or has in common with the captioner, can help.

- Equal scores are in random order: with b scenes above the own one and m that score as high, itself included, the hit
  at k counts min(max((k - b) / m, 0), 1) and the rank b + (m + 1) / 2. Both are expectations, so a caption that claims
  nothing is exactly at chance.
- "a red car" in a scene without a car is three wrong claims: that there is a car, that there is one, and that it is
  red. So a scene with a blue car fits better than one without a car, a caption's number of claims does not depend on
  the scene, and details of things that are not there lower `truth`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tellapart.data.records import Dataset
from tellapart.data.scenes import Scene, SceneRecord, make_split
from tellapart.data.scenes.claims import Claim, check, read_claims
from tellapart.data.settings import DataSettings
from tellapart.errors import DataError

# Version of the claims and the figures; older results are measured again.
FORMAT = 1
RECALLS = (1, 5)
BLOCK = 1024  # captions compared with all scenes at a time

Values = NDArray[np.float64]


@dataclass(frozen=True)
class TrueListener:
    """Ranks the scenes of one split for captions.

    Args:
        scenes: in the order of the split.
        families: the name of each scene's family; scenes of one family differ in one attribute from its first scene.

    Example:
        >>> from tellapart.data.scenes import make_split
        >>> records = make_split("test", 3, seed=0, seen=set())
        >>> listener = TrueListener([r.scene for r in records], [r.family for r in records])
        >>> listener.figures([record.captions[0] for record in records])["truth"].tolist()
        [1.0, 1.0, 1.0]
    """

    scenes: Sequence[Scene]
    families: Sequence[str]

    def figures(self, captions: Sequence[str], images: int | None = None) -> dict[str, Values]:
        """Figures of each caption; caption t belongs to scene t. NaN: not measured.

        Args:
            captions: one per scene.
            images: rank only the first so many scenes, for the first so many captions.

        Returns:
            `true_listener_R@1`, `true_listener_R@5` and `true_listener_mean_rank`: expected hits and rank;
            `truth`: share of the claims that are right, NaN for a caption without claims;
            `claims`: number of claims;
            `difference_named`: for near-duplicates, 1 if a claim is right of the own scene and wrong of another one of
            its family, else 0; NaN for single scenes.
        """
        said = [read_claims(caption) for caption in captions]
        distinct = list(dict.fromkeys(claim for claims in said for claim in claims))
        right = right_claims(distinct, self.scenes)
        made = _made(said, distinct)
        scores = made.astype(np.float64) @ right  # [captions, scenes], whole numbers
        claims = made.sum(axis=1).astype(np.float64)
        own = np.diagonal(scores)
        truth = np.divide(own, claims, out=np.full(len(claims), np.nan), where=claims > 0)
        ranks = _expected_ranks(scores[:images, :images], len(captions))
        return {**ranks, "truth": truth, "claims": claims, "difference_named": self._differences(made, right)}

    def first(self, count: int) -> TrueListener:
        """The listener of the first so many scenes only."""
        return TrueListener(self.scenes[:count], self.families[:count])

    def fitting(self, captions: Sequence[str]) -> Values:
        """In how many scenes all claims of each caption are right: how generic it truly is.

        >>> from tellapart.data.scenes import make_split
        >>> records = make_split("test", 3, seed=0, seen=set())
        >>> TrueListener([r.scene for r in records], [r.family for r in records]).fitting(["hello"]).tolist()
        [3.0]
        """
        said = [read_claims(caption) for caption in captions]
        distinct = list(dict.fromkeys(claim for claims in said for claim in claims))
        right = right_claims(distinct, self.scenes).astype(np.float32)
        counts = np.zeros(len(said))
        for start in range(0, len(said), BLOCK):
            made = _made(said[start : start + BLOCK], distinct).astype(np.float32)
            counts[start : start + BLOCK] = (made @ right == made.sum(axis=1, keepdims=True)).sum(axis=1)
        return counts

    def _differences(self, made: NDArray[np.bool_], right: NDArray[np.bool_]) -> Values:
        """Whether each caption makes a claim that tells its scene from another one of its family."""
        family = np.unique(np.array(self.families), return_inverse=True)[1]
        members = np.bincount(family)
        # Of each claim and family: the number of scenes in which it is right.
        right_in_family = np.zeros((len(right), len(members)))
        np.add.at(right_in_family.T, family, right.T)
        telling = right & (right_in_family < members)[:, family]  # [claims, scenes]
        named = (made & telling.T).any(axis=1)
        return np.where(members[family] > 1, named, np.nan)


def right_claims(claims: Sequence[Claim], scenes: Sequence[Scene]) -> NDArray[np.bool_]:
    """`[claims, scenes]`: whether each claim is right in each scene."""
    right = [[check(claim, scene) for scene in scenes] for claim in claims]
    return np.array(right, dtype=np.bool_).reshape(len(claims), len(scenes))


def _made(said: Sequence[Sequence[Claim]], distinct: Sequence[Claim]) -> NDArray[np.bool_]:
    """`[captions, distinct claims]`: which claims each caption makes."""
    place = {claim: number for number, claim in enumerate(distinct)}
    made = np.zeros((len(said), len(distinct)), dtype=np.bool_)
    owner = np.repeat(np.arange(len(said)), [len(claims) for claims in said])
    made[owner, [place[claim] for claims in said for claim in claims]] = True
    return made


def _expected_ranks(scores: Values, captions: int) -> dict[str, Values]:
    """Expected hits and rank of the own scene, with equal scores in random order; NaN for captions without scores."""
    images = len(scores)
    own = np.diagonal(scores)[:, None]
    above, level = (scores > own).sum(axis=1), (scores == own).sum(axis=1)
    found = {f"true_listener_R@{k}": np.clip((k - above) / level, 0, 1) for k in RECALLS if k <= images}
    found["true_listener_mean_rank"] = above + (level + 1) / 2
    return {name: np.concatenate([values, np.full(captions - images, np.nan)]) for name, values in found.items()}


def open_true_listener(settings: DataSettings, dataset: Dataset, split: str) -> TrueListener | None:
    """The true listener of a split; None if the data are not the embedded scenes.

    Args:
        settings: of the data set.
        dataset: its records; a `DataError` if they are not those of the scenes that are made now.
        split: the images.
    """
    if settings.source != "scenes":
        return None
    sizes = settings.scenes
    made = {record.id: record for record in _make_scenes(sizes.train, sizes.val, sizes.test, sizes.seed, split)}
    records = dataset.split(split)
    for record in records:
        if record.id not in made or made[record.id].captions != record.captions:
            raise DataError(
                f"{dataset.name}: '{record.id}' does not have the captions of the scene that is made now, so the true "
                "listener cannot know what it shows; remove the folder of rendered scenes and run the command again"
            )
    found = [made[record.id] for record in records]
    return TrueListener([one.scene for one in found], [one.family for one in found])


@lru_cache(maxsize=4)
def _make_scenes(train: int, val: int, test: int, seed: int, split: str) -> list[SceneRecord]:
    """The scenes of one split. Each depends on those made before, in this order; the training scenes come last."""
    seen: set[object] = set()
    records: list[SceneRecord] = []
    for name, many in (("test", test), ("val", val), ("train", train)):
        records = make_split(name, many, seed, seen)
        if name == split:
            break
    return records
