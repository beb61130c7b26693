"""Decode and encode pictures in batches, in several threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from tellapart.data.images import load_image
from tellapart.data.records import Dataset, Record
from tellapart.data.rows import StoreType, pack, pooled_of
from tellapart.encoders.base import EncoderIdentity, ImageEncoder
from tellapart.errors import DataError

BATCH = 16  # images


def encode_batches(
    dataset: Dataset, batches: Iterable[Sequence[Record]], encoder: ImageEncoder, kind: StoreType = "float16"
) -> Iterator[tuple[np.ndarray, list[dict[str, str]]]]:
    """Features of each batch of records in order, as rows of a store, and the pictures that were skipped.

    The pooled features come last: the mean of the regions, or the last region if it is a class token.

    Each worker decodes and encodes whole batches. A bounded number of batches is queued ahead, which bounds memory.
    """

    def work(records: Sequence[Record]) -> tuple[np.ndarray, list[dict[str, str]]]:
        readable, images, skipped = [], [], []
        for position, record in enumerate(records):
            try:
                images.append(encoder.squeeze(load_image(dataset.path(record), at_least=encoder.size)))
                readable.append(position)
            except DataError as error:
                skipped.append({"id": record.id, "image": record.image, "reason": str(error)})
        identity = encoder.identity
        features = np.zeros((len(records), rows_per_image(identity), identity.width), dtype=np.float32)
        if images:
            grid = encoder.encode(images)
            features[readable, : identity.regions] = grid
            features[readable, -1] = pooled_of(grid, identity.class_token)
        return pack(features, kind), skipped

    waiting: deque[Future[tuple[np.ndarray, list[dict[str, str]]]]] = deque()
    pool = ThreadPoolExecutor(max_workers=encoder.concurrency)
    try:
        for batch in batches:
            waiting.append(pool.submit(work, batch))
            if len(waiting) > 2 * encoder.concurrency:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def rows_per_image(identity: EncoderIdentity) -> int:
    """Rows of an image in the array: its regions and their mean, unless a class token is among them."""
    return identity.regions if identity.class_token else identity.regions + 1
