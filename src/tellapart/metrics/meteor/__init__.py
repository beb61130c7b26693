"""METEOR 1.5 in NumPy: `score.py` is the metric, `definition.py` the alignment in its simplest form."""

from tellapart.metrics.meteor.score import MeteorScores, meteor_scores

__all__ = ["MeteorScores", "meteor_scores"]
