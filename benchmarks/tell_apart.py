"""Do captions of `tellapart tell-apart` find their picture among its nearest neighbours? And at what price?

    .venv/bin/python benchmarks/tell_apart.py --model RUN --retriever RUN --judge RUN --data dataset_coco.json
        [--split test] [--images 1000] [--group-size 5] [--prepared prepared] [--store int8] [--set KEY=VALUE]
        [--tune] [--out FILE.json]

Each picture of the split is in a group with its nearest neighbours in the split, by the pooled features of the
captioner's encoder. A caption succeeds if the judge, a retriever that had no part in making it, ranks its own picture
first in the group; ties count against it. Rows are plain captions, people's captions (the mean over all captions of a
picture), and captions of tell-apart with all its parts and with each part left out.

`gap closed` is (tell-apart − plain) / (people − plain), with a 95 % interval from resampling the pictures. It
means nothing if the judge finds people's captions no better than plain ones.

`--tune` tries weights, and candidates without each of their sources, on this split (use `--split val`, and another
judge than for the final figures). It prints those that succeed most often at 95 % and 90 % of the plain captions'
CIDEr-D; `--out` has them all.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from tellapart.captioners.base import load_captioner
from tellapart.data.images import load_image
from tellapart.data.neighbours import nearest_images
from tellapart.data.prepare import Prepared, prepare
from tellapart.data.settings import DataSettings
from tellapart.describing import own_decoding
from tellapart.files import write_json
from tellapart.metrics import evaluate, tokenize
from tellapart.progress import ProgressLine
from tellapart.retrievers.base import Raw, Retriever, load_retriever, take
from tellapart.telling_apart.candidates import Task, propose
from tellapart.telling_apart.scoring import Scored, Scorer, choose
from tellapart.telling_apart.settings import TellApartSettings
from tellapart.terminal import print_table

# Pictures told apart at once, and pictures embedded at once.
BLOCK, EMBEDDED = 8, 64
RESAMPLES = 2000


class Images:
    """The pictures of a split with their neighbours and features for any model.

    Args:
        prepared: the data with the captioner's features.
        split: the pictures.
        images: only the first so many; neighbours are looked for in the whole split.
        group_size: pictures in a group.
    """

    def __init__(self, prepared: Prepared, split: str, images: int | None, group_size: int) -> None:
        self.prepared = prepared
        self.records = prepared.dataset.split(split)
        self.rows = [prepared.dataset.row(record.id) for record in self.records]
        self.neighbours = nearest_images(prepared.store.pooled(self.rows), group_size - 1)
        self.wanted = range(min(images or len(self.records), len(self.records)))
        # Only pictures of a group are ever ranked; a judge with a slow encoder reads no others.
        self.places = sorted({one for place in self.wanted for one in self.group(place)})
        self.at = {place: row for row, place in enumerate(self.places)}
        self.people = [self.records[place].captions for place in self.wanted]

    def group(self, place: int) -> list[int]:
        """A picture and its neighbours."""
        return [place, *self.neighbours[place].tolist()]

    def features(self, places: Sequence[int]) -> torch.Tensor:
        """The captioner's features."""
        return torch.from_numpy(self.prepared.store.grid([self.rows[place] for place in places]))

    @torch.no_grad()
    def embed(self, retriever: Retriever) -> Raw:
        """Raw embeddings of `places` under a retriever; if it has another encoder, pictures are encoded now."""
        same = retriever.encoder == self.prepared.store.encoder
        encoder = None if same else retriever.open_encoder()
        line, parts = ProgressLine(f"embedding with {retriever.encoder.name}", " images"), []
        for start in range(0, len(self.places), EMBEDDED):
            places = self.places[start : start + EMBEDDED]
            if encoder is None:
                features = self.features(places)
            else:
                paths = [self.prepared.dataset.path(self.records[place]) for place in places]
                features = torch.from_numpy(encoder.encode([load_image(path, at_least=encoder.size) for path in paths]))
            parts.append(retriever.embed_images(features))
            line.update(start + len(places), len(self.places))
        if isinstance(parts[0], tuple):
            return tuple(torch.cat(columns) for columns in zip(*parts, strict=True))
        return torch.cat(parts)  # type: ignore[arg-type]


class Judge:
    """Whether captions find their picture in its group, under a retriever."""

    def __init__(self, retriever: Retriever, images: Images) -> None:
        self.retriever, self.images = retriever, images
        self.embedded = images.embed(retriever)
        self._known: dict[tuple[int, str], bool] = {}

    @torch.no_grad()
    def finds(self, place: int, captions: Sequence[str]) -> list[bool]:
        new = [text for text in dict.fromkeys(captions) if (place, text) not in self._known]
        if new:
            own = take(self.embedded, torch.tensor([self.images.at[one] for one in self.images.group(place)]))
            scores = self.retriever.similarity(own, self.retriever.embed_texts(new))
            first = (scores[1:] < scores[0] - 1e-6 * scores.abs().amax(dim=0)).all(dim=0).tolist()
            self._known |= {(place, text): found for text, found in zip(new, first, strict=True)}
        return [self._known[place, text] for text in captions]

    def success(self, captions: Sequence[Sequence[str]]) -> NDArray[np.float64]:
        """The share of each picture's captions that find it."""
        return np.array(
            [np.mean(self.finds(place, own)) for place, own in zip(self.images.wanted, captions, strict=True)]
        )


def score_all(
    chosen: argparse.Namespace, images: Images, retriever: Retriever | None, settings: TellApartSettings
) -> list[list[Scored]]:
    """Scored candidates of every picture."""
    captioner, decoding = load_captioner(chosen.model), own_decoding(chosen.model)
    line, found = ProgressLine("telling apart", " images"), []
    other = None if retriever is None or retriever.encoder == captioner.encoder else _Encoded(images, retriever)
    for start in range(0, len(images.wanted), BLOCK):
        block = images.wanted[start : start + BLOCK]
        groups = [images.group(place) for place in block]
        pictures = list(dict.fromkeys(itertools.chain.from_iterable(groups)))
        at = {place: number for number, place in enumerate(pictures)}
        tasks = [Task(at[own[0]], tuple(at[place] for place in own[1:])) for own in groups]
        features = images.features(pictures)
        scorer = Scorer(captioner, features, retriever, features if other is None else other(pictures))
        candidates = propose(captioner, features, tasks, settings, decoding, [images.rows[place] for place in block])
        found += scorer.score(tasks, candidates, settings)
        line.update(len(found), len(images.wanted))
    return found


class _Encoded:
    """Features of pictures for a retriever with its own encoder."""

    def __init__(self, images: Images, retriever: Retriever) -> None:
        self.images, self.encoder = images, retriever.open_encoder()

    def __call__(self, places: Sequence[int]) -> torch.Tensor:
        paths = [self.images.prepared.dataset.path(self.images.records[place]) for place in places]
        return torch.from_numpy(self.encoder.encode([load_image(path, at_least=self.encoder.size) for path in paths]))


class Measure:
    """Success and CIDEr-D of captions, one for each picture."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.references = {str(place): tokenize(list(own)) for place, own in enumerate(judge.images.people)}

    def cider(self, captions: Sequence[str]) -> float:
        said = {str(place): text for place, text in enumerate(tokenize(list(captions)))}
        return evaluate(self.references, said, tokenized=True, metrics=["cider"]).corpus["CIDEr"]

    def success(self, captions: Sequence[str]) -> NDArray[np.float64]:
        return self.judge.success([[text] for text in captions])


Keep = Callable[[Scored], bool]


def select(scored: Sequence[Sequence[Scored]], settings: TellApartSettings, keep: Keep = lambda _: True) -> list[str]:
    """The chosen caption of each picture, among the plain one and those kept."""
    return [
        choose([one for one in own if one.candidate.source == "plain" or keep(one)], settings).candidate.text
        for own in scored
    ]


def but(*sources: str) -> Keep:
    """Candidates of all sources but these."""
    return lambda one: one.candidate.source not in sources


def ablations(settings: TellApartSettings) -> Iterator[tuple[str, TellApartSettings, Keep]]:
    """What is measured: a name, the weights, and which candidates take part."""

    def only(*sources: str) -> Keep:
        return lambda one: one.candidate.source in sources

    def without(part: str) -> TellApartSettings:
        return settings.model_copy(update={part: 0.0})

    yield "tell apart", settings, lambda _: True
    yield "without contrast while decoding", settings, but("contrast")
    yield "without samples", settings, but("sample")
    yield "only beams, reordered", settings, only("beam")
    yield "without the retriever's score", without("retrieval"), lambda _: True
    if settings.likelihood:
        yield "without the captioner as listener", without("likelihood"), lambda _: True
    yield "without fluency", without("fluency"), lambda _: True
    yield "without truth", without("truth"), lambda _: True


def gap_closed(
    told: NDArray[np.float64], plain: NDArray[np.float64], people: NDArray[np.float64]
) -> tuple[float, float, float]:
    """Share of the gap between plain and people's captions, with its 95 % interval."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(plain), (RESAMPLES, len(plain)))
    ours, gap = (told - plain)[drawn].mean(axis=1), (people - plain)[drawn].mean(axis=1)
    low, high = np.nanpercentile(ours / np.where(gap == 0, np.nan, gap), [2.5, 97.5])
    return float((told - plain).mean() / (people - plain).mean()), float(low), float(high)


def difference(told: NDArray[np.float64], plain: NDArray[np.float64]) -> str:
    """How many points more captions succeed than plain ones, with the 95 % interval over pictures."""
    drawn = np.random.default_rng(0).integers(0, len(plain), (RESAMPLES, len(plain)))
    low, high = np.percentile(100 * (told - plain)[drawn].mean(axis=1), [2.5, 97.5])
    return f"{100 * (told - plain).mean():+.1f} [{low:+.1f}, {high:+.1f}]"


def tune(
    scored: Sequence[Sequence[Scored]], settings: TellApartSettings, measure: Measure, plain: float, out: Path | None
) -> None:
    """Try weights and sources of candidates; print the best at two prices, write all to `out`."""
    extra = sorted({one.candidate.source for own in scored for one in own} - {"plain", "beam"})
    left_out = dict.fromkeys([(), *((source,) for source in extra), tuple(extra)])
    # The captioner as listener is slow, so it has a weight only where `--set likelihood=…` asks for it.
    likelihoods = (0.0, 0.03, 0.1, 0.3) if settings.likelihood else (0.0,)
    tried = []
    for sources in left_out:
        for retrieval, likelihood, truth in itertools.product((0.3, 0.6, 1.0, 1.5, 2.0), likelihoods, (0.0, 0.1, 0.3)):
            weights = {"retrieval": retrieval, "likelihood": likelihood, "truth": truth}
            captions = select(scored, settings.model_copy(update=weights), but(*sources))
            row = {"without": " and ".join(sources) or "–", **weights}
            tried.append((float(measure.success(captions).mean()), measure.cider(captions) / plain, row))
    for price in (0.95, 0.9):
        allowed = sorted((row for row in tried if row[1] >= price), key=lambda row: row[:2], reverse=True)
        print_table(
            [*tried[0][2], "found", "CIDEr-D of plain"],
            [[*map(str, row.values()), found, kept] for found, kept, row in allowed[:12]],
            f"\nAt {price:.0%} of the plain captions' CIDEr-D",
        )
    if out is not None:
        write_json(out, [{**row, "found": found, "CIDEr-D of plain": kept} for found, kept, row in tried])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--retriever", type=Path)
    parser.add_argument("--judge", type=Path, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--images", type=int)
    parser.add_argument("--group-size", type=int, default=5)
    parser.add_argument("--prepared", default="prepared")
    parser.add_argument("--store", default="float16")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    settings = TellApartSettings.parse({}, chosen.set)
    encoder = load_captioner(chosen.model).encoder.name
    data = DataSettings(source=chosen.data, encoder=encoder, prepared=chosen.prepared, store=chosen.store)
    images = Images(prepare(data), chosen.split, chosen.images, chosen.group_size)
    retriever = None if chosen.retriever is None else load_retriever(chosen.retriever)
    began = time.process_time()
    scored = score_all(chosen, images, retriever, settings)
    seconds = (time.process_time() - began) / len(scored)
    measure = Measure(Judge(load_retriever(chosen.judge), images))

    plain = [own[0].candidate.text for own in scored]
    of_plain, of_people = measure.success(plain), measure.judge.success(images.people)
    cider = measure.cider(plain)
    if chosen.tune:
        tune(scored, settings, measure, cider, chosen.out)
        return
    rows: list[list[str | float | None]] = [
        ["plain", float(of_plain.mean()), None, 0.0, None, cider, 1.0],
        ["people", float(of_people.mean()), difference(of_people, of_plain), 1.0, None, None, None],
    ]
    for name, weights, keep in ablations(settings):
        captions = select(scored, weights, keep)
        found, own = measure.success(captions), measure.cider(captions)
        share, low, high = gap_closed(found, of_plain, of_people)
        more = difference(found, of_plain)
        rows.append([name, float(found.mean()), more, share, f"{low:.2f} to {high:.2f}", own, own / cider])
    headings = ["", "finds its picture", "points more than plain", "gap closed", "95 %", "CIDEr-D", "of plain"]
    print(
        f"{len(scored)} pictures of {images.prepared.dataset.name}, {chosen.split}, in groups of {chosen.group_size}; "
        f"{np.mean([len(own) for own in scored]):.0f} candidates and {seconds:.2f} CPU seconds a picture"
    )
    print_table(headings, rows)
    if chosen.out is not None:
        about = {"model": str(chosen.model), "judge": str(chosen.judge), "settings": settings.model_dump(mode="json")}
        write_json(
            chosen.out, {**about, "rows": [dict(zip(["name", *headings[1:]], row, strict=True)) for row in rows]}
        )


if __name__ == "__main__":
    main()
