"""Caption metrics: pure functions of texts, ranks and per-item figures."""

from tellapart.metrics.bleu import BleuScores, bleu_scores
from tellapart.metrics.bootstrap import Interval, PairedDifference, confidence_interval, paired_bootstrap
from tellapart.metrics.cider import CiderScores, DocumentFrequencies, cider_scores
from tellapart.metrics.diversity import Diversity, caption_diversity
from tellapart.metrics.ptb import tokenize
from tellapart.metrics.ranks import RankSummary, rank_of_true, recall_at, summarize_ranks
from tellapart.metrics.rouge import RougeScores, rouge_scores
from tellapart.metrics.scores import Scores, evaluate

__all__ = [
    "BleuScores",
    "CiderScores",
    "Diversity",
    "DocumentFrequencies",
    "Interval",
    "PairedDifference",
    "RankSummary",
    "RougeScores",
    "Scores",
    "bleu_scores",
    "caption_diversity",
    "cider_scores",
    "confidence_interval",
    "evaluate",
    "paired_bootstrap",
    "rank_of_true",
    "recall_at",
    "rouge_scores",
    "summarize_ranks",
    "tokenize",
]
