"""Candidate captions: beams, samples, contrast and guidance of a captioner, and anyone's captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Literal

import torch

from tellapart.data.records import Record
from tellapart.decoding.base import Caption, Decodable
from tellapart.decoding.contrast import Contrasted
from tellapart.decoding.search import decode, n_best
from tellapart.decoding.settings import LIMITS, DecodingSettings
from tellapart.errors import DataError
from tellapart.evaluation.caption_files import match_ids, read_captions
from tellapart.telling_apart.settings import TellApartSettings

Source = Literal["plain", "beam", "sample", "contrast", "guidance", "given"]


@dataclass(frozen=True)
class Task:
    """A picture to caption, and those to tell it apart from; places among the features of a block.

    Attributes:
        picture: the picture.
        others: its distractors, the most similar one first.
    """

    picture: int
    others: tuple[int, ...]


@dataclass(frozen=True)
class Candidate:
    """A caption of a picture, and where it comes from."""

    text: str
    source: Source


def propose(
    captioner: Decodable,
    features: torch.Tensor,
    tasks: Sequence[Task],
    settings: TellApartSettings,
    decoding: DecodingSettings,
    numbers: Sequence[int],
    given: Sequence[Sequence[str]] = (),
) -> list[list[Candidate]]:
    """Candidates for each task, without repetitions. The first is the plain caption.

    Args:
        captioner: any captioner or `Ensemble`, in eval mode.
        features: of all pictures that the tasks name, `[pictures, regions, width]`.
        tasks: the pictures to caption.
        settings: where candidates come from.
        decoding: how the plain caption is found.
        numbers: seed of the samples of each task.
        given: other captions of each task's picture.
    """
    wanted = features[[task.picture for task in tasks]]
    beams = decoding if decoding.method == "beam" else DecodingSettings()
    plain = decode(captioner, wanted, beams.model_copy(update={"samples": beams.beam}))
    found: list[list[Candidate]] = [
        [Candidate(one.caption, "beam" if place else "plain") for place, one in enumerate(several)] for several in plain
    ]

    def add(source: Source, captions: Sequence[Sequence[Caption]]) -> None:
        for own, several in zip(found, captions, strict=True):
            own.extend(Candidate(one.caption, source) for one in several)

    wide = beams.model_copy(update={"beam": settings.beam, "samples": settings.beam})
    others = [task.others[: settings.distractors] for task in tasks]
    shown = sorted({place for several in others for place in several})
    context, at = features[shown], {place: number for number, place in enumerate(shown)}
    distractors = [[at[place] for place in several] for several in others]
    for strength in settings.contrast if shown else ():
        contrasted = Contrasted(captioner, context, distractors, strength, settings.plausibility)
        add("contrast", n_best(contrasted, wanted, wide))
    for strength in settings.guidance:
        add("guidance", decode(captioner, wanted, wide.model_copy(update={"guidance": strength})))
    if settings.samples:
        limits = {key: getattr(beams, key) for key in LIMITS}
        drawn = DecodingSettings(
            method="sample", samples=settings.samples, temperature=settings.temperature, seed=settings.seed, **limits
        )
        add("sample", decode(captioner, wanted, drawn, numbers))
    for own, texts in zip(found, given, strict=True) if given else ():
        own.extend(Candidate(text, "given") for text in texts)
    return [_distinct(own) for own in found]


def _distinct(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Without empty texts and repetitions; the first of equal ones stays, and so does the plain caption."""
    first: dict[str, Candidate] = {}
    for place, one in enumerate(candidates):
        text = " ".join(one.text.split())
        if text or place == 0:
            first.setdefault(text, Candidate(text, one.source))
    return list(first.values())


def read_candidates(path: Path, ids: Sequence[str]) -> list[list[str]]:
    """The captions that a file has for these pictures, in their order; pictures may have none.

    Args:
        path: captions in any form of `evaluation.caption_files`, such as JSONL rows with `image` and `captions`.
        ids: the pictures' paths.
    """
    captions = read_captions(path, ragged=True)
    try:
        image_of = match_ids(captions, [Record(id, PurePath(id).name, "test", ()) for id in ids])
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    if not image_of:
        raise DataError(f"{path}: has no captions of these pictures ('{next(iter(captions))}' is none of them)")
    found: dict[str, list[str]] = {image_of[id]: texts for id, texts in captions.items() if id in image_of}
    return [found.get(id, []) for id in ids]
