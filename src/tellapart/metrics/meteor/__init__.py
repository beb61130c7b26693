"""METEOR 1.5 in NumPy: `score.py` is the metric, `definition.py` its alignment in plain words, the rest its parts."""

from tellapart.metrics.meteor.score import MeteorScores, meteor_scores

__all__ = ["MeteorScores", "meteor_scores"]
