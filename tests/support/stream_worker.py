"""Kills long work with SIGKILL again and again, and continues it until it is finished.

    python -m support.stream_worker WORK OUT SEED

Children are forked, so that a life costs no imports. A child dies at one of the times when it flushes a file to the
disk, before or after, as the seed says; so no test depends on the speed of the machine. The result in OUT/killed must
be equal, to the last bit, to that of a child that was never killed, in OUT/straight.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from support.tiny import make_captioner, make_data, make_retriever
from tellapart.data import neighbours
from tellapart.data.batches import BatchSource
from tellapart.data.prepare import Prepared
from tellapart.decoding.settings import DecodingSettings
from tellapart.evaluation import hard_negatives, retrieval, retrieval_entropy, run_captions, self_retrieval
from tellapart.files import Pieces, write_json
from tellapart.models import write_model
from tellapart.objectives import reference_scores
from tellapart.objectives.base import Processes
from tellapart.recipe import Recipe
from tellapart.run import Run

SPOKEN = ["a red house", "two", "a red house near a tree", "", "two blue car", "tree"] * 2


def score_true_pairs(folder: Path) -> None:
    reference_scores.BLOCK, reference_scores.AT_ONCE = 1, 1
    source = BatchSource(*make_data(), "train", 4)
    scores = reference_scores.reference_scores(make_captioner(seed=2), source, Processes(), folder)
    np.save(folder / "result.npy", scores.numpy())


def find_hard_negatives(folder: Path) -> None:
    """Writes each caption that is embedded to the file `embedded`."""
    hard_negatives.IMAGES, hard_negatives.CAPTIONS = 1, 3
    retrieval.BLOCK = retrieval.AT_ONCE = 2
    dataset, store = make_data()
    prepared, retriever = Prepared(dataset, store, folder), make_retriever(seed=1)
    embed = retriever.embed_texts

    def embed_texts(captions: list[str]) -> torch.Tensor:
        with open(folder / "embedded", "a") as file:
            file.write("".join(f"{caption}\n" for caption in captions))
        return embed(captions)

    retriever.embed_texts = embed_texts
    likely = hard_negatives.likely_captions(retriever, prepared, "train", 0.3, folder)
    assert not list(folder.glob("vectors-*")), "they are removed at the end"
    np.save(folder / "result.npy", likely)


def rank_images(folder: Path) -> None:
    self_retrieval.SHARD, self_retrieval.PAIRS = 2, 5
    _, store = make_data()
    found = self_retrieval.self_retrieval_part(make_captioner(seed=1), store, range(12), SPOKEN, folder, shown=2)
    assert found is not None
    np.savez(folder / "result.npz", **{key: np.asarray(value) for key, value in vars(found).items()})


def find_neighbours(folder: Path) -> None:
    neighbours.CHUNK, neighbours.KEPT_FROM = 2, 1
    _, store = make_data()
    store.folder = folder
    np.save(folder / "result.npy", neighbours.nearest_in_store(store, range(12), 3))


def measure_entropy(folder: Path) -> None:
    retrieval_entropy.BLOCK = 2
    retriever, model = make_retriever(seed=1, name="coder"), folder / "model"
    if not (model / "model.json").exists():  # it is written last
        model.mkdir(exist_ok=True)
        write_model(retriever, model)
    judge = retrieval_entropy.EntropyJudge(
        model, "tiny", retriever, Prepared(*make_data(), folder), "train", tables=folder
    )
    np.save(folder / "result.npy", judge.kept_entropies(judge.gallery.captions))


def write_captions(folder: Path) -> None:
    run_captions.BLOCK = 1
    dataset, store = make_data()
    recipe = Recipe.load("scenes/adaptive-mle.yaml", budget="smoke")
    run = Run(folder, recipe.model_copy(update={"decoding": DecodingSettings(beam=2, samples=2)}))
    vars(run).update(data=Prepared(dataset, store, folder), model=make_captioner(seed=1))
    ids, pieces = [record.id for record in dataset], Pieces(folder / "unfinished")
    write_json(folder / "result.json", run_captions._caption(run, ids, run.recipe.decoding, pieces))


WORK: dict[str, Callable[[Path], None]] = {
    one.__name__.replace("_", "-"): one
    for one in (
        score_true_pairs,
        find_hard_negatives,
        rank_images,
        find_neighbours,
        measure_entropy,
        write_captions,
    )
}


def live(work: Callable[[Path], None], folder: Path, flushes: int | None, after: bool) -> bool:
    """Run the work in a child that dies at this flush; gives whether it came to the end."""
    child = os.fork()
    if child == 0:
        flush, done = os.fsync, 0

        def deadly(handle: int) -> None:
            nonlocal done
            done += 1
            if done != flushes or after:
                flush(handle)
            if done == flushes:
                os.kill(os.getpid(), signal.SIGKILL)

        os.fsync = deadly
        try:
            work(folder)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0, "a life ended by itself, and not well"
    return os.WIFEXITED(status)


def main(name: str, out: Path, seed: int) -> None:
    torch.set_num_threads(1)
    chance = random.Random(seed)
    for folder in (killed := out / "killed", straight := out / "straight"):
        folder.mkdir(parents=True)
    live(WORK[name], straight, None, after=False)
    deaths = 0
    while not live(WORK[name], killed, chance.randint(4, 9), after=chance.random() < 0.5):
        deaths += 1
        assert deaths < 100, "it does not get on"
    (result,) = (path.name for path in straight.glob("result.*"))
    assert (killed / result).read_bytes() == (straight / result).read_bytes()
    if (straight / "embedded").exists():  # a death costs one block of two at most
        again, once = (len((folder / "embedded").read_text().splitlines()) for folder in (killed, straight))
        assert again <= once + 2 * deaths, "what was embedded before a death is embedded again"
    print(f"deaths {deaths}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
