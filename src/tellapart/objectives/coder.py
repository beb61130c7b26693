"""CODER's training (Wang et al., ECCV 2022): diversity-sensitive contrast, coupled momentum banks, prototypes."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from pydantic import Field

from tellapart.data.batches import Batch, BatchSource, Kind
from tellapart.errors import RecipeError
from tellapart.objectives.base import Epoch, Progress, RetrievalObjective, Roles, Total, captions_of
from tellapart.objectives.diversity_contrast import (
    Anchors,
    both_directions,
    coder_weights,
    dcl_loss,
    deviations,
    diversity,
    info_nce,
    mean_diversity,
    other_images,
    triplet_loss,
    unscaled_diversity,
)
from tellapart.objectives.memory import NO_IMAGE, MomentumBank, MomentumEncoder
from tellapart.objectives.prototypes import NO_CLUSTER, Prototypes
from tellapart.progress import OnProgress, show_long
from tellapart.retrievers.base import Raw, inner_products
from tellapart.settings import ADDED, Section


class CoderObjectiveSettings(Section):
    """Settings of `CoderObjective`."""

    loss: Literal["dcl", "triplet", "info-nce"] = Field(
        "dcl", description="contrastive loss; triplet with the hardest negative is BTR"
    )
    diversity_of_batch: bool = Field(True, description="dcl: use the diversity in the batch, eq. 5; false: eq. 4")
    diversity_of_bank: bool = Field(False, description="dcl: average with the diversity in the bank (MB of Table 3)")
    mu: float = Field(0.1, gt=0, description="dcl: μ, temperature")
    gamma: float = Field(0.3, description="dcl: γ, margin")
    epsilon: float = Field(0.1, gt=0, description="dcl: ε of the diversity")
    positive_weight: float = Field(1.0, ge=0, description="dcl: weight of log(1 + S); as written in the paper it is μ")
    margin: float = Field(0.2, ge=0, description="triplet: α")
    hardest_after: float = Field(
        0.0, ge=0, le=1, description="triplet: share of the training steps that use all negatives, not the hardest"
    )
    temperature: float = Field(0.05, gt=0, description="info-nce: τ")
    bank: int = Field(0, ge=0, le=10_000_000, description="slots of each memory bank (paper: 4096); 0: no bank")
    bank_loss: bool = Field(True, description="add the contrast with the bank (M-DCL), if there is a bank")
    bank_anchors: bool = Field(False, description="use the bank's entries as anchors too, as eq. 6 is written")
    momentum: float = Field(0.995, ge=0, le=1, description="momentum of the encoders that fill the bank")
    instance_weight: float = Field(3.0, ge=0, description="λ of eq. 8")
    concept_loss: bool = Field(True, description="add the contrast of the concept branch, if the retriever has one")
    concept_twice: bool = Field(False, description="count both directions of L_DCL^C twice, as it is written")
    prototypes: int = Field(0, ge=0, le=1_000_000, description="K: clusters for the concept branch to predict; 0: none")
    cluster_every: int = Field(
        1, ge=1, description="number of epochs between clusterings; the first one is after the first epoch"
    )
    cluster_steps: int | None = Field(
        None, ge=1, description="cluster each so many updates instead of after epochs", json_schema_extra=ADDED
    )
    cluster_embed: bool = Field(
        True,
        description="embed the pairs that no step has embedded; false: cluster those of the steps, and give the others "
        "the nearest cluster when a step embeds them",
        json_schema_extra=ADDED,
    )


class _BankContrast(NamedTuple):
    """Keys of the text and image banks, the anchors' similarities with them, and which slots are negatives."""

    banks: tuple[torch.Tensor, torch.Tensor]
    similarities: tuple[torch.Tensor, torch.Tensor]
    negatives: tuple[torch.Tensor, torch.Tensor]


class _Keys(NamedTuple):
    """Vectors of the momentum encoder: one for each image of the batch, one for each pair's image and one for its text.

    `images` and `own` are the numbers of the images and of each pair's image, `pairs` those of the pairs in the split.
    """

    of_images: torch.Tensor
    of_image: torch.Tensor
    of_text: torch.Tensor
    images: torch.Tensor
    own: torch.Tensor
    pairs: torch.Tensor | None


class CoderObjective(RetrievalObjective):
    """The losses of CODER, eq. 3–8, each with a switch.

    Use it to train any retriever; `Coder` with concepts gets all four losses. With the other losses switched off,
    `loss: triplet` is the training of VSE++ (BTR)::

        L = λ L_DCL^I + L_M-DCL^I + L_DCL^C + L_PGC                                        (8)

    - `instance`, L_DCL^I, eq. 5: both directions in the batch, with the diversity of each anchor, eq. 3, in the batch
      (`diversity_of_batch`), or its mean with that in the bank (`diversity_of_bank`);
    - `memory`, L_M-DCL^I, eq. 6 (`bank`): anchors against the coupled banks; the partner is a momentum key;
    - `concept`, L_DCL^C: the same as `instance`, for the concept branch;
    - `prototypes`, L_PGC, eq. 7: both concept descriptors predict the cluster of their pair's v^I + w^I, by momentum
      keys. All pairs of the training split are clustered after the first epoch (random encoders have no clusters worth
      predicting; until then the loss is 0) and again every `cluster_every` epochs or `cluster_steps` updates, starting
      from the last centres. A pair keeps its cluster in between. Keys that the steps of the epoch have made are used.

    `loss` replaces DCL everywhere by the triplet loss with the hardest negatives (BTR) or by InfoNCE. A retriever
    without branches is trained by its index vectors, one without index vectors (SCAN) by its similarity. With random
    weights the hardest negatives can make all embeddings equal, so GPO's code uses all negatives at first
    (`hardest_after`).

    Captions of an anchor's own image are never negatives. Anchors are the pairs of one process, candidates come from
    all processes, and every process puts the keys of all processes into its banks.

    Related: `RankingHinge` uses random negatives. `dcl_loss`, `triplet_loss`, `info_nce` and `prototype_loss` have the
    equations.

    Logged: `diversity`, the mean of eq. 3 before normalisation; `deviation`, the mean SD of an anchor's negatives;
    `similarity_positive` and `similarity_negative`, the mean cosines.

    Args:
        settings: see `CoderObjectiveSettings`.
        roles: the target, a retriever.

    Example:
        >>> objective = CoderObjective(CoderObjectiveSettings(bank=4096), Roles(retriever))   # doctest: +SKIP
    """

    name = "coder"
    Settings = CoderObjectiveSettings
    settings: CoderObjectiveSettings

    def __init__(self, settings: CoderObjectiveSettings, roles: Roles) -> None:
        super().__init__(settings, roles)
        target = self.target
        widths = target.branch_widths()
        self._check(settings, widths)
        needs_keys = settings.bank > 0 or settings.prototypes > 0
        self.momentum = MomentumEncoder(target, settings.momentum) if needs_keys else None
        if self.momentum is not None:
            self.momentum.encoder.instances_only = True  # banks and clusters hold instance vectors
        self.bank = MomentumBank(settings.bank, widths[0]) if settings.bank else None
        self.prototypes = Prototypes(settings.prototypes, widths[0], widths[1]) if settings.prototypes else None
        self.concepts = settings.concept_loss and len(widths) > 1
        self._hardest = True
        self._last_step = False
        self._pending: list[_Keys] = []
        self._source: BatchSource | None = None

    def _check(self, settings: CoderObjectiveSettings, widths: tuple[int, ...]) -> None:
        name = self.target.name
        if not widths and (settings.bank or settings.prototypes):
            raise RecipeError(
                f"objective: banks and prototypes hold one vector per item, and the {name} retriever has none; "
                "set bank and prototypes to 0"
            )
        if settings.prototypes and len(widths) < 2:
            raise RecipeError(
                f"objective.prototypes: the {name} retriever has no concept branch to predict them; "
                "set retriever.concepts, or prototypes to 0"
            )
        if settings.diversity_of_bank and not (settings.bank and settings.diversity_of_batch):
            raise RecipeError(
                "objective.diversity_of_bank: needs a bank and the diversity in the batch; "
                "set bank and diversity_of_batch too"
            )
        if settings.bank_anchors and not (settings.bank and settings.bank_loss and settings.loss == "dcl"):
            raise RecipeError(
                "objective.bank_anchors: is a variant of the contrast with the bank by DCL, eq. 6; "
                "set bank, bank_loss and loss=dcl too"
            )

    def losses(self, phase: str = "train") -> dict[str, float]:
        weights = coder_weights(self.settings.instance_weight, self.settings.concept_twice)
        active = {
            "instance": True,
            "memory": self.bank is not None and self.settings.bank_loss,
            "concept": self.concepts,
            "prototypes": self.prototypes is not None,
        }
        return {name: weight for name, weight in weights.items() if active[name]}

    def forward(self, batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        self._hardest = progress.fraction >= self.settings.hardest_after
        self._last_step = progress.step + 1 >= progress.steps
        pairs = batch.pairs.of(Kind.POSITIVE)
        captions = captions_of(batch, pairs)
        features = batch.features[self.target.encoder.name]
        image_of_pair = batch.pairs.image_row[pairs]
        images, texts = self.target.embed_images(features), self.target.embed_texts(captions)
        numbers = batch.image_numbers()
        own = numbers[image_of_pair]
        if not self.target.branch_widths():
            both = self._by_similarity(images, texts, image_of_pair, numbers, own)
            return self._totals({"instance": self._contrast(both)}, both)

        vectors = [
            (of_image[image_of_pair], of_image, of_text)
            for of_image, of_text in zip(self.target.branches(images), self.target.branches(texts), strict=True)
        ]
        places = None if batch.places is None else batch.places[batch.pairs.caption_row[pairs]]
        keys = self._keys(features[: len(numbers)], captions, image_of_pair, numbers, places)
        both = self._anchors(*vectors[0], numbers, own)
        of_bank = self._bank_contrast(vectors[0], own)
        diversities = self._diversities(both, of_bank)
        terms = {"instance": self._contrast(both, diversities)}
        if self.bank is not None and self.settings.bank_loss:
            assert keys is not None
            assert of_bank is not None
            terms["memory"] = self._against_bank(vectors[0], keys, of_bank, diversities)
        if self.concepts:
            of_concepts = self._anchors(*vectors[1], numbers, own)
            terms["concept"] = self._contrast(of_concepts, self._diversities(of_concepts))
        if self.prototypes is not None:
            assert keys is not None
            terms["prototypes"] = self._prototype_loss(vectors[1], keys)
        if self.training and keys is not None:
            self._pending.append(keys)
        return self._totals(terms, both)

    # --- anchors and their diversity --------------------------------------------------------------------------

    def _anchors(
        self,
        of_pair: torch.Tensor,
        images: torch.Tensor,
        texts: torch.Tensor,
        numbers: torch.Tensor,
        own: torch.Tensor,
    ) -> tuple[Anchors, Anchors]:
        """This process's pairs as anchors in both directions; candidates are the texts and images of all processes."""
        gather = self.processes.gather
        positives = (of_pair * texts).sum(dim=1)
        to_text = inner_products(of_pair, gather(texts, gradient=True))
        to_image = inner_products(texts, gather(images, gradient=True))
        return (
            Anchors(positives, to_text, other_images(own, gather(own))),
            Anchors(positives, to_image, other_images(own, gather(numbers))),
        )

    def _by_similarity(
        self, images: Raw, texts: Raw, image_of_pair: torch.Tensor, numbers: torch.Tensor, own: torch.Tensor
    ) -> tuple[Anchors, Anchors]:
        """The same for a retriever without index vectors, by the similarity of this process's images and texts."""
        if self.processes.world > 1:
            raise RecipeError(
                f"the {self.target.name} retriever has no index vectors and can only be trained in one process; "
                "start it without torchrun"
            )
        pairs = torch.arange(len(own), device=own.device)
        return both_directions(self.target.similarity(images, texts), image_of_pair, pairs, numbers, own)

    def _bank_contrast(
        self, vectors: tuple[torch.Tensor, torch.Tensor, torch.Tensor], own: torch.Tensor
    ) -> _BankContrast | None:
        """Similarities with the banks, computed once for the diversity and the loss; `None` if neither needs them."""
        if self.bank is None or not (self.settings.bank_loss or self.settings.diversity_of_bank):
            return None
        # Clone: the buffers change after the step, and the backward pass needs the old values.
        texts, images = self.bank.texts.keys.clone(), self.bank.images.keys.clone()
        similarities = inner_products(vectors[0], texts), inner_products(vectors[2], images)
        return _BankContrast((texts, images), similarities, self._bank_negatives(own))

    def _bank_negatives(self, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Which slots of the text bank and of the image bank are negatives of pairs with these images.

        Images are numbered within their split, and the bank holds training images only. So in validation all filled
        slots are negatives.
        """
        assert self.bank is not None
        images = own if self.training else torch.full_like(own, NO_IMAGE)
        return self.bank.texts.negatives(images), self.bank.images.negatives(images)

    def _diversities(
        self, both: tuple[Anchors, Anchors], among: _BankContrast | None = None
    ) -> list[torch.Tensor] | None:
        """div of each anchor, in both directions: in the batch, or its mean with that in the bank; `None` for eq. 4."""
        if self.settings.loss != "dcl" or not self.settings.diversity_of_batch:
            return None
        of_batch = [self._diversity(anchors.similarity, anchors.negatives) for anchors in both]
        if not self.settings.diversity_of_bank or among is None:
            return of_batch
        return [
            mean_diversity(one, self._diversity(similarity.detach(), negatives), negatives)
            for one, similarity, negatives in zip(of_batch, among.similarities, among.negatives, strict=True)
        ]

    def _diversity(self, similarity: torch.Tensor, negatives: torch.Tensor) -> torch.Tensor:
        """Eq. 3, divided by the maximum over the anchors of all processes."""
        unscaled = unscaled_diversity(similarity, negatives, self.settings.epsilon)
        gathered = self.processes.gather(unscaled)
        return unscaled / gathered.max() if len(gathered) else unscaled

    # --- losses, one value per pair ---------------------------------------------------------------------------

    def _contrast(self, both: tuple[Anchors, Anchors], diversities: list[torch.Tensor] | None = None) -> torch.Tensor:
        """The contrastive loss `settings.loss`, sum of both directions, `[P]`."""
        settings = self.settings
        if settings.loss == "triplet":
            parts = [triplet_loss(*anchors, settings.margin, self._hardest) for anchors in both]
        elif settings.loss == "info-nce":
            parts = [info_nce(*anchors, temperature=settings.temperature) for anchors in both]
        else:
            given: list[torch.Tensor | None] = [None, None] if diversities is None else [*diversities]
            parts = [
                dcl_loss(*anchors, diversity, settings.mu, settings.gamma, settings.positive_weight)
                for anchors, diversity in zip(both, given, strict=True)
            ]
        return torch.stack(parts).sum(dim=0)

    def _against_bank(
        self,
        vectors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        keys: _Keys,
        among: _BankContrast,
        diversities: list[torch.Tensor] | None,
    ) -> torch.Tensor:
        """L_M-DCL: images against the text bank, texts against the image bank, `[P]`."""
        assert self.bank is not None
        of_pair, _, texts = vectors
        both = (
            Anchors((of_pair * keys.of_text).sum(dim=1), among.similarities[0], among.negatives[0]),
            Anchors((texts * keys.of_image).sum(dim=1), among.similarities[1], among.negatives[1]),
        )
        loss = self._contrast(both, diversities)
        if not self.settings.bank_anchors:
            return loss
        # As eq. 6 is written, the bank's entries are anchors too; the batches of all processes are their negatives, and
        # give their diversity. Their mean is added to each pair, so that the mean over pairs contains it once.
        every = self._bank_negatives(self.processes.gather(keys.own))
        for part, keys_of_bank, of_anchors, queue in zip(
            (of_pair, texts), among.banks, every, (self.bank.texts, self.bank.images), strict=True
        ):
            negatives = of_anchors.t()
            similarity = inner_products(keys_of_bank, self.processes.gather(part, gradient=True))
            spread = diversity(similarity, negatives, self.settings.epsilon) if diversities is not None else None
            pushed = dcl_loss(None, similarity, negatives, spread, self.settings.mu, self.settings.gamma)
            loss = loss + pushed[queue.images != NO_IMAGE].sum() / max(1, queue.filled)
        return loss

    def _prototype_loss(self, concepts: tuple[torch.Tensor, torch.Tensor, torch.Tensor], keys: _Keys) -> torch.Tensor:
        assert self.prototypes is not None
        if not self.prototypes.clustered:
            # Nothing to predict yet; the classifier takes part with a gradient of zero, as several processes need it.
            none: torch.Tensor = self.prototypes(concepts[0], concepts[2], torch.zeros_like(keys.own))
            return 0 * none
        loss: torch.Tensor = self.prototypes(concepts[0], concepts[2], self._labels(keys))
        return loss

    def _labels(self, keys: _Keys) -> torch.Tensor:
        """The cluster of each pair when all were clustered; the nearest one for pairs that were not, `[P]`."""
        assert self.prototypes is not None
        nearest = self.prototypes.nearest(keys.of_image + keys.of_text)
        if not self.training or keys.pairs is None:
            return nearest
        assigned = self.prototypes.assigned[keys.pairs]
        return torch.where(assigned == NO_CLUSTER, nearest, assigned)

    # --- state: momentum encoder, banks and clusters ----------------------------------------------------------

    @torch.no_grad()
    def _keys(
        self,
        features: torch.Tensor,
        captions: list[str],
        image_of_pair: torch.Tensor,
        numbers: torch.Tensor,
        pairs: torch.Tensor | None,
    ) -> _Keys | None:
        """Instance vectors of the momentum encoder."""
        if self.momentum is None:
            return None
        encoder = self.momentum.encoder
        images = encoder.branches(encoder.embed_images(features))[0]
        texts = encoder.branches(encoder.embed_texts(captions))[0]
        return _Keys(images, images[image_of_pair], texts, numbers, numbers[image_of_pair], pairs)

    def prepare_for(self, batches: BatchSource) -> None:
        self._source = batches
        if self.prototypes is not None:
            self.prototypes.make_room(torch.from_numpy(batches.pool.owner))

    @torch.no_grad()
    def epoch_start(self, epoch: Epoch) -> None:
        """Cluster the pairs of the training split, if it is time; keys of earlier epochs are not used later."""
        if self.prototypes is None or self.settings.cluster_steps is not None:
            return
        if epoch.number > 0 and (epoch.number - 1) % self.settings.cluster_every == 0:
            self._cluster()
        self.prototypes.forget()

    def _cluster(self) -> None:
        """Cluster all pairs of the training split by v^I + w^I of the momentum encoder."""
        assert self.prototypes is not None
        on_progress = show_long() if self.processes.rank == 0 else None
        if self.settings.cluster_embed:
            self._embed_others(on_progress)
        self.prototypes.cluster(on_progress=on_progress)

    @torch.no_grad()
    def _embed_others(self, on_progress: OnProgress | None) -> None:
        """Keep the keys of the images and captions that no step of this epoch has embedded."""
        assert self.prototypes is not None
        assert self.momentum is not None
        assert self._source is not None, "call prepare_for with the training batches before"
        source, encoder, device = self._source, self.momentum.encoder, self.target.device
        size = source.images_per_batch
        no_images, no_pairs = (torch.zeros(0, dtype=torch.long, device=device) for _ in range(2))
        no_keys = torch.zeros(0, self.prototypes.centres.shape[1], device=device)
        missing_images, missing_pairs = (
            (~kept).nonzero().squeeze(1) for kept in (self.prototypes.image_kept, self.prototypes.text_kept)
        )
        done, total = 0, len(missing_images) + len(missing_pairs)

        def show(more: int) -> None:
            nonlocal done
            done += more
            if on_progress is not None:
                on_progress("embedding images and captions to cluster", done, total)

        show(0)
        for images in torch.split(missing_images, size):
            share = images.tensor_split(self.processes.world)[self.processes.rank]
            batch = source.true_pairs(share.cpu().numpy())
            features = batch.features[self.target.encoder.name].to(device)
            keys = encoder.branches(encoder.embed_images(features))[0]
            self.prototypes.keep(self.processes.gather(keys), images, no_keys, no_pairs)
            show(len(images))
        for pairs in torch.split(missing_pairs, size):
            share = pairs.tensor_split(self.processes.world)[self.processes.rank]
            keys = encoder.branches(encoder.embed_texts([source.pool.captions[pair] for pair in share.tolist()]))[0]
            self.prototypes.keep(no_keys, no_images, self.processes.gather(keys), pairs)
            show(len(pairs))

    @torch.no_grad()
    def after_step(self) -> None:
        """Put the step's keys into the banks, update the momentum encoder, and cluster if it is time."""
        gather = self.processes.gather
        for keys in self._pending:
            of_images, images, of_text = gather(keys.of_images), gather(keys.images), gather(keys.of_text)
            if self.bank is not None:
                self.bank.enqueue(of_images, images, of_text, gather(keys.own))
            if self.prototypes is not None and keys.pairs is not None and len(self.prototypes.assigned):
                pairs = gather(keys.pairs)
                if self.prototypes.clustered:
                    self.prototypes.assigned[pairs] = gather(self._labels(keys))
                self.prototypes.keep(of_images, images, of_text, pairs)
        self._pending = []
        if self.momentum is not None:
            self.momentum.update(self.target)
        if self.prototypes is not None:
            self.prototypes.updates += 1
            every = self.settings.cluster_steps
            if every is not None and int(self.prototypes.updates) % every == 0 and not self._last_step:
                self._cluster()

    # --- figures ----------------------------------------------------------------------------------------------

    def _totals(self, terms: dict[str, torch.Tensor], both: tuple[Anchors, Anchors]) -> dict[str, Total]:
        totals = {name: Total(values.sum(), len(values)) for name, values in terms.items()}
        with torch.no_grad():
            unscaled = torch.cat([unscaled_diversity(a.similarity, a.negatives, self.settings.epsilon) for a in both])
            negative = torch.cat([anchors.similarity[anchors.negatives].float() for anchors in both])
            positives = both[0].positives.detach().float()
            deviation = torch.cat([deviations(a.similarity, a.negatives) for a in both])
        return {
            **totals,
            "diversity": Total(unscaled.sum(), len(unscaled)),
            "deviation": Total(deviation.sum(), len(deviation)),
            "similarity_positive": Total(positives.sum(), len(positives)),
            "similarity_negative": Total(negative.sum(), len(negative)),
        }
