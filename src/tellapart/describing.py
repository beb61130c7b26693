"""A captioner with its image encoder, for pictures of any kind: `tellapart.load()`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard, cast, overload

import numpy as np
import torch
from PIL import Image

from tellapart.captioners.base import Captioner, load_captioner
from tellapart.data.images import Picture, open_picture
from tellapart.decoding.base import Caption, Decodable
from tellapart.decoding.ensemble import Ensemble
from tellapart.decoding.search import BLOCK, decode
from tellapart.decoding.settings import DecodingSettings
from tellapart.encoders.base import ImageEncoder, accelerator
from tellapart.huggingface.hub import find_usable, locate
from tellapart.models import model_folder, open_own_encoder, read_description
from tellapart.recipe import Recipe
from tellapart.retrievers.base import Retriever, load_retriever
from tellapart.text import UNKNOWN

# A run or model folder, or several: an ensemble.
Models = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class WordScore:
    """What one word adds to the score of a caption.

    Attributes:
        word: the word (of some models, a piece of one); `<end>` for the end of the caption.
        log_prob: ln p(word | words before, picture).
        picture_adds: how much of it is due to the picture: log_prob − ln p(word | words before, no picture).
        known: false for a word that the captioner does not know; it is scored as `<unk>`, any rare word.
    """

    word: str
    log_prob: float
    picture_adds: float
    known: bool = True


@dataclass(frozen=True)
class Score:
    """How well a captioner thinks that a caption fits a picture.

    Attributes:
        log_prob: ln p(caption | picture), the sum over its words and its end.
        picture_adds: ln p(caption | picture) − ln p(caption | no picture). Near 0: the caption fits any picture, if the
            captioner was trained with `picture_dropout`. For others, the shipped one too, ln p without a picture is a
            rough guess: compare pictures for one caption, and ignore the sign.
        words: the terms of both sums.
    """

    log_prob: float
    picture_adds: float
    words: tuple[WordScore, ...]


class Describer:
    """A captioner with its image encoder; made by `tellapart.load`.

    Pictures are paths, the bytes of a file, Pillow images or arrays of pixels (`tellapart.data.images.Picture`).

    Args:
        model: a run folder or a model folder; a list of them is an ensemble (mean of the word probabilities).
        retriever: the retriever that `tell_apart` and `rank` use; by default the shipped one.
    """

    def __init__(self, model: Models = "shipped", retriever: str | Path | None = None) -> None:
        self._named = model
        self.retriever_folder = retriever

    # --- what it does -------------------------------------------------------------------------------------------------

    @overload
    def caption(self, images: Picture, decoding: DecodingSettings | None = None) -> Caption: ...  # type: ignore[overload-overlap]
    @overload
    def caption(self, images: Iterable[Picture], decoding: DecodingSettings | None = None) -> list[Caption]: ...
    def caption(
        self, images: Picture | Iterable[Picture], decoding: DecodingSettings | None = None
    ) -> Caption | list[Caption]:
        """Caption one picture, or each of several; the best caption of the beam.

        Args:
            images: a picture, or a list of pictures, which may be long.
            decoding: by default that of the model.

        Example:
            >>> str(tellapart.load().caption("photo.jpg"))                    # doctest: +SKIP
            'a giraffe standing next to a tree'
            >>> wide = DecodingSettings(beam=10)                              # doctest: +SKIP
            >>> tellapart.load().caption("photo.jpg", decoding=wide).log_prob  # doctest: +SKIP
            -6.2
        """
        # What cannot be gone through is no list: as one picture it gets a plain message.
        if _is_picture(images) or not isinstance(images, Iterable):
            return self.caption([images], decoding)[0]
        found: list[Caption] = []
        for block in _blocks(cast(Iterable[Picture], images), BLOCK):
            several = decode(self.captioner, self.features(block, first=len(found)), decoding or self.decoding)
            found += [captions[0] for captions in several]
        return found

    def score(self, image: Picture, caption: str) -> Score:
        """ln p(caption | picture) with each word's part, and how much of it is due to the picture.

        Example:
            >>> score = tellapart.load().score("photo.jpg", "a giraffe next to a tree")     # doctest: +SKIP
            >>> max(score.words, key=lambda word: word.picture_adds).word                   # doctest: +SKIP
            'giraffe'
        """
        (score,) = self.scores([image], caption)
        return score

    @torch.no_grad()
    def scores(self, images: Iterable[Picture], caption: str) -> list[Score]:
        """As `score`, of one caption for several pictures."""
        captioner = self.captioner
        tokens = captioner.tokenize([caption])
        words, known = _words(captioner, caption, tokens[0])
        # No picture is features of zeros, as in guidance.
        shape = (1, captioner.encoder.regions, captioner.encoder.width)
        nothing = self._word_scores(torch.zeros(shape, device=captioner.device), tokens)[0]
        found: list[Score] = []
        for block in _blocks(images, BLOCK):
            for own in self._word_scores(self.features(block, first=len(found)), tokens):
                parts = zip(words, own.tolist(), (own - nothing).tolist(), known, strict=True)
                found.append(
                    Score(own.sum().item(), (own - nothing).sum().item(), tuple(WordScore(*part) for part in parts))
                )
        return found

    @torch.no_grad()
    def similarities(self, images: Iterable[Picture], caption: str) -> list[float]:
        """How well the retriever thinks that a caption fits each picture; higher is better."""
        retriever, found = self.retriever, list[float]()
        text = retriever.embed_texts([caption])
        for block in _blocks(images, BLOCK):
            features = self.features(block, first=len(found), of=retriever)
            found += retriever.similarity(retriever.embed_images(features), text)[:, 0].tolist()
        return found

    def tell_apart(self, images: Sequence[Picture], **options: Any) -> Any:
        """Captions that tell these pictures apart; see `tellapart.tell_apart`.

        Example:
            >>> tellapart.load().tell_apart(["beach-1.jpg", "beach-2.jpg"])                 # doctest: +SKIP
        """
        import tellapart

        model = self.models[0] if len(self.models) == 1 else self.models
        return tellapart.tell_apart(images, model, self.retriever_folder or "shipped/retriever", **options)

    # --- what it is made of, each loaded on first use -----------------------------------------------------------------

    @cached_property
    def models(self) -> list[Path]:
        """The folders of the captioners."""
        named = [self._named] if isinstance(self._named, str | Path) else self._named
        return [find_usable(one, "captioner") for one in named]

    @cached_property
    def decoding(self) -> DecodingSettings:
        """How captions are generated: as in the recipe of the (first) model."""
        return own_decoding(self.models)

    @cached_property
    def _captioners(self) -> list[Captioner]:
        return [load_captioner(folder).to(accelerator() or "cpu") for folder in self.models]

    @cached_property
    def captioner(self) -> Decodable:
        """The captioner, or the ensemble."""
        return self._captioners[0] if len(self._captioners) == 1 else Ensemble(self._captioners)

    @cached_property
    def retriever(self) -> Retriever:
        folder = find_usable(self.retriever_folder or "shipped/retriever", "retriever")
        return load_retriever(folder).to(accelerator() or "cpu")

    @cached_property
    def encoder(self) -> ImageEncoder:
        """The image encoder of the captioner."""
        return open_own_encoder(self._captioners[0], self.models[0])

    @cached_property
    def encoder_of_retriever(self) -> ImageEncoder:
        """The image encoder of the retriever; the captioner's, if that is open and the same."""
        if "encoder" in vars(self) and self.retriever.encoder == self.encoder.identity:
            return self.encoder
        return open_own_encoder(self.retriever, self.retriever_folder or "shipped/retriever")

    def features(self, images: Iterable[Picture], first: int = 0, of: Retriever | None = None) -> torch.Tensor:
        """Image features `[images, regions, width]`.

        Args:
            images: pictures, at least one.
            first: number of the first picture, for messages.
            of: for the retriever instead of the captioner.
        """
        encoder = self.encoder if of is None else self.encoder_of_retriever
        device = self.captioner.device if of is None else of.device
        pictures: list[Image.Image] = []
        for number, picture in enumerate(images, start=first + 1):
            pictures.append(encoder.squeeze(open_picture(picture, encoder.size, f"picture {number}")))
        return torch.from_numpy(encoder.encode(pictures)).to(device)

    def _word_scores(self, features: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """ln p of each token `[images, tokens]` of one caption, for each image."""
        rows = torch.arange(len(features), device=features.device)
        memory = self.captioner.encode(features)
        return self.captioner.log_prob(memory, tokens.expand(len(rows), -1), rows, per_token=True).cpu()


def load(model: Models | None = None, retriever: str | Path | None = None, *, download: bool = False) -> Describer:
    """Load a captioner that takes pictures of any kind.

    Args:
        model: a run folder or a model folder, or a list of them (an ensemble); by default the shipped captioner. A
            folder of BLIP or GIT works too, and with `download` its name on the Hugging Face hub.
        retriever: a run or model folder for `tell_apart`; by default the shipped retriever. Also CLIP or SigLIP.
        download: get models that are named from the hub, once. Otherwise nothing is downloaded.

    Example:
        >>> model = tellapart.load()                                      # doctest: +SKIP
        >>> print(model.caption("photo.jpg"))                             # doctest: +SKIP
        a giraffe standing next to a tree
        >>> model.score("photo.jpg", "a zebra").log_prob                  # doctest: +SKIP
        -13.1
    """
    if download:
        named = [model] if isinstance(model, str | Path) else list(model or [])
        for one in [*named, *([] if retriever is None else [retriever])]:
            locate(one, download=True)
    describer = Describer("shipped" if model is None else model, retriever)
    _ = describer.decoding  # a missing model is an error now
    return describer


def own_decoding(model: Models) -> DecodingSettings:
    """The decoding settings of a run's recipe or an exported model (the first of several); else the defaults."""
    first = find_usable(model if isinstance(model, str | Path) else next(iter(model)), "captioner")
    if (first / "recipe.yaml").exists():
        return Recipe.load(first).decoding
    return DecodingSettings.parse(read_description(model_folder(first)).get("decoding") or {})


def kept_features(folder: Path) -> dict[str, Any]:
    """How a run keeps its features, as settings of `data`; the defaults for a model folder."""
    if not (folder / "recipe.yaml").exists():
        return {}
    return Recipe.load(folder).data.model_dump(include={"store", "mirrored"})


def _is_picture(images: Any) -> TypeGuard[Picture]:
    return isinstance(images, str | Path | bytes | bytearray | Image.Image) or (
        isinstance(images, np.ndarray) and images.ndim in (2, 3)
    )


def _blocks(images: Iterable[Picture], size: int) -> Iterable[list[Picture]]:
    block: list[Picture] = []
    for image in images:
        block.append(image)
        if len(block) == size:
            yield block
            block = []
    if block:
        yield block


def _words(captioner: Decodable, caption: str, tokens: torch.Tensor) -> tuple[list[str], list[bool]]:
    """Each token of a caption as text, and whether the captioner knows it."""
    known = (tokens != UNKNOWN).tolist()
    words = [word or "<end>" for word in captioner.detokenize(tokens[:, None])]
    written = captioner.vocabulary.words(caption)
    if len(written) == len(words) - 1:  # tokens are words, not pieces of them
        words = [word if sure else own for own, word, sure in zip([*written, ""], words, known, strict=True)]
    return words, known
