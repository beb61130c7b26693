"""A page of example queries of a retriever, with the pictures and captions it finds (CODER paper, figure 5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tellapart.evaluation.evaluate_retrieval import RetrievalEvaluation
from tellapart.evaluation.retrieval import FIRST
from tellapart.files import GENERATOR, check_output, write_text
from tellapart.pages.base import Pictures, render
from tellapart.run import Run


def check_gallery(folder: Path, split: str) -> Path:
    """The path of the page in a folder; raises unless it can be written."""
    path = folder / ("gallery.html" if split == "test" else f"gallery-{split}.html")
    check_output(path, GENERATOR)
    return path


def write_gallery(run: Run, measured: RetrievalEvaluation) -> Path:
    """Write `gallery.html` (of another split `gallery-val.html`) beside the measured figures; gives its path.

    Pictures are inside the page. An existing page is replaced if tellapart wrote it.

    Args:
        run: the retriever's training.
        measured: from `evaluate_retrieval`.
    """
    path = check_gallery(measured.folder, measured.split)
    assert run.recipe.retriever is not None
    dataset = run.data.dataset
    text = render(
        "gallery.html",
        name=run.recipe.name,
        retriever=run.recipe.retriever["name"],
        objective=run.recipe.objective["name"],
        description=run.recipe.description,
        data=dataset.name,
        split=measured.split,
        images=len(measured.images),
        captions=len(measured.captions),
        figures=measured.figures,
        how_reranked=measured.how_reranked,
        tables=[("", measured.figures), *([(", mean of folds", measured.folds)] if measured.folds else [])],
        **shown_queries(measured, Pictures(dataset)),
    )
    write_text(path, text)
    return path


def shown_queries(measured: RetrievalEvaluation, pictures: Pictures) -> dict[str, Any]:
    """Example queries with their results, for the template `queries.html`.

    Args:
        measured: from `evaluate_retrieval`.
        pictures: of its data.
    """
    texts = [
        {**query, "retrieved": [{"picture": pictures[id], "own": id == query["id"]} for id in query["retrieved"]]}
        for query in measured.shown["texts"]
    ]
    asked = [
        {
            "picture": pictures[query["id"]],
            "rank": query["rank"],
            "retrieved": [{**item, "own": item["id"] == query["id"]} for item in query["retrieved"]],
        }
        for query in measured.shown["images"]
    ]
    return {"first": FIRST, "texts": texts, "pictures": asked}
