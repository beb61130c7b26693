"""Work that several processes or machines share, each doing a part."""

from __future__ import annotations

from dataclasses import dataclass

from tellapart.errors import StoreError


@dataclass(frozen=True)
class Part:
    """One of `of` parts of some work; `index` counts from 0."""

    index: int = 0
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Part:
        """`"2/4"` is the second of four parts."""
        index, _, of = text.partition("/")
        if not (index.isdecimal() and of.isdecimal() and 1 <= int(index) <= int(of)):
            raise StoreError(f"'{text}' is not a part; write it as 1/4, 2/4, …")
        return cls(int(index) - 1, int(of))


WHOLE = Part()
