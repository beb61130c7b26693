"""Words of captions: which carry content, and what a captioner thinks of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tellapart.decoding.base import Decodable
from tellapart.text import PAD, SPECIALS, plain_words

# English words that say nothing about a picture by themselves. Numbers, colours, places (under, behind) are content.
# fmt: off
FUNCTION_WORDS = frozenset(
    {
        "a", "an", "the", "this", "that", "these", "those", "some", "any", "each", "every", "all", "another",
        "other", "its", "his", "her", "their", "our", "my", "your", "it", "he", "she", "they", "them", "him",
        "we", "you", "i", "who", "which", "what", "there", "here", "is", "are", "was", "were", "be", "been",
        "being", "am", "has", "have", "had", "do", "does", "did", "can", "could", "will", "would", "may",
        "might", "shall", "should", "and", "or", "but", "as", "if", "while", "when", "so", "than", "then", "of",
        "to", "in", "on", "at", "by", "for", "with", "from", "into", "onto", "up", "out", "off", "over",
        "about", "very", "just", "also", "too", "not", "no", "s", "t",
    }
)
# fmt: on


def is_content(word: str) -> bool:
    """Whether a word, in lower case, carries content; `<unk>` does not.

    >>> [word for word in "a man with the red hat".split() if is_content(word)]
    ['man', 'red', 'hat']
    """
    return word not in FUNCTION_WORDS and word not in SPECIALS and any(letter.isalnum() for letter in word)


@dataclass(frozen=True)
class Word:
    """A word of a caption.

    Attributes:
        text: in the captioner's own spelling.
        first, end: its tokens.
    """

    text: str
    first: int
    end: int


def words_of(captioner: Decodable, tokens: torch.Tensor) -> list[list[Word]]:
    """The words of each caption with their tokens; a token of a captioner with word pieces is part of a word.

    Args:
        captioner: whose tokens they are.
        tokens: from `tokenize`, `[captions, tokens]`.
    """
    captions, longest = tokens.shape
    # Each caption up to each of its tokens: the number of words in it tells which word the last token belongs to.
    prefixes = tokens[:, None].expand(captions, longest, longest)
    within = torch.ones(longest, longest, dtype=torch.bool, device=tokens.device).tril()
    texts = captioner.detokenize(prefixes.masked_fill(~within, PAD).reshape(captions * longest, longest))
    real = ((tokens != PAD).sum(dim=1) - 1).tolist()  # without the end token
    found: list[list[Word]] = []
    for caption, length in enumerate(real):
        whole = texts[caption * longest + longest - 1].split()
        counts = [len(texts[caption * longest + place].split()) for place in range(length)]
        words: list[Word] = []
        for place, count in enumerate(counts):
            if count > len(whole) or count == 0:
                continue
            if words and len(words) == count:
                words[-1] = Word(whole[count - 1], words[-1].first, place + 1)
            else:
                words.append(Word(whole[count - 1], place, place + 1))
        found.append(words)
    return found


def marked_words(words: Sequence[Word], gain: Sequence[float], least: float) -> list[str]:
    """The words that tell a picture apart: content words whose gain is at least `least`; else the one that gains most.

    Args:
        words: of the caption.
        gain: of each word: ln p for the picture minus ln p for its distractors.
        least: in nats.
    """
    content = [(value, word.text) for word, value in zip(words, gain, strict=True) if is_content(word.text)]
    marked = [text for value, text in content if value >= least]
    if not marked and content and max(content)[0] > 0:
        marked = [max(content)[1]]
    return list(dict.fromkeys(marked))


def without_shared(captions: Sequence[str], words: Sequence[Sequence[str]]) -> list[list[str]]:
    """The marked words of each caption of a group, without those that all its captions have: they tell nothing apart.

    >>> without_shared(["a red house", "a blue house"], [["red", "house"], ["blue"]])
    [['red'], ['blue']]
    """
    shared = set.intersection(*({*caption.split(), *plain_words(caption)} for caption in captions))
    return [[word for word in own if word not in shared] for own in words]
