"""The prefix tree of a set of captions: a common prefix is one path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from tellapart.text import START

NO_CAPTION = -1


@dataclass(frozen=True)
class PrefixTree:
    """All prefixes of some captions, numbered level by level; the children of a node are consecutive.

    A node is a prefix: its token is the last word of it (the root, the empty prefix, has the start token). One step of
    a captioner at a node gives the probabilities of all its children and of an end here.

    Attributes:
        token: `[nodes]`.
        parent: `[nodes]`; the root is its own.
        first_child: `[nodes]`.
        children: `[nodes]`, number of children.
        caption: `[nodes]`, the caption that ends here, or -1.
        levels: index of the first node of each level, and the end of the last level.

    Example:
        >>> tree = PrefixTree.of([(), (5, 6), (5, 7, 8)])
        >>> len(tree), tree.widest, tree.token.tolist(), tree.caption.tolist()
        (5, 2, [1, 5, 6, 7, 8], [0, -1, 1, -1, 2])
    """

    token: NDArray[np.int64]
    parent: NDArray[np.int64]
    first_child: NDArray[np.int64]
    children: NDArray[np.int64]
    caption: NDArray[np.int64]
    levels: tuple[int, ...]

    @classmethod
    def of(cls, captions: Sequence[tuple[int, ...]]) -> PrefixTree:
        """The tree of these token rows (without end tokens): no two of them equal, in ascending order."""
        nodes = [_Node(START, 0, range(len(captions)))]
        levels = [0]
        while levels[-1] < len(nodes):
            level = nodes[levels[-1] :]
            first, depth = levels[-1], len(levels) - 1
            levels.append(len(nodes))
            for number, node in enumerate(level, start=first):
                below = node.below
                if below and len(captions[below[0]]) == depth:  # in ascending order the prefix itself comes first
                    node.caption = below[0]
                    below = below[1:]
                node.first_child = len(nodes)
                for word, group in groupby(below, key=lambda caption: captions[caption][depth]):
                    same = list(group)
                    nodes.append(_Node(word, number, range(same[0], same[-1] + 1)))
                node.children = len(nodes) - node.first_child
        return cls(
            token=np.array([node.token for node in nodes]),
            parent=np.array([node.parent for node in nodes]),
            first_child=np.array([node.first_child for node in nodes]),
            children=np.array([node.children for node in nodes]),
            caption=np.array([node.caption for node in nodes]),
            levels=tuple(levels),
        )

    def __len__(self) -> int:
        return len(self.token)

    @property
    def widest(self) -> int:
        """How many nodes the widest level has."""
        return int(np.diff(self.levels).max())

    def lowest(self, of_caption: NDArray[np.float64]) -> NDArray[np.float64]:
        """For each node the lowest value of the captions with this prefix."""
        lowest = np.where(self.caption == NO_CAPTION, np.inf, of_caption[self.caption])
        for first, last in reversed(list(pairwise(self.levels[1:]))):
            np.minimum.at(lowest, self.parent[first:last], lowest[first:last])
        return lowest


@dataclass
class _Node:
    token: int
    parent: int
    below: range  # the captions with this prefix
    caption: int = NO_CAPTION
    first_child: int = 0
    children: int = 0
