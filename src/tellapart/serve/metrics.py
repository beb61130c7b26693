"""Counts and times for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The metrics of one service. No picture, caption or query is in them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        where: Any = {"namespace": "tellapart", "registry": self.registry}
        self._answers = Counter("requests", "answers", ["route", "method", "status"], **where)
        self._seconds = Histogram("request_seconds", "time until an answer", ["route"], **where)
        self._batches = Histogram("batch_items", "items that the models did at once", ["kind"], buckets=SIZES, **where)
        self._work = Counter("work_seconds", "time that the models worked", ["kind"], **where)
        self._broken = Counter("refused_pictures", "uploads that were no usable picture", ["code"], **where)

    def on_answer(self, route: str, method: str, status: int, seconds: float) -> None:
        known = method if method in ("GET", "POST", "HEAD") else "other"  # a client may invent methods
        self._answers.labels(route, known, status).inc()
        self._seconds.labels(route).observe(seconds)

    def on_batch(self, kind: str, items: int, seconds: float) -> None:
        self._batches.labels(kind).observe(items)
        self._work.labels(kind).inc(seconds)

    def on_broken(self, code: str) -> None:
        self._broken.labels(code).inc()

    def watch(self, name: str, what: str, value: Callable[[], float]) -> None:
        """A number that is asked for when the metrics are read."""
        Gauge(name, what, namespace="tellapart", registry=self.registry).set_function(value)

    def text(self) -> bytes:
        found: bytes = generate_latest(self.registry)
        return found
