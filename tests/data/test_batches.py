"""Batches are functions of (seed, epoch, step), and their pairs are laid out as the objectives read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tellapart.data.batches import Batch, BatchSource, Kind, Pairs
from tellapart.data.features import FeatureStore
from tellapart.data.records import Dataset, Record
from tellapart.data.settings import NegativeSettings
from tellapart.encoders.base import EncoderIdentity
from tellapart.errors import DataError

IDENTITY = EncoderIdentity("tiny", "0", "none", regions=2, width=3)
CAPTIONS = (1, 4, 2, 0, 3, 1, 5, 2, 1, 3, 2, 0)
IN_TRAIN = [n for n, captions in enumerate(CAPTIONS) if n != 4 and captions]

Make = Callable[..., BatchSource]


@pytest.fixture
def make() -> Make:
    """Twelve images: two without captions, one in another split. Image n has features n, captions 'n.0', 'n.1', …"""
    records = tuple(
        Record(f"image-{n}", f"{n}.png", "val" if n == 4 else "train", tuple(f"{n}.{k}" for k in range(count)))
        for n, count in enumerate(CAPTIONS)
    )
    dataset = Dataset("tiny", Path(), records)
    grid = np.arange(len(records), dtype=np.float16)[:, None, None] * np.ones((1, 3, 3), dtype=np.float16)

    def source(split: str = "train", images_per_batch: int = 4, **options: int | None) -> BatchSource:
        store = FeatureStore(grid, IDENTITY, dataset.digest)
        return BatchSource(dataset, store, split, images_per_batch, **options)  # type: ignore[arg-type]

    return source


def same(one: Batch, other: Batch) -> bool:
    return (
        (one.ids, one.others) == (other.ids, other.others)
        and one.captions == other.captions
        and torch.equal(one.features["tiny"], other.features["tiny"])
        and all(torch.equal(a, b) for a, b in zip(vars(one.pairs).values(), vars(other.pairs).values(), strict=True))
    )


def test_an_epoch_visits_each_image_with_captions_once(make: Make) -> None:
    source = make()
    assert len(IN_TRAIN) == 9
    assert len(source) == 3
    for epoch in range(3):
        batches = [source.at(epoch * 3 + position) for position in range(3)]
        assert [len(batch.ids) for batch in batches] == [4, 4, 1], "the last batch is a short one"
        assert sorted(id for batch in batches for id in batch.ids) == sorted(f"image-{n}" for n in IN_TRAIN)
        captions = sorted(caption for batch in batches for caption in batch.captions)
        assert captions == sorted(f"{n}.{k}" for n in IN_TRAIN for k in range(CAPTIONS[n]))


def test_the_first_images_of_a_split_may_be_enough(make: Make) -> None:
    source = make(most=5)
    ids = [id for batch in source.epoch() for id in batch.ids]
    assert ids == [f"image-{n}" for n in IN_TRAIN[:5]], "of those with captions"
    assert len(make(most=100).records) == len(IN_TRAIN)


def test_any_step_of_a_fresh_source_is_the_same(make: Make) -> None:
    options = {"captions_per_image": 2, "negatives": 3, "seed": 5}
    source = make(**options)
    in_order = [source.at(step) for step in range(9)]
    for step in (8, 0, 5, 3):
        assert same(make(**options).at(step), in_order[step])


@pytest.mark.parametrize("bucket_batches", [1, 2])
def test_the_order_is_made_once_an_epoch(make: Make, monkeypatch: pytest.MonkeyPatch, bucket_batches: int) -> None:
    made: list[int] = []
    real = BatchSource._make_order

    def counted(source: BatchSource, epoch: int) -> np.ndarray:
        made.append(epoch)
        return real(source, epoch)

    monkeypatch.setattr(BatchSource, "_make_order", counted)
    options = {"captions_per_image": 2, "negatives": 3, "image_negatives": 2, "bucket_batches": bucket_batches}
    source = make(parts=2, **options)
    in_order = {(step, part): source.at(step, part) for step in range(9) for part in range(2)}
    assert made == [0, 1, 2]
    list(source.epoch())
    assert made == [0, 1, 2], "a pass in record order needs none"
    jumping = make(parts=2, **options)
    for step in (8, 0, 5, 3, 4, 1, 7):
        for part in range(2):
            assert same(jumping.at(step, part), in_order[step, part]), f"step {step} from any other step"


def test_the_kept_order_cannot_be_changed(make: Make) -> None:
    with pytest.raises(ValueError, match="read-only"):
        make()._order(0)[0] = 1


def test_order_and_draws_change_with_seed_and_epoch(make: Make) -> None:
    orders = {
        tuple(id for position in range(3) for id in make(seed=seed).at(3 * epoch + position).ids)
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(orders) == 9
    # The same images in the same order: only the draws differ.
    source = make(images_per_batch=9, captions_per_image=1, negatives=2)
    draws = {tuple(source.at(epoch, shuffle=False).captions) for epoch in range(5)}
    assert len(draws) == 5


def test_without_shuffling_records_keep_their_order(make: Make) -> None:
    ids = [id for batch in make().epoch() for id in batch.ids]
    assert ids == [f"image-{n}" for n in IN_TRAIN]
    shuffled = [id for batch in make().epoch(shuffle=True) for id in batch.ids]
    assert shuffled != ids
    assert shuffled == [id for step in range(3) for id in make().at(step).ids]


def test_features_and_captions_are_those_of_the_images(make: Make) -> None:
    for batch in make(negatives=2).epoch(shuffle=True):
        numbers = torch.tensor([float(id.removeprefix("image-")) for id in batch.ids])
        assert torch.equal(batch.features["tiny"], numbers[:, None, None].expand(-1, 2, 3))
        for row in batch.pairs.of(Kind.POSITIVE).tolist():
            number = batch.ids[batch.pairs.image_row[row]].removeprefix("image-")
            assert batch.captions[batch.pairs.caption_row[row]].startswith(f"{number}.")


def test_some_captions_of_each_image(make: Make) -> None:
    source = make(captions_per_image=2)
    seen = set()
    for step in range(60):
        batch = source.at(step)
        for image, id in enumerate(batch.ids):
            number = int(id.removeprefix("image-"))
            drawn = [batch.captions[i] for i in batch.pairs.caption_row[batch.pairs.image_row == image].tolist()]
            assert len(drawn) == min(2, CAPTIONS[number])
            assert len(set(drawn)) == len(drawn), "no caption twice"
            seen.update(drawn)
    assert seen == {f"{n}.{k}" for n in IN_TRAIN for k in range(CAPTIONS[n])}, "in time all of them"


@pytest.mark.parametrize("captions_per_image", [None, 2])
def test_negatives_follow_the_positives(make: Make, captions_per_image: int | None) -> None:
    many = 3
    for batch in make(negatives=many, captions_per_image=captions_per_image).epoch(shuffle=True):
        pairs = batch.pairs
        count = len(pairs.of(Kind.POSITIVE))
        assert len(pairs) == len(batch.captions) == count * (1 + many)
        assert pairs.kind.tolist() == [Kind.POSITIVE] * count + [Kind.NEGATIVE] * count * many
        assert pairs.of(Kind.NEGATIVE).tolist() == list(range(count, len(pairs)))
        assert len(pairs.of(Kind.POSITIVE, Kind.NEGATIVE)) == len(pairs)
        assert len(pairs.of(Kind.DISTRACTOR)) == 0
        image_of_negative = pairs.image_row[count:].view(count, many)
        assert torch.equal(image_of_negative, pairs.image_row[:count, None].expand(-1, many))
        for row in pairs.of(Kind.NEGATIVE).tolist():
            number = batch.ids[pairs.image_row[row]].removeprefix("image-")
            assert not batch.captions[pairs.caption_row[row]].startswith(f"{number}.")


def test_positives_do_not_depend_on_the_number_of_negatives(make: Make) -> None:
    """A control without negatives sees the same images and captions as CL does."""
    for step in range(6):
        with_some, without = (make(captions_per_image=2, negatives=k).at(step) for k in (5, 0))
        assert with_some.ids == without.ids
        assert with_some.captions[: len(without.captions)] == without.captions
        assert len(without.pairs.of(Kind.NEGATIVE)) == 0


def test_image_negatives_pair_the_true_captions_with_other_images_of_the_batch(make: Make) -> None:
    many = 2
    for batch in make(negatives=1, image_negatives=many, captions_per_image=2).epoch(shuffle=True):
        pairs, images = batch.pairs, [*batch.ids, *batch.others]
        count = len(pairs.of(Kind.POSITIVE))
        rows = pairs.of(Kind.IMAGE_NEGATIVE)
        assert rows.tolist() == list(range(2 * count, 2 * count + many * count)), "they come last"
        assert pairs.caption_row[rows].tolist() == np.repeat(np.arange(count), many).tolist()
        assert len(batch.captions) == 2 * count, "no captions of their own"
        for row in rows.tolist():
            number = images[pairs.image_row[row]].removeprefix("image-")
            assert not batch.captions[pairs.caption_row[row]].startswith(f"{number}.")
        if len(batch.ids) == 4:
            assert not batch.others
        else:  # the short last batch, filled up with three images of the split
            assert 1 <= len(batch.others) <= 3


def test_captions_do_not_depend_on_image_negatives(make: Make) -> None:
    for step in range(6):
        with_some, without = (make(captions_per_image=2, negatives=2, image_negatives=k).at(step) for k in (3, 0))
        assert (with_some.ids, with_some.captions) == (without.ids, without.captions)
        assert not without.others
        assert len(without.pairs.of(Kind.IMAGE_NEGATIVE)) == 0


def test_a_caption_of_every_image_has_no_other_image() -> None:
    records = (Record("one", "1.png", "train", ("a cat", "a dog")), Record("two", "2.png", "train", ("A dog.",)))
    dataset = Dataset("same", Path(), records)
    store = FeatureStore(np.ones((2, 3, 3), dtype=np.float16), IDENTITY, dataset.digest)
    with pytest.raises(DataError, match="every image has the caption 'a dog'"):
        BatchSource(dataset, store, "train", 2, image_negatives=1)


def test_negatives_come_from_the_same_split(make: Make) -> None:
    source = make(negatives=20)
    drawn = {caption.split(".")[0] for batch in source.epoch() for caption in batch.captions}
    assert drawn == {str(n) for n in IN_TRAIN}


def test_once_computes_once(make: Make) -> None:
    batch = make().at(0)
    calls = []

    def compute() -> object:
        calls.append(1)
        return object()

    first = batch.once(("key", 1), compute)
    assert batch.once(("key", 1), compute) is first
    assert len(calls) == 1
    assert batch.once(("key", 2), compute) is not first
    assert make().at(0).once(("key", 1), compute) is not first, "a batch of its own remembers nothing"
    none = [batch.once("none", lambda: calls.append(1)) for _ in range(3)]
    assert none == [None] * 3
    assert len(calls) == 4


def test_moved_to_a_device(make: Make) -> None:
    batch = make(negatives=1).at(0)
    moved = batch.to(torch.device("meta"))
    assert moved.ids == batch.ids
    assert moved.captions == batch.captions
    assert {t.device.type for t in (*moved.features.values(), *vars(moved.pairs).values())} == {"meta"}
    assert isinstance(moved.pairs, Pairs)


def test_an_unknown_split(make: Make) -> None:
    with pytest.raises(DataError, match="no image is in the split 'test'"):
        make("test")


def test_an_image_that_has_all_captions_is_named_at_the_start() -> None:
    records = (Record("one", "1.png", "train", ("a cat", "a dog")), Record("two", "2.png", "train", ("A dog.",)))
    dataset = Dataset("same", Path(), records)
    store = FeatureStore(np.ones((2, 3, 3), dtype=np.float16), IDENTITY, dataset.digest)
    BatchSource(dataset, store, "train", 2)
    with pytest.raises(DataError, match="captions of the image 'one', so it has no negatives"):
        BatchSource(dataset, store, "train", 2, negatives=1)


# --- several processes, buckets, hard negatives ---------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**31),
    step=st.integers(0, 40),
    world=st.integers(1, 5),
    negatives=st.integers(0, 3),
    image_negatives=st.integers(0, 3),
    captions=st.one_of(st.none(), st.integers(1, 3)),
    bucket=st.integers(1, 4),
)
def test_processes_together_see_what_one_sees(
    seed: int, step: int, world: int, negatives: int, image_negatives: int, captions: int | None, bucket: int
) -> None:
    """Any step of any seed, from fresh objects: the images, captions and negatives of all ranks are those of one."""
    options = {
        "seed": seed,
        "negatives": negatives,
        "image_negatives": image_negatives,
        "captions_per_image": captions,
        "bucket_batches": bucket,
    }
    whole = source_of_images(**options).at(step)
    assert same(whole, source_of_images(**options).at(step))
    parts = [source_of_images(**options, rank=rank, world=world).at(step) for rank in range(world)]
    assert sorted(id for part in parts for id in part.ids) == sorted(whole.ids)

    def pairs_of(batch: Batch) -> list[tuple[str, str, int]]:
        rows = zip(
            batch.pairs.image_row.tolist(), batch.pairs.caption_row.tolist(), batch.pairs.kind.tolist(), strict=True
        )
        images = [*batch.ids, *batch.others]
        return [(images[image], batch.captions[caption], kind) for image, caption, kind in rows]

    assert sorted(pair for part in parts for pair in pairs_of(part)) == sorted(pairs_of(whole))
    for part in parts:
        count = len(part.pairs.of(Kind.POSITIVE))
        negative = part.pairs.image_row[part.pairs.of(Kind.NEGATIVE)].view(count, negatives)
        assert (negative == part.pairs.image_row[:count, None]).all(), "K each, in the positives' order"
        other = part.pairs.caption_row[part.pairs.of(Kind.IMAGE_NEGATIVE)].view(count, image_negatives)
        assert (other == part.pairs.caption_row[:count, None]).all()
        numbers = torch.tensor([float(id) for id in (*part.ids, *part.others)])
        assert torch.equal(part.features["tiny"], numbers[:, None, None].expand(-1, 2, 3))


@given(seed=st.integers(0, 2**31), step=st.integers(0, 40), world=st.integers(1, 4), parts=st.integers(1, 3))
def test_shares_in_turn_are_the_whole_batch_in_its_order(seed: int, step: int, world: int, parts: int) -> None:
    """Part by part and within a part by process: so gathered keys and noise are what one process has."""
    whole = source_of_images(seed=seed, negatives=1).at(step)
    shares = [
        source_of_images(seed=seed, negatives=1, rank=rank, world=world, parts=parts).at(step, part)
        for part in range(parts)
        for rank in range(world)
    ]
    assert [id for share in shares for id in share.ids] == whole.ids
    assert sum(len(share.pairs) for share in shares) == len(whole.pairs)
    noise = whole.uniform("words", 3, 2)
    assert noise.shape == (len(whole.ids), 3, 2)
    assert torch.equal(torch.cat([share.uniform("words", 3, 2) for share in shares]), noise)
    assert ((noise >= 0) & (noise < 1)).all()


def test_noise_differs_by_name_step_and_seed() -> None:
    source = source_of_images(seed=1)
    noise = source.at(0).uniform("words", 5)
    assert torch.equal(source.at(0).uniform("words", 5), noise)
    for other in (source.at(0).uniform("images", 5), source.at(1).uniform("words", 5)):
        assert not torch.equal(other, noise)
    assert not torch.equal(source_of_images(seed=2).at(0).uniform("words", 5), noise)


def test_what_was_computed_can_be_forgotten(make: Make) -> None:
    batch = make().at(0)
    calls: list[int] = []
    for _ in range(2):
        batch.once("key", lambda: calls.append(1))
    assert len(calls) == 1
    batch.forget()
    batch.once("key", lambda: calls.append(1))
    assert len(calls) == 2


def source_of_images(images: int = 23, **options: object) -> BatchSource:
    """Images whose captions are 1 to 7 words long; features and captions name the image."""
    records = tuple(
        Record(str(n), f"{n}.png", "train", tuple(" ".join([f"{n}.{k}"] * (1 + n % 7)) for k in range(1 + n % 4)))
        for n in range(images)
    )
    dataset = Dataset("many", Path(), records)
    features = np.arange(images, dtype=np.float16)[:, None, None] * np.ones((1, 3, 3), dtype=np.float16)
    return BatchSource(dataset, FeatureStore(features, IDENTITY, dataset.digest), "train", 4, **options)  # type: ignore[arg-type]


def test_buckets_put_captions_of_like_length_together() -> None:
    def spread(bucket: int) -> float:
        source = source_of_images(200, bucket_batches=bucket)
        lengths = [[len(caption.split()) for caption in source.at(step).captions] for step in range(len(source))]
        return float(np.mean([max(batch) - min(batch) for batch in lengths]))

    assert spread(25) < 0.4 * spread(1)


def test_buckets_visit_every_image_once_and_in_another_order_each_epoch() -> None:
    source = source_of_images(bucket_batches=3)
    epochs = [[source.at(epoch * len(source) + at).ids for at in range(len(source))] for epoch in range(2)]
    for batches in epochs:
        assert sorted(id for ids in batches for id in ids) == sorted(str(n) for n in range(23))
        assert [len(ids) for ids in batches] == [4, 4, 4, 4, 4, 3]
    assert epochs[0] != epochs[1]


def pairs_alike(images_per_batch: int, **options: int) -> BatchSource:
    """Twenty images; 2i and 2i + 1 look alike. In the first epoch negatives are uniform, then they are hard."""
    records = tuple(Record(str(n), f"{n}.png", "train", (f"caption {n}",)) for n in range(20))
    dataset = Dataset("pairs", Path(), records)
    features = np.repeat(np.eye(10, dtype=np.float16), 2, axis=0)[:, None].repeat(3, axis=1)
    identity = EncoderIdentity("tiny", "0", "none", regions=2, width=10)
    return BatchSource(
        dataset,
        FeatureStore(features, identity, dataset.digest),
        "train",
        images_per_batch,
        negative_settings=NegativeSettings(hard=1.0, top=0.05, ramp_epochs=1),
        **options,
    )


def test_hard_negatives_are_used_where_the_recipe_asks_for_them() -> None:
    source = pairs_alike(20, negatives=3)
    easy, hard = source.at(0), source.at(1)  # one batch is an epoch
    for batch, expected in ((easy, False), (hard, True)):
        rows = batch.pairs.of(Kind.NEGATIVE)
        said = [batch.captions[row] for row in batch.pairs.caption_row[rows].tolist()]
        images = [int(batch.ids[row]) for row in batch.pairs.image_row[rows].tolist()]
        alike = [caption == f"caption {image ^ 1}" for caption, image in zip(said, images, strict=True)]
        assert all(alike) == expected


@pytest.mark.parametrize("world", [1, 3])
def test_hard_image_negatives_may_be_outside_the_batch(world: int) -> None:
    outside = 0
    for rank in range(world):
        source = pairs_alike(4, image_negatives=3, rank=rank, world=world)
        for step in range(5, 10):  # the second epoch
            batch = source.at(step)
            images = [int(id) for id in (*batch.ids, *batch.others)]
            assert len(set(images)) == len(images)
            rows = batch.pairs.of(Kind.IMAGE_NEGATIVE)
            assert len(rows) == 3 * len(batch.ids)
            for row in rows.tolist():
                image = images[batch.pairs.image_row[row]]
                assert batch.captions[batch.pairs.caption_row[row]] == f"caption {image ^ 1}"
                assert batch.features["tiny"][batch.pairs.image_row[row], 0, image // 2] == 1
            outside += len(batch.others)
    assert outside > 0
