"""Pictures with the captions of two runs, in kinds to choose from, and what each word looks at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tellapart.data.images import load_image
from tellapart.data.records import Record
from tellapart.decoding.overlay import attention_maps, overlay
from tellapart.errors import RecipeError
from tellapart.evaluation.compare import ComparedRun
from tellapart.evaluation.people import PEOPLE
from tellapart.pages.base import Pictures, data_address

# Kinds of pictures in the gallery, and the most pictures of each.
KINDS = {"improved": "most improved", "worse": "got worse", "best": "best", "worst": "worst"}
SHOWN = 12
# Pictures whose attention is shown, and the side of each map in pixels.
LOOKED_AT, MAP_SIDE = 4, 160


def caption_gallery(
    pair: tuple[ComparedRun, ComparedRun], records: Sequence[Record], pictures: Pictures
) -> list[dict[str, Any]]:
    """Cards of pictures with `places`: kind -> place of the picture in it, from 0.

    Args:
        pair: the runs, the earlier one first.
        records: the images.
        pictures: their pictures.
    """
    places: dict[int, dict[str, int]] = {}
    for kind, chosen in _chosen(pair).items():
        for place, position in enumerate(chosen):
            places.setdefault(position, {})[kind] = place
    return [
        {"picture": pictures[records[position].id], "says": _says(pair, records[position], position), "places": found}
        for position, found in places.items()
    ]


def _chosen(pair: tuple[ComparedRun, ComparedRun]) -> dict[str, list[int]]:
    """Kind -> positions of its pictures, the first ones first."""
    before, after = (row.evaluation.values("rank") for row in pair)
    # Among equal ranks the agreement with people's captions decides.
    agreement = np.array([row.get("CIDEr", 0.0) for row in pair[1].evaluation.ranked_rows])
    gain = before - after
    orders = {
        "improved": [place for place in np.lexsort((-agreement, -gain)) if gain[place] > 0],
        "worse": [place for place in np.lexsort((agreement, gain)) if gain[place] < 0],
        "best": list(np.lexsort((-agreement, after))),
        "worst": list(np.lexsort((agreement, -after))),
    }
    return {kind: [int(place) for place in orders[kind][:SHOWN]] for kind in KINDS}


def _says(pair: Sequence[ComparedRun], record: Record, position: int) -> list[dict[str, Any]]:
    rows = [(row.label, row.evaluation.rows[position]) for row in pair]
    said = [{"label": label, "caption": row["caption"], "rank": row["rank"]} for label, row in rows]
    return [*said, *({"label": PEOPLE, "caption": one, "rank": None} for one in record.captions[:1])]


def caption_attention(row: ComparedRun, records: Sequence[Record]) -> list[dict[str, Any]]:
    """What the captioner of a run looks at, word by word; nothing for captioners without attention over a grid.

    Shown are the captions with the most different words, which have most to look at.

    Args:
        row: the run.
        records: the images.
    """
    rows = row.evaluation.ranked_rows
    words = np.array([len(set(one["caption"].split())) for one in rows])
    data, captioner = row.run.data, row.run.captioner
    found: list[dict[str, Any]] = []
    for position in np.argsort(-words, kind="stable")[:LOOKED_AT].tolist():
        caption, record = rows[position]["caption"], records[position]
        features = torch.from_numpy(data.store.grid([data.dataset.row(record.id)]))[0].to(captioner.device)
        try:
            (maps,) = attention_maps(captioner, features, [caption])
        except RecipeError:
            return []
        picture = load_image(data.dataset.path(record)).convert("RGB")
        picture.thumbnail((MAP_SIDE, MAP_SIDE))
        found.append(
            {
                "caption": caption,
                "picture": data_address(picture),
                "words": [
                    {
                        "word": one.word,
                        "picture": data_address(overlay(picture, one.weights)),
                        "share": None if one.sentinel is None else round(100 * (1 - one.sentinel)),
                    }
                    for one in maps
                ],
            }
        )
    return found
