"""The output layer: logits over the vocabulary, and the log probability of one word without them."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from tellapart.captioners.packed import Linear, product
from tellapart.text import PAD, START, Vocabulary

# A product is written up to 1.5 times as fast if its rows start at a multiple of a cache line, and few vocabularies
# have such a size.
NUMBERS_IN_LINE = 16
# Rows of the [rows, words] table worked on at once: in one product, and while they are in the cache.
PRODUCT_ROWS = 1024
CACHED_ROWS = 32


class WordLogits(Linear):
    """Hidden states -> logits over the vocabulary; those of `<pad>` and `<start>` are -inf.

    The -inf is added to the bias, which costs no extra pass over the logits.
    """

    def __init__(self, width: int, vocabulary: Vocabulary) -> None:
        super().__init__(width, len(vocabulary))
        impossible = torch.zeros(len(vocabulary))
        impossible[[PAD, START]] = -torch.inf
        self.register_buffer("impossible", impossible, persistent=False)
        self.impossible: torch.Tensor

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return product(self, input, self.bias + self.impossible)

    def log_softmax(self, hidden: torch.Tensor) -> torch.Tensor:
        """ln p of all words for each hidden state, `[rows, words]` in float32."""
        logits: torch.Tensor = self(hidden).float()
        if torch.is_grad_enabled() or logits.device.type != "cpu":
            return logits.log_softmax(dim=1)
        for part in torch.split(logits, CACHED_ROWS):
            part.copy_(part.log_softmax(dim=1))
        return logits

    def _is_plain(self, hidden: torch.Tensor) -> bool:
        """Whether the faster ways to compute it are possible: float32 on a CPU."""
        single = hidden.dtype == self.weight.dtype == torch.float32
        return single and hidden.device.type == "cpu" and not torch.is_autocast_enabled("cpu")

    def log_prob(self, hidden: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """ln p of one word for each hidden state, `[rows]` in float32: the log softmax of the logits at these words.

        Args:
            hidden: `[rows, width]`.
            words: `[rows]`.
        """
        if not self._is_plain(hidden):
            return -functional.cross_entropy(self(hidden).float(), words, reduction="none")
        inputs = hidden, self.weight, self.bias + self.impossible
        if torch.is_grad_enabled() and any(one.requires_grad for one in inputs):
            found: torch.Tensor = _LogProb.apply(*inputs, words)  # type: ignore[no-untyped-call]
            return found
        with torch.no_grad():
            blocks = zip(*(torch.split(values, PRODUCT_ROWS) for values in (hidden, words)), strict=True)
            return torch.cat([_log_prob(self(some), of_some)[0] for some, of_some in blocks])


def _log_prob(scores: torch.Tensor, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """z_w - ln Σ_v exp z_v and Σ_v exp(z_v - max z), `[rows]` each; the scores z become exp(z - max z)."""
    own, total = scores.gather(1, words[:, None]).squeeze(1), scores.new_empty(len(scores))
    for part, sums, of_word in zip(*(torch.split(values, CACHED_ROWS) for values in (scores, total, own)), strict=True):
        highest = part.amax(dim=1, keepdim=True)
        torch.sum(part.sub_(highest).exp_(), dim=1, out=sums)
        of_word.sub_(highest.squeeze(1))
    return own - total.log(), total


class _LogProb(torch.autograd.Function):
    """ln p = z_w - ln Σ_v exp z_v with z = W h + b, in one pass over the table of z.

    One table `[rows, words]` is kept for the gradient, exp(z - max z), instead of three (logits, log probabilities and
    their gradient).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, words: torch.Tensor
    ) -> torch.Tensor:
        table = _table(hidden, len(hidden), len(weight))
        blocks = zip(*(torch.split(values, PRODUCT_ROWS) for values in (table, hidden, words)), strict=True)
        parts = [_log_prob(torch.addmm(bias, some, weight.t(), out=place), said) for place, some, said in blocks]
        found, total = map(torch.cat, zip(*parts, strict=True))
        ctx.save_for_backward(hidden, weight, words, table, total)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # d ln p / d z_v = [v = w] - exp(z_v - max z) / Σ exp(z - max z). The table is used as it is: the factors of its
        # rows go to the other side of the products, and the words themselves are added apart.
        hidden, weight, words, table, total = ctx.saved_tensors
        of_hidden, of_weight, of_bias = None, None, None
        share = (gradient / total)[:, None]
        if ctx.needs_input_grad[0]:
            of_hidden = (table @ weight).mul_(-share).addcmul_(gradient[:, None], weight[words])
        if ctx.needs_input_grad[1]:
            of_weight = table.t() @ (hidden * -share)
            of_weight.index_add_(0, words, hidden * gradient[:, None])
        if ctx.needs_input_grad[2]:
            of_bias = (table.t() @ -share).squeeze(1).index_add_(0, words, gradient)
        return of_hidden, of_weight, of_bias, None


def _table(like: torch.Tensor, rows: int, words: int) -> torch.Tensor:
    """An empty table `[rows, words]` whose rows start at multiples of a cache line."""
    return like.new_empty(rows, -(-words // NUMBERS_IN_LINE) * NUMBERS_IN_LINE)[:, :words]
