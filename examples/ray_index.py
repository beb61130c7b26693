"""Index photographs with Ray Data: parts are encoded by several processes or machines, into the same index.

    pip install 'tellapart[milvus]' 'ray[data]'
    python examples/ray_index.py /photos --to http://milvus.example:19530/photos --retriever RUN --parts 8

Ray runs each part as a task: `PhotoIndex.add` with `part`, which is what `tellapart index --part 2/8` does. A part
whose machine goes away is run again, and continues where it was. All machines must see the photographs and
the retriever under the same paths. On one machine a folder of LanceDB files works too: processes take turns at writing.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import ray

from tellapart.data.features import Part
from tellapart.index.photos import open_index


def index_part(row: dict[str, Any]) -> dict[str, Any]:
    """Encode one part of the photographs and write it to the index."""
    import torch

    torch.set_num_threads(row["cpus"])  # else every task would use all cores of its machine
    index = open_index(row["to"], row["retriever"] or None)
    changes = index.add(row["photos"].split("\0"), part=Part.parse(f"{row['part']}/{row['of']}"))
    return {"part": row["part"], "added": changes.added, "skipped": "\n".join(changes.skipped)}


def index_with_ray(
    photos: list[str], to: str, retriever: str | None = None, parts: int = 4, cpus: int = 1
) -> list[dict[str, Any]]:
    """Index photographs in so many parts; gives what each part did.

    Args:
        photos: pictures or folders, as absolute paths.
        to: folder or address of the index.
        retriever: a retriever's folder; by default the one of the index, or the shipped one.
        parts: number of tasks: a few for each process that Ray may start.
        cpus: processors of one task.
    """
    open_index(to, retriever)  # made once, before the tasks
    about = {"photos": "\0".join(photos), "to": to, "retriever": retriever or "", "of": parts, "cpus": cpus}
    tasks = ray.data.from_items([{"part": part + 1, **about} for part in range(parts)], override_num_blocks=parts)
    done: list[dict[str, Any]] = tasks.map(index_part, num_cpus=cpus).take_all()
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", nargs="+")
    parser.add_argument("--to", required=True)
    parser.add_argument("--retriever")
    parser.add_argument("--parts", type=int, default=4)
    given = parser.parse_args()
    to = given.to if "://" in given.to else str(Path(given.to).resolve())
    photos = [str(Path(path).resolve()) for path in given.photos]
    for row in index_with_ray(photos, to, given.retriever, given.parts):
        print(f"part {row['part']}: {row['added']:,} added")
        if row["skipped"]:
            print(row["skipped"])


if __name__ == "__main__":
    main()
