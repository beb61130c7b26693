"""Specificity training: a frozen retriever tells the captioner which words would find the image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from pydantic import BaseModel, Field
from torch import nn
from torch.nn import functional

from tellapart.captioners.base import Captioner
from tellapart.data.batches import Batch
from tellapart.decoding.base import Decodable
from tellapart.errors import RecipeError
from tellapart.objectives.base import Needs, Objective, Progress, Roles, Start, Total
from tellapart.objectives.own_captions import backward_in_eval_mode, without_dropout
from tellapart.objectives.straight_through import SpokenCaptions, gumbel_noise, straight_through
from tellapart.retrievers.base import Raw, Retriever
from tellapart.settings import Section
from tellapart.text import END, PAD

# --- the four losses ----------------------------------------------------------------------------------------------


def dot_product(captions: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """c · i of each row, in float32: `[rows, width]` twice -> `[rows]`.

    >>> dot_product(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 2.0]]))
    tensor([11.])
    """
    return (captions.float() * images.float()).sum(dim=1)


def cosine(captions: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """c · i / (‖c‖ ‖i‖) of each row: `[rows, width]` twice -> `[rows]`.

    >>> cosine(torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 2.0]]))
    tensor([0.8000])
    """
    return dot_product(functional.normalize(captions.float(), dim=1), functional.normalize(images.float(), dim=1))


def similarity_loss(own: torch.Tensor) -> torch.Tensor:
    """Equations 2 and 3: L_DP = −c · i, L_Cos = −c · i / (‖c‖ ‖i‖).

    >>> similarity_loss(torch.tensor([0.8]))
    tensor([-0.8000])
    """
    return -own


def contrastive_similarity_loss(own: torch.Tensor, contrast: torch.Tensor) -> torch.Tensor:
    """Equations 4 and 5: L_CDP = max(0, c · i_c − c · i_o), L_CCos = the same with cosines.

    >>> contrastive_similarity_loss(torch.tensor([0.8, 0.2]), torch.tensor([0.5, 0.6]))
    tensor([0.0000, 0.4000])
    """
    return (contrast - own).clamp(min=0)


Similarity = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# Name -> its similarity, and whether it has a contrastive image.
LOSSES: dict[str, tuple[Similarity, bool]] = {
    "dp": (dot_product, False),
    "cos": (cosine, False),
    "cdp": (dot_product, True),
    "ccos": (cosine, True),
}

# --- the objective ------------------------------------------------------------------------------------------------

# Captioner -> its LSTMs.
LSTMS = {
    "neuraltalk": ("lstm",),
    "adaptive-attention": ("gates_from_word", "gates_from_whole", "gates_from_hidden"),
    "updown": ("gates_from_word", "gates_from_mean", "gates_from_states", "language_gates"),
}


class SpecificitySettings(Section):
    """Settings of `Specificity`."""

    loss: Literal["dp", "cos", "cdp", "ccos"] = Field(
        "ccos", description="dot product or cosine; with c, against a similar image"
    )
    top: float = Field(0.01, gt=0, le=1, description="cdp, ccos: share of nearest images that the other is drawn from")
    decoding: Literal["argmax", "gumbel"] = Field("argmax", description="likeliest words, or with Gumbel noise")
    temperature: float = Field(1.0, gt=1e-3, description="gumbel: τ of the softmax that the gradient goes to")
    update: Literal["all", "lstm"] = Field("all", description="all weights, or those of the LSTMs only (paper)")
    fluency: bool = Field(False, description="log ln p of the captions under the frozen role 'reference'")


class Specificity(Objective):
    """Specificity training: the captioner's own caption should find its image, by a frozen retriever.

    With the caption C that the captioner generates, its embedding c, the embedding i (or i_o) of its image and i_c of a
    similar image, all by the frozen retriever::

        L_DP   = −c · i                                                              (2)
        L_Cos  = −c · i / (‖c‖ ‖i‖)                                                  (3)
        L_CDP  = max(0, c · i_c − c · i_o)                                           (4)
        L_CCos = max(0, c · i_c / (‖c‖ ‖i_c‖) − c · i_o / (‖c‖ ‖i_o‖))               (5)

    The loss is the mean over captions. These are the equations of the specificity paper; DP and CDP take the
    retriever's projections before they are normalised, as it writes them. (Its public code normalises them, so that DP
    equals Cos.)

    The caption is generated word by word (`straight_through`): the retriever reads one-hot words, and the gradient with
    respect to a one-hot word is taken as the gradient with respect to the softmax over all words. Words of the
    captioner's vocabulary are matched with the retriever's by string (`Retriever.bind`). The similar image is drawn
    uniformly from the `top` share of images of the same split with the nearest pooled features (cosine).

    Captions of people are not needed: it trains on pictures alone. Add likelihood with `Composed` if captions drift.
    Captions are generated without dropout, so that the words come from the distribution that gets the gradient (the
    paper keeps dropout on).

    Logged besides `loss`, to see whether captions please the retriever only: `similarity` with the own image (in
    the measure of the loss); for cdp and ccos `contrast`, that with the other image, and `closer`, the share of
    captions closer to their own; `empty`, the share of captions without words, which are left out; `words` (per
    caption); `repeated`, the share of words that are in the caption before, and `doubled`, of those just before; with
    `fluency` ln p per token under the frozen `reference`.

    Args:
        settings: see `SpecificitySettings`.
        roles: the target, a captioner; a frozen `retriever`; with `fluency` a frozen `reference`, the captioner that
            training starts from.

    Example:
        >>> objective = Specificity(SpecificitySettings(loss="cdp"), Roles(target, retriever=ranking))  # doctest: +SKIP
        >>> objective(batch, Progress(0, 100))["loss"]                                                  # doctest: +SKIP
    """

    name = "specificity"
    Settings = SpecificitySettings
    settings: SpecificitySettings

    def __init__(self, settings: SpecificitySettings, roles: Roles) -> None:
        super().__init__(settings, roles)
        retriever: Retriever = self.frozen["retriever"]
        self.similarity, self.contrastive = LOSSES[settings.loss]
        self.words = retriever.bind(self.target.vocabulary)
        _check_embeddings(retriever, settings.loss)
        if settings.update == "lstm":
            _train_only(self.target, _lstms(self.target))

    @classmethod
    def needs(cls, settings: BaseModel) -> Needs:
        assert isinstance(settings, SpecificitySettings)
        reference = {"reference": Captioner.kind} if settings.fluency else {}
        return Needs({"retriever": Retriever.kind, **reference}, captions=False)

    def before_training(self, start: Start) -> None:
        for source in start.sources.values() if self.contrastive else ():
            source.nearest(self.settings.top)

    def forward(self, batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        if not batch.ids:
            return dict.fromkeys(self._names(), Total(torch.zeros((), device=self.target.device), 0))
        with without_dropout(self.target):
            spoken = self._speak(batch)
        own, contrast = self._similarities(batch, spoken)
        loss = similarity_loss(own) if contrast is None else contrastive_similarity_loss(own, contrast)
        rows = len(own)
        totals = {"loss": Total(loss.sum(), rows), "similarity": Total(own.detach().sum(), rows)}
        if contrast is not None:
            totals["contrast"] = Total(contrast.detach().sum(), rows)
            totals["closer"] = Total((own > contrast).float().sum(), rows)
        totals |= _habits(spoken.tokens)
        if self.settings.fluency:
            totals["fluency"] = self._fluency(batch, spoken)
        return totals

    def _names(self) -> list[str]:
        """The names of the totals."""
        contrast = ["contrast", "closer"] if self.contrastive else []
        fluency = ["fluency"] if self.settings.fluency else []
        return ["loss", "similarity", *contrast, "empty", "words", "repeated", "doubled", *fluency]

    def _speak(self, batch: Batch) -> SpokenCaptions:
        """A caption of each image; Gumbel noise of an image does not depend on the processes."""
        target, images = self.target, len(batch.ids)
        noise = None
        if self.settings.decoding == "gumbel":
            shape = target.vocabulary.max_words, len(target.vocabulary)
            noise = gumbel_noise(batch.uniform("specificity", *shape))
        memory = target.encode(batch.features[target.encoder.name][:images])
        return straight_through(target, memory, images, noise, self.settings.temperature)

    def _similarities(self, batch: Batch, spoken: SpokenCaptions) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Similarity of each caption that has words with its image, and with a similar image if there is one."""
        retriever: Retriever = self.frozen["retriever"]
        if not len(spoken.image):
            none = torch.zeros(0, device=self.target.device)
            return none, none if self.contrastive else None
        with backward_in_eval_mode(retriever):
            captions = self._vectors(self.words.embed_word_weights(spoken.weights, spoken.lengths))
        own = self._embed(batch.features[retriever.encoder.name][: len(batch.ids)], spoken)
        if not self.contrastive:
            return self.similarity(captions, own), None
        if batch.source is None:
            raise RecipeError(f"{self.settings.loss} needs similar images; give batches made by a BatchSource")
        others = batch.source.similar(batch, batch.uniform("similar image"), self.settings.top, retriever.encoder.name)
        return self.similarity(captions, own), self.similarity(captions, self._embed(others, spoken))

    @torch.no_grad()
    def _embed(self, features: torch.Tensor, spoken: SpokenCaptions) -> torch.Tensor:
        """Embeddings of the images whose captions have words."""
        return self._vectors(self.frozen["retriever"].embed_images(features[spoken.image]))

    def _vectors(self, raw: Raw) -> torch.Tensor:
        """One vector per item, before normalisation where the retriever has it so."""
        if isinstance(raw, torch.Tensor):
            return raw
        vectors: torch.Tensor = self.frozen["retriever"].index_vectors(raw)
        return vectors

    @torch.no_grad()
    def _fluency(self, batch: Batch, spoken: SpokenCaptions) -> Total:
        """ln p of the captions under the frozen start, over all tokens."""
        reference: Decodable = self.frozen["reference"]
        tokens = reference.tokenize(self.target.detokenize(spoken.tokens))
        memory = reference.encode(batch.features[reference.encoder.name][: len(batch.ids)])
        image = torch.arange(len(tokens), device=tokens.device)
        return Total(reference.log_prob(memory, tokens, image).sum(), int((tokens != PAD).sum()))


def _habits(tokens: torch.Tensor) -> dict[str, Total]:
    """How long captions are and how often they repeat themselves."""
    words = (tokens != PAD) & (tokens != END)
    same = (tokens[:, :, None] == tokens[:, None]) & words[:, :, None]
    repeated = same.tril(diagonal=-1).any(dim=2)
    doubled = same.diagonal(offset=-1, dim1=1, dim2=2)
    lengths, count = words.sum(dim=1), int(words.sum())
    return {
        "empty": Total((lengths == 0).float().sum(), len(tokens)),
        "words": Total(lengths.float().sum(), len(tokens)),
        "repeated": Total(repeated.float().sum(), count),
        "doubled": Total(doubled.float().sum(), count),
    }


def _check_embeddings(retriever: Retriever, loss: str) -> None:
    """Refuse a retriever without the vectors that the loss compares."""
    if not retriever.has_index_vectors:
        raise RecipeError(
            f"roles.retriever: the {retriever.name} retriever has no vector for a whole caption, which specificity "
            "training compares; use another, such as 'ranking'"
        )
    with torch.no_grad():
        normalised = not isinstance(retriever.embed_texts(["a"]), torch.Tensor)
    if normalised and LOSSES[loss][0] is dot_product:
        cosines = {"dp": "cos", "cdp": "ccos"}[loss]
        raise RecipeError(
            f"objective.loss: {loss} needs embeddings that are not normalised, and those of the {retriever.name} "
            f"retriever are; use the retriever 'ranking', or {cosines}"
        )


def _lstms(captioner: nn.Module) -> tuple[str, ...]:
    name = getattr(captioner, "name", "")
    if name not in LSTMS:
        raise RecipeError(
            f"objective.update: the {name} captioner has no LSTM; use 'all', or one of {', '.join(LSTMS)}"
        )
    return LSTMS[name]


def _train_only(model: nn.Module, parts: tuple[str, ...]) -> None:
    for path, parameter in model.named_parameters():
        parameter.requires_grad_(path.split(".")[0] in parts)
