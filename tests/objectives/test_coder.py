"""CODER's whole loss against a naive loop written from eq. 3–8; its switches, banks and prototypes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional

from support.tiny import IDENTITY, make_data, make_retriever
from tellapart.data.batches import Batch, BatchSource
from tellapart.errors import RecipeError
from tellapart.objectives.base import Epoch, Progress, Roles
from tellapart.objectives.coder import CoderObjective, CoderObjectiveSettings
from tellapart.objectives.memory import KeyQueue
from tellapart.objectives.prototypes import NO_CLUSTER, spherical_kmeans
from tellapart.progress import ProgressLine
from tellapart.retrievers.coder import Coder

MU, GAMMA, EPSILON = 0.1, 0.3, 0.1
ALL = {"bank": 7, "diversity_of_bank": True, "prototypes": 3}


def source(images: int = 5) -> BatchSource:
    return BatchSource(*make_data(), "train", images)


def retriever(concepts: int = 4) -> Coder:
    """No noise: what is compared must be computed twice alike."""
    made: Coder = make_retriever(seed=1, name="coder", concepts=concepts, drop_regions=0.0, disturb_words=0.0)
    return made


def objective(concepts: int = 4, **settings: Any) -> CoderObjective:
    torch.manual_seed(2)
    made = CoderObjective(CoderObjectiveSettings(**settings), Roles(retriever(concepts)))
    if made.bank is not None:  # five of seven slots, two of them of images that batches hold
        keys = functional.normalize(torch.randn(2, 5, made.bank.texts.keys.shape[1]), dim=2)
        # An image of two captions enters once: the queues differ.
        images = torch.tensor([0, 1, 90, 91, 92])
        made.bank.enqueue(keys[0, :4], images[:4], keys[1], images[[0, 0, 1, 2, 3]])
    made.prepare_for(source())
    if made.prototypes is not None:  # every third pair has no cluster
        pairs = torch.arange(len(made.prototypes.assigned))
        random = torch.randn(2, len(pairs), made.prototypes.centres.shape[1])
        made.prototypes.keep(
            random[0, : len(made.prototypes.image_kept)], made.prototypes.image_of_pair.unique(), random[1], pairs
        )
        made.prototypes.cluster()
        made.prototypes.assigned[::3] = NO_CLUSTER
    return made


# --- naive loops ------------------------------------------------------------------------------------------------------


def naive_diversities(rows: list[list[torch.Tensor]]) -> list[float]:
    """Eq. 3 of anchors, given the similarities to their negatives."""
    found = []
    for row in rows:
        values = [float(value.detach()) for value in row]
        mean = sum(values) / max(1, len(values))
        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / max(1, len(values)))
        found.append(1.0 if deviation < 1e-9 else 1 + math.exp(-EPSILON / deviation))
    return [value / max(found) for value in found]


def naive_dcl(positives: list[torch.Tensor], rows: list[list[torch.Tensor]], diversities: list[float]) -> torch.Tensor:
    """Eq. 5, one direction, the mean over anchors; the positive with weight 1."""
    total = torch.zeros(())
    for positive, row, diversity in zip(positives, rows, diversities, strict=True):
        inner = torch.ones(())
        for value in row:
            inner = inner + torch.exp((value - GAMMA) / (MU * diversity))
        total = total + MU * torch.log(inner) - torch.log(1 + positive)
    return total / len(positives)


def naive_losses(made: CoderObjective, batch: Batch) -> dict[str, torch.Tensor]:
    model = made.target
    assert isinstance(model, Coder)
    images, texts = model.embed_images(batch.features[IDENTITY.name]), model.embed_texts(batch.captions)
    owner = batch.pairs.image_row.tolist()
    numbers = batch.image_numbers().tolist()
    pairs = range(len(owner))
    losses: dict[str, torch.Tensor] = {}
    bank = made.bank

    def negatives_of(number: int, queue: KeyQueue) -> list[torch.Tensor]:
        images = queue.images.tolist()
        return [queue.keys[slot] for slot in range(queue.capacity) if images[slot] >= 0 and images[slot] != number]

    for branch, name in ((0, "instance"), (1, "concept")):
        v, w = images[branch], texts[branch]
        positives = [v[owner[p]] @ w[p] for p in pairs]
        to_text = [[v[owner[p]] @ w[q] for q in pairs if owner[q] != owner[p]] for p in pairs]
        to_image = [[v[i] @ w[p] for i in range(len(v)) if i != owner[p]] for p in pairs]
        diversities = [naive_diversities(rows) for rows in (to_text, to_image)]
        if branch == 0 and bank is not None:
            own = [numbers[owner[p]] for p in pairs]
            rows_of_bank = (
                [[v[owner[p]] @ key for key in negatives_of(own[p], bank.texts)] for p in pairs],
                [[w[p] @ key for key in negatives_of(own[p], bank.images)] for p in pairs],
            )
            if made.settings.diversity_of_bank:
                diversities = [
                    [(a + b) / 2 for a, b in zip(of_batch, naive_diversities(rows), strict=True)]
                    for of_batch, rows in zip(diversities, rows_of_bank, strict=True)
                ]
            # The partner is its momentum key; the momentum encoders are still equal to the retriever.
            losses["memory"] = sum(
                (
                    naive_dcl(positives_of, rows, diversity)
                    for positives_of, rows, diversity in zip(
                        (
                            [v[owner[p]] @ w[p].detach() for p in pairs],
                            [v[owner[p]].detach() @ w[p] for p in pairs],
                        ),
                        rows_of_bank,
                        diversities,
                        strict=True,
                    )
                ),
                torch.zeros(()),
            )
        losses[name] = naive_dcl(positives, to_text, diversities[0]) + naive_dcl(positives, to_image, diversities[1])
    if made.prototypes is not None:
        total = torch.zeros(())
        for p in pairs:
            point = (images[0][owner[p]] + texts[0][p]).detach()
            cosines = [float(functional.cosine_similarity(point, centre, dim=0)) for centre in made.prototypes.centres]
            assert batch.places is not None
            label = int(made.prototypes.assigned[batch.places[p]])
            label = cosines.index(max(cosines)) if label == NO_CLUSTER else label
            for vector in (images[1][owner[p]], texts[1][p]):
                total = total - torch.log_softmax(made.prototypes.classifier.weight @ vector, dim=0)[label]
        losses["prototypes"] = total / len(owner)
    return losses


@pytest.mark.parametrize("images", [2, 5])
def test_the_whole_equals_the_naive_loop_in_value_and_gradient(images: int) -> None:
    """Ragged captions, same-image masks in batch and bank, a bank that is not full."""
    made = objective(**ALL)
    batch = source(images).at(0)
    assert len(set(batch.pairs.image_row.bincount().tolist())) > 1, "ragged"
    totals, expected = made(batch, Progress(0, 10)), naive_losses(made, batch)
    assert set(expected) == set(made.losses())
    assert made.losses() == {"instance": 3.0, "memory": 1.0, "concept": 1.0, "prototypes": 1.0}
    for name, value in expected.items():
        torch.testing.assert_close(totals[name].sum / totals[name].count, value, atol=1e-5, rtol=1e-5)
    parameters = [p for p in made.parameters() if p.requires_grad]
    weights = made.losses()
    whole = sum((weights[name] * totals[name].sum / totals[name].count for name in weights), torch.zeros(()))
    naive = sum((weights[name] * expected[name] for name in weights), torch.zeros(()))
    for one, other in zip(
        *(torch.autograd.grad(loss, parameters, allow_unused=True) for loss in (whole, naive)), strict=True
    ):
        if one is None or other is None:
            assert one is other
            continue
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-3)


def test_switches_leave_parts_out() -> None:
    assert objective(concepts=0).losses() == {"instance": 3.0}
    assert objective(concepts=4, concept_loss=False).losses() == {"instance": 3.0}
    assert objective(bank=7, bank_loss=False, concepts=0).losses() == {"instance": 3.0}
    assert objective(concept_twice=True, instance_weight=1.0).losses() == {"instance": 1.0, "concept": 2.0}
    batch = source().at(0)
    values = {}
    for name, settings in {
        "explicit": {},
        "implicit": {"diversity_of_batch": False},
        "bank": {"bank": 7, "bank_loss": False, "diversity_of_bank": True},
        "literal": {"positive_weight": 0.1},
        "triplet": {"loss": "triplet"},
        "info-nce": {"loss": "info-nce"},
    }.items():
        made = objective(concepts=0, **settings)
        values[name] = made(batch, Progress(0, 10))["instance"].sum.item()
    assert len({round(value, 5) for value in values.values()}) == len(values)


def test_the_triplet_loss_may_begin_with_all_negatives() -> None:
    batch = source().at(0)
    begins, hardest = objective(concepts=0, loss="triplet", hardest_after=0.2), objective(concepts=0, loss="triplet")
    expected = hardest(batch, Progress(0, 10))["instance"].sum.item()
    assert begins(batch, Progress(1, 10))["instance"].sum.item() > expected + 0.1
    assert begins(batch, Progress(2, 10))["instance"].sum.item() == expected


@pytest.mark.parametrize("explicit", [False, True])
def test_bank_entries_as_anchors_push_the_batch_away(explicit: bool) -> None:
    """Eq. 6 read literally adds l_DCL(B, V): the mean over the bank's entries of the pushing term, with diversity."""
    made = objective(concepts=0, bank=7, diversity_of_batch=explicit)
    literal = objective(concepts=0, bank=7, diversity_of_batch=explicit, bank_anchors=True)
    batch = source().at(0)
    plain, more = (o(batch, Progress(0, 10))["memory"].sum.item() for o in (made, literal))
    model, bank = made.target, made.bank
    assert bank is not None
    images = model.branches(model.embed_images(batch.features[IDENTITY.name]))[0][batch.pairs.image_row]
    texts = model.branches(model.embed_texts(batch.captions))[0]
    own = batch.image_numbers()[batch.pairs.image_row]
    pushed = 0.0
    for queue, anchors in ((bank.texts, images), (bank.images, texts)):
        rows = [
            [queue.keys[slot] @ anchors[p].detach() for p in range(len(own)) if own[p] != queue.images[slot]]
            for slot in range(queue.filled)
        ]
        diversities = naive_diversities(rows) if explicit else [1.0] * len(rows)
        for row, diversity in zip(rows, diversities, strict=True):
            inner = 1 + sum(math.exp((float(value) - GAMMA) / (MU * diversity)) for value in row)
            pushed += MU * math.log(inner) / queue.filled
    assert more - plain == pytest.approx(len(own) * pushed, rel=1e-4)


def test_after_a_step_keys_are_enqueued_and_the_momentum_encoder_follows() -> None:
    made = objective(concepts=0, bank=7, momentum=0.5)
    assert made.bank is not None
    assert made.momentum is not None
    before = made.bank.texts.keys.clone()
    batch = source(2).at(0)
    made.eval()
    made(batch, Progress(0, 10))
    made.after_step()
    assert torch.equal(made.bank.texts.keys, before), "validation leaves no trace"
    made.train()
    made(batch, Progress(0, 10))
    with torch.no_grad():
        made.target.region.weight.add_(1.0)  # type: ignore[union-attr, operator]
    made.after_step()
    numbers = batch.image_numbers()
    for queue, had, added in ((made.bank.texts, 5, numbers[batch.pairs.image_row]), (made.bank.images, 4, numbers)):
        assert int(queue.enqueued) == had + len(added), "an image enters once"
        slots = [(had + place) % 7 for place in range(len(added))]
        assert queue.images[slots].tolist() == added.tolist()
    apart = made.target.region.weight - made.momentum.encoder.region.weight  # type: ignore[union-attr, operator]
    torch.testing.assert_close(apart, torch.full_like(apart, 0.5))


def test_the_momentum_encoder_computes_instances_only() -> None:
    """Banks and clusters hold instance vectors, so its concepts would be computed for nothing."""
    made = objective(concepts=4, bank=7)
    assert made.momentum is not None
    encoder, target = made.momentum.encoder, made.target.eval()
    features = source().at(0).features[IDENTITY.name]
    for keys, raw in (
        (encoder.embed_images(features), target.embed_images(features)),
        (encoder.embed_texts(["a dog"]), target.embed_texts(["a dog"])),
    ):
        (instances,) = encoder.branches(keys)
        both = target.branches(raw)
        assert len(both) == 2
        torch.testing.assert_close(instances, both[0])
    encoder.instances_only = False
    assert len(encoder.branches(encoder.embed_images(features))) == 2, "its weights of concepts are still there"


def test_what_is_validated_has_no_entry_in_the_bank() -> None:
    """Images are numbered within their split: the first of the validation is not the first of the training."""
    batch = source().at(0)
    assert 0 in batch.image_numbers()
    values = []
    for number in (0, 80):
        made = objective(bank=7, diversity_of_bank=True, bank_anchors=True).eval()
        assert made.bank is not None
        made.bank.texts.images[0] = made.bank.images.images[0] = number
        values.append(made(batch, Progress(0, 10))["memory"].sum.item())
    assert values[0] == values[1]


def clustering(**settings: Any) -> tuple[CoderObjective, BatchSource]:
    """An objective before its first step, with its batches."""
    made = CoderObjective(CoderObjectiveSettings(prototypes=3, **settings), Roles(retriever()))
    batches = source(2)
    made.prepare_for(batches)
    return made.train(), batches


def train_epochs(made: CoderObjective, batches: BatchSource, epochs: int, steps: int = 100) -> list[bool]:
    """Whether the pairs were clustered before each epoch, and at last."""
    assert made.prototypes is not None
    clustered = []
    for epoch in range(epochs):
        before = made.prototypes.centres.clone()
        made.eval()
        made.epoch_start(Epoch(epoch, batches.epoch, batches.positives))
        made.train()
        clustered.append(not torch.equal(made.prototypes.centres, before))
        for step in range(epoch * len(batches), (epoch + 1) * len(batches)):
            loss = made(batches.at(step), Progress(step, steps))["prototypes"].sum
            assert (loss.item() > 0) == bool(made.prototypes.clustered), "nothing to predict before"
            with torch.no_grad():
                made.target.region.weight.mul_(1.5)  # type: ignore[union-attr, operator]
            made.after_step()
    return clustered


def test_the_first_clustering_is_after_the_first_epoch() -> None:
    assert train_epochs(*clustering(cluster_every=1), 4) == [False, True, True, True]
    assert train_epochs(*clustering(cluster_every=2), 5) == [False, True, False, True, False]


def test_a_long_clustering_shows_its_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cluster() -> list[str]:
        made, batches = clustering()
        for epoch in range(2):
            made.epoch_start(Epoch(epoch, batches.epoch, batches.positives))
        return capsys.readouterr().err.splitlines()

    assert not cluster(), "it is short"
    monkeypatch.setattr(ProgressLine.__init__, "__defaults__", ("", 0.0))  # each update is a line
    shown = cluster()
    images, pairs = len(source(2).records), len(source(2).pool.captions)
    whole = f"{images + pairs}/{images + pairs} (100 %)"
    assert [line for line in shown if line.startswith(f"embedding images and captions to cluster {whole}")]
    assert [line for line in shown if line.startswith(f"comparing pairs with all centres {pairs}/{pairs} (100 %)")]
    assert [line for line in shown if line.startswith("clustering pairs (passes) 22/22 (100 %)")]
    assert len(shown) > 5


def test_keys_of_the_steps_and_of_the_others_are_clustered() -> None:
    """After an epoch of one caption an image, the other captions are embedded by the momentum encoder of that time."""
    made = CoderObjective(CoderObjectiveSettings(prototypes=3, momentum=0.5), Roles(retriever()))
    batches = BatchSource(*make_data(), "train", 2, captions_per_image=1)
    made.prepare_for(batches)
    made.train()
    assert made.prototypes is not None
    assert made.momentum is not None
    encoder = made.momentum.encoder
    keys: dict[int, torch.Tensor] = {}  # pair -> text key
    image_keys: dict[int, torch.Tensor] = {}
    for step in range(len(batches)):
        batch = batches.at(step)
        assert batch.places is not None
        texts, images = encoder.embed_texts(batch.captions)[0], encoder.embed_images(batch.features[IDENTITY.name])[0]
        keys.update(zip(batch.places.tolist(), texts.detach(), strict=True))
        image_keys.update(zip(batch.image_numbers().tolist(), images.detach(), strict=True))
        made(batch, Progress(step, 100))
        with torch.no_grad():
            made.target.region.weight.mul_(1.5)  # type: ignore[union-attr, operator]
            made.target.sentence.weight_ih_l0.mul_(1.5)  # type: ignore[union-attr, operator]
        made.after_step()
    pairs = range(len(batches.pool.captions))
    assert len(keys) < len(pairs)
    for pair in pairs:
        if pair not in keys:
            keys[pair] = encoder.embed_texts([batches.pool.captions[pair]])[0][0].detach()
    points = [image_keys[int(batches.pool.owner[pair])].half() + keys[pair].half() for pair in pairs]
    made.eval()
    made.epoch_start(Epoch(1, batches.epoch, batches.positives))
    expected = spherical_kmeans(torch.stack(points), 3)
    assert torch.equal(made.prototypes.assigned, expected.labels)
    torch.testing.assert_close(made.prototypes.centres, expected.centres, atol=1e-3, rtol=1e-3)


def test_clustering_each_so_many_updates() -> None:
    made, batches = clustering(cluster_steps=2, cluster_embed=False)
    assert made.prototypes is not None
    assert not any(train_epochs(made, batches, 1))
    assert int(made.prototypes.updates) == 3
    assert made.prototypes.clustered, "after the second update"
    seen = torch.cat([batches.at(step).places for step in range(2)])  # type: ignore[misc]
    late = batches.at(2).places
    assert late is not None
    assert (made.prototypes.assigned[seen] != NO_CLUSTER).all()
    assert (made.prototypes.assigned[late] != NO_CLUSTER).all(), "those of the third step joined the nearest"
    whole, batches = clustering(cluster_steps=2)
    assert whole.prototypes is not None
    for step in range(2):
        whole(batches.at(step), Progress(step, 2))
        whole.after_step()
    assert not whole.prototypes.clustered, "nothing follows the last step"


def test_mistakes_are_reported() -> None:
    with pytest.raises(RecipeError, match=r"objective.prototypes: the coder retriever has no concept branch"):
        objective(concepts=0, prototypes=3)
    with pytest.raises(RecipeError, match=r"objective.diversity_of_bank: .* set bank and diversity_of_batch too"):
        objective(diversity_of_bank=True)
    for settings in ({}, {"bank": 7, "bank_loss": False}, {"bank": 7, "loss": "triplet"}):
        with pytest.raises(RecipeError, match=r"objective.bank_anchors: .* set bank, bank_loss and loss=dcl too"):
            objective(bank_anchors=True, **settings)


def test_similarities_are_compared_in_full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixed precision is for the layers: bfloat16 has two digits, and an SD is of differences."""
    made = objective(**ALL, bank_anchors=True)
    batch = source().at(0)
    model = made.target
    raw = model.embed_images(batch.features[IDENTITY.name]), model.embed_texts(batch.captions)
    for encoder in (model, made.momentum.encoder):  # type: ignore[union-attr]  # the layers' part is given
        monkeypatch.setattr(encoder, "embed_images", lambda features: raw[0])
        monkeypatch.setattr(encoder, "embed_texts", lambda captions: raw[1])
    expected = made(batch, Progress(0, 10))
    with torch.autocast("cpu", torch.bfloat16):
        found = made(batch, Progress(0, 10))
    for name in ("instance", "memory", "concept", "diversity", "deviation", "similarity_negative"):
        assert torch.equal(found[name].sum, expected[name].sum), name


def test_the_deviation_of_a_collapsed_model_is_logged_as_it_is() -> None:
    """Below ε/16 it could not be read from the diversity, which is 1 in float32."""
    made = objective(concepts=0)
    batch = source().at(0)
    direction = functional.normalize(torch.randn(6), dim=0)
    with torch.no_grad():
        made.target.detail[2].bias.copy_(1e3 * direction)  # type: ignore[union-attr, index]
    images = made.target.branches(made.target.embed_images(batch.features[IDENTITY.name]))[0]
    texts = made.target.branches(made.target.embed_texts(batch.captions))[0]
    similarity, owner = images @ texts.t(), batch.pairs.image_row
    of_texts = [
        similarity[torch.arange(len(images)) != image, text].std(correction=0)
        for text, image in enumerate(owner.tolist())
    ]
    of_images = [similarity[image, owner != image].std(correction=0) for image in owner.tolist()]
    assert max(of_texts) < 0.002
    total = made(batch, Progress(0, 10))["deviation"].sum
    torch.testing.assert_close(total, sum([*of_texts, *of_images], torch.zeros(())), rtol=1e-3, atol=1e-6)


def test_one_image_alone_has_no_negatives() -> None:
    totals = objective(**ALL)(source(1).at(0), Progress(0, 10))
    assert all(torch.isfinite(total.sum) for total in totals.values())
