"""Caption metrics: pure functions of texts, ranks and per-item scores."""

from tellapart.metrics.bleu import BleuScores, bleu_scores
from tellapart.metrics.bootstrap import (
    Interval,
    PairedDifference,
    confidence_interval,
    correlation_interval,
    holm,
    paired_bootstrap,
    paired_bootstraps_over_seeds,
)
from tellapart.metrics.cider import DocumentFrequencies, cider_scores
from tellapart.metrics.consensus import best_candidates, consensus_scores, nearest_features
from tellapart.metrics.distinctiveness import cider_between, clip_scores, reference_clip_scores
from tellapart.metrics.diversity import (
    CandidateScores,
    Diversity,
    candidate_scores,
    caption_diversity,
    distinct_ngrams,
    self_cider,
)
from tellapart.metrics.endings import bad_endings
from tellapart.metrics.image_scores import ImageScores
from tellapart.metrics.meteor import MeteorScores, meteor_scores
from tellapart.metrics.ptb import tokenize
from tellapart.metrics.ranks import (
    RankSummary,
    RetrievalRanks,
    RetrievalSummary,
    fold_ranks,
    inner_products,
    rank_of_true,
    recall_at,
    retrieval_ranks,
    summarize_ranks,
    summarize_retrieval,
)
from tellapart.metrics.rouge import rouge_scores
from tellapart.metrics.scores import Scores, evaluate

__all__ = [
    "BleuScores",
    "CandidateScores",
    "Diversity",
    "DocumentFrequencies",
    "ImageScores",
    "Interval",
    "MeteorScores",
    "PairedDifference",
    "RankSummary",
    "RetrievalRanks",
    "RetrievalSummary",
    "Scores",
    "bad_endings",
    "best_candidates",
    "bleu_scores",
    "candidate_scores",
    "caption_diversity",
    "cider_between",
    "cider_scores",
    "clip_scores",
    "confidence_interval",
    "consensus_scores",
    "correlation_interval",
    "distinct_ngrams",
    "evaluate",
    "fold_ranks",
    "holm",
    "inner_products",
    "meteor_scores",
    "nearest_features",
    "paired_bootstrap",
    "paired_bootstraps_over_seeds",
    "rank_of_true",
    "recall_at",
    "reference_clip_scores",
    "retrieval_ranks",
    "rouge_scores",
    "self_cider",
    "summarize_ranks",
    "summarize_retrieval",
    "tokenize",
]
