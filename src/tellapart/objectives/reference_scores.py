"""ln p of all true pairs of a split under a frozen captioner: scored once, kept in a file, continued if interrupted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tellapart.data.batches import BatchSource
from tellapart.data.blocks import Blocks, open_blocks
from tellapart.decoding.base import Decodable
from tellapart.files import digest_of
from tellapart.models import weights_digest
from tellapart.objectives.base import Processes, log_prob_of_rows

# Images scored in one pass, and images in a block of the file: at most one block per process is lost. The same for all
# recipes and numbers of processes, so that all have the same scores, to the last bit.
AT_ONCE = 32
BLOCK = 256
# Version of the scores; a change of `AT_ONCE` may change their last bits.
FORMAT = 1


@torch.no_grad()
def reference_scores(
    reference: Decodable,
    source: BatchSource,
    processes: Processes,
    folder: Path | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    mirrored: bool = False,
) -> torch.Tensor:
    """ln p(caption | image) of every true pair of a split, in the order of its captions: `[captions]`, float32.

    The file `true-pairs-DIGEST.npy` is named after what decides the scores: the reference's weights, the captions, the
    image features and the precision. Each process scores whole blocks; the first one writes. Memory is one number for
    each pair, besides one pass.

    Args:
        reference: in eval mode.
        source: the split.
        processes: that score together; all of them make this call.
        folder: gets the file; without it nothing is kept.
        on_progress: called with pairs done and pairs in all, in the first process.
        mirrored: with the mirrored images.
    """
    images, captions = len(source.records), len(source.pool.captions)
    starts = range(0, images, BLOCK)
    first = processes.rank == 0
    with ExitStack() as held:
        blocks: Blocks | None = None
        missing = torch.empty(0, dtype=torch.long, device=reference.device)
        if first:
            made_from = _made_from(reference, source) | ({"mirrored": True} if mirrored else {})
            path = None if folder is None else folder / f"true-pairs-{digest_of(made_from)[:16]}"
            rows = source.pool.starts[list(starts)].tolist()
            blocks = held.enter_context(open_blocks(path, made_from, (captions,), np.float32, rows))
            missing = torch.tensor(blocks.missing, dtype=torch.long, device=reference.device)
            if on_progress is not None and len(missing):
                on_progress(blocks.done, captions)
        todo = processes.gather(missing).tolist()
        for turn in (todo[at : at + processes.world] for at in range(0, len(todo), processes.world)):
            own = [starts[number] for number in turn[processes.rank : processes.rank + 1]]
            scored = [_score(reference, source, range(at, min(at + BLOCK, images)), mirrored) for at in own]
            found = processes.gather(torch.cat([torch.zeros(0, device=reference.device), *scored]))
            if blocks is None:
                continue
            values = found.cpu().numpy()
            for number in turn:
                size = blocks.rows(number).stop - blocks.rows(number).start
                blocks.keep(number, values[:size])
                values = values[size:]
            if on_progress is not None:
                on_progress(blocks.done, captions)
        whole = torch.zeros(0) if blocks is None else torch.from_numpy(np.array(blocks.values()))
        return processes.gather(whole.to(reference.device))


def _score(reference: Decodable, source: BatchSource, images: range, mirrored: bool) -> torch.Tensor:
    """The scores of all captions of these images."""
    parts = (images[at : at + AT_ONCE] for at in range(0, len(images), AT_ONCE))
    scores = []
    for part in parts:
        batch = source.true_pairs(np.array(part), mirrored).to(reference.device)
        scores.append(log_prob_of_rows(reference, batch, torch.arange(len(batch.pairs), device=reference.device)))
    return torch.cat(scores).float()


def _made_from(reference: Decodable, source: BatchSource) -> dict[str, Any]:
    """Plain data that decides the scores."""
    store = next(store for store in source.stores if store.encoder.name == reference.encoder.name)
    vocabulary, device = reference.vocabulary, reference.device.type
    mixed = torch.is_autocast_enabled(device)
    return {
        "format": FORMAT,
        "weights": weights_digest(reference.state_dict()),
        "captioner": [reference.name, reference.settings.model_dump(mode="json")],
        "words": [type(vocabulary).__name__, list(vocabulary.tokens), vocabulary.max_words, vocabulary.normaliser],
        "captions": [source.pool.captions, source.pool.counts.tolist()],
        "features": [store.records, store.encoder.as_dict(), store.pictures_digest(source.rows), source.rows],
        "numbers": [device, str(torch.get_autocast_dtype(device)) if mixed else "full"],
    }
