"""Which retrievers can make an index: CLIP and SigLIP folders too."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="comes with the extra 'hf'")

from support.dual_encoders import KINDS, encoder_of, make_folder, make_retriever
from support.photos import make_retriever_folder
from tellapart.data.images import load_image
from tellapart.errors import RecipeError, StoreError
from tellapart.index.photos import open_index
from tellapart.index.retriever import Reader


@pytest.mark.parametrize("kind", KINDS)
def test_a_dual_encoder_folder_makes_an_index(kind: str, photos: Path, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / kind, kind)
    place = tmp_path / "photos.lance"
    assert open_index(place, folder).add([photos]).added == 12
    retriever, encoder = make_retriever(folder, kind), encoder_of(folder, kind)
    paths = sorted(photos.iterdir())

    features = torch.from_numpy(encoder.encode([encoder.squeeze(load_image(path)) for path in paths]))
    with torch.inference_mode():
        scores = retriever.similarity(retriever.embed_images(features), retriever.embed_texts(["a red dog"]))[:, 0]
    found = {one.path: one.similarity for one in open_index(place).search("a red dog", 12)}
    for path, score in zip(paths, scores.tolist(), strict=True):
        assert found[str(path)] == pytest.approx(score, rel=1e-2, abs=1e-2)  # features are kept in half precision
    assert Reader(folder).unknown_words("zzz qqq") == []
    moved = Path(shutil.move(folder, tmp_path / "moved"))
    assert len(open_index(place, moved).search("a red dog")) == 10, "where its encoder is does not matter"


def test_folders_that_hold_no_retriever(model: Path, photos: Path, tmp_path: Path) -> None:
    tower = make_folder(tmp_path / "tower", "clip", whole=False)
    with pytest.raises(RecipeError, match="a whole CLIP is needed, with its text tower"):
        open_index(tmp_path / "photos.lance", tower)
    (tmp_path / "blip").mkdir()
    (tmp_path / "blip" / "config.json").write_text('{"model_type": "blip"}')
    with pytest.raises(RecipeError, match="holds a model of type 'blip'; a retriever is CLIP or SigLIP"):
        open_index(tmp_path / "photos.lance", tmp_path / "blip")
    assert not (tmp_path / "photos.lance").exists()
    open_index(tmp_path / "photos.lance", model)
    with pytest.raises(StoreError, match="was made by another retriever"):
        open_index(tmp_path / "photos.lance", make_folder(tmp_path / "clip", "clip"))
    assert Reader(make_retriever_folder(tmp_path / "other")).unknown_words("a red zebra") == ["zebra"]
