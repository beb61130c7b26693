"""Model folders of strangers: their code is never run, pickles are never read, damaged files are one line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image

from support import huggingface as tiny
from support.dual_encoders import make_folder as make_dual
from support.dual_encoders import make_retriever
from support.huggingface import make_folder, open_tower, text_folder, transformers
from tellapart.encoders import open_encoder
from tellapart.errors import StoreError, TellapartError
from tellapart.huggingface.coder_transformer import CoderTransformerSettings
from tellapart.huggingface.coder_transformer import text_folder as find_text
from tellapart.huggingface.folders import CONFIGS, find_folder, load_config, read_model, weight_files
from tellapart.huggingface.tokens import read_tokenizer
from tellapart.models import write_model
from tellapart.retrievers.base import load_retriever

MODULE = """
from pathlib import Path
Path({marker!r}).write_text("run")
from transformers import PretrainedConfig, PreTrainedTokenizerFast
class Config(PretrainedConfig):
    model_type = "evil"
class Tokens(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model of each kind, made once; nobody writes into them."""
    place = tmp_path_factory.mktemp("models")
    return {
        "gpt2": make_folder(place / "gpt2", "gpt2"),
        "clip": make_dual(place / "clip", "clip"),
        "bert": text_folder(place / "bert"),
    }


@pytest.fixture
def copy(models: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    return lambda kind: shutil.copytree(models[kind], tmp_path / kind)


def change(path: Path, **values: Any) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **values}))


def add_code(folder: Path, marker: Path, file: str, **values: Any) -> None:
    """Make a file of a folder name a Python module that writes `marker` when it is imported."""
    (folder / "evil.py").write_text(MODULE.format(marker=str(marker)))
    change(folder / file, **values)


CONFIG = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}}
TOKENIZER = {"tokenizer_class": None, "auto_map": {"AutoTokenizer": ["evil.Tokens", "evil.Tokens"]}}


# --- on the command line ----------------------------------------------------------------------------------------------


def run(place: Path, *words: str | Path) -> str:
    """Run tellapart, with "y" typed to every question; returns its only error line."""
    done = subprocess.run(
        [sys.executable, "-c", "from tellapart.cli import main; main()", *map(str, words)],
        input="y\n" * 5,
        capture_output=True,
        text=True,
        cwd=place,
        env={**os.environ, "HF_MODULES_CACHE": str(place / "modules"), "HF_HUB_OFFLINE": "1"},
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "[y/N]" not in done.stdout + done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("tellapart: ")]
    assert done.stderr.endswith(f"{line}\n")
    return line


def recipe(place: Path, encoder: str, **sections: Any) -> Path:
    path = place / "recipe.yaml"
    data = {
        "source": "scenes",
        "scenes": {"train": 2, "val": 1, "test": 1},
        "min_count": 1,
        "encoder": encoder,
        "prepared": str(place / "prepared"),
    }
    training = {"steps": 1, "images_per_batch": 2, "captions_per_image": 1}
    path.write_text(yaml.safe_dump({"name": "tiny", "data": data, "training": training, **sections}))
    return path


@pytest.mark.parametrize(
    ("use", "part"),
    [
        ("encoder", "config.json"),
        ("captioner", "tokenizer_config.json"),
        ("retriever", "config.json"),
        ("coder-transformer", "tokenizer_config.json"),
    ],
)
def test_code_of_a_model_folder_is_never_run(
    use: str, part: str, models: dict[str, Path], copy: Callable[[str], Path], tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    kind = {"encoder": "clip", "captioner": "gpt2", "retriever": "clip", "coder-transformer": "bert"}[use]
    folder = copy(kind)
    add_code(folder, marker, part, **(CONFIG if part == "config.json" else TOKENIZER))
    likelihood, coder = {"objective": {"name": "likelihood"}}, {"objective": {"name": "coder", "loss": "info-nce"}}
    if use == "encoder":
        path = recipe(tmp_path, f"clip:{folder}", captioner={"name": "neuraltalk"}, **likelihood)
    elif use == "captioner":
        captioner = {"name": "hf-encoder-decoder", "model": str(folder)}
        path = recipe(tmp_path, f"encoder-decoder:{models['gpt2']}", captioner=captioner, **likelihood)
    elif use == "retriever":
        path = recipe(tmp_path, f"clip-tokens:{folder}", retriever={"name": "hf-clip"}, **coder)
    else:
        retriever = {"name": "coder-transformer", "text": str(folder), "width": 8}
        path = recipe(tmp_path, f"clip:{models['clip']}", retriever=retriever, **coder)
    line = run(tmp_path, "train", path, "--out", tmp_path / "out")
    assert f"{folder / part}: 'auto_map' names Python code of the model folder, which is never run" in line
    assert not marker.exists()


def test_code_of_a_saved_model_is_never_run(models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    write_model(tiny.make_captioner(models["gpt2"], "gpt2"), tmp_path / "model")
    add_code(tmp_path / "model" / "huggingface", tmp_path / "marker", "config.json", **CONFIG)
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
    line = run(tmp_path, "caption", tmp_path / "a.png", "--model", tmp_path / "model")
    assert "config.json: 'auto_map' names Python code of the model folder, which is never run" in line
    assert not (tmp_path / "marker").exists()


def test_a_pickle_is_never_read(copy: Callable[[str], Path], tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "marker"),)

    folder = copy("clip")
    (folder / "model.safetensors").unlink()
    torch.save(Evil(), folder / "pytorch_model.bin")
    path = recipe(tmp_path, f"clip:{folder}", captioner={"name": "neuraltalk"}, objective={"name": "likelihood"})
    line = run(tmp_path, "train", path, "--out", tmp_path / "out")
    assert f"{folder}: pytorch_model.bin is a pickle, which can run code and is not read; if you trust" in line
    assert not (tmp_path / "marker").exists()


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", CONFIGS)
def test_every_configuration_file_is_checked(file: str, copy: Callable[[str], Path]) -> None:
    folder = copy("clip")
    if file == "config.json":
        change(folder / file, vision_config={"deep": [{"auto_map": {"AutoModel": "evil.Model"}}]})
    else:
        change(folder / file, auto_map={"AutoConfig": "evil.Config"})
    for use in (lambda: open_encoder(f"clip:{folder}"), lambda: load_config(folder), lambda: read_tokenizer(folder)):
        with pytest.raises(StoreError, match=rf"{file}: 'auto_map' names Python code"):
            use()


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"model_type": "evil"}, "transformers has no model of type 'evil', and code of a model folder is never run"),
        ({"model_type": None}, "transformers has no model of type 'None'"),
        ({"model_type": ["clip"]}, "transformers has no model of type"),
        ({"configuration_files": ["config.5.0.0.json"]}, "'configuration_files' names other configuration files"),
        ({"transformers_weights": "adapter_model.bin"}, "'transformers_weights' names another weight file"),
        ({"quantization_config": {"quant_method": "fp8"}}, "'quantization_config' asks for quantised weights"),
        ({"attn_implementation": "some/kernel"}, "'attn_implementation' names code outside transformers"),
        ({"text_config": {"_attn_implementation": {"": "a/b"}}}, "'_attn_implementation' names code outside"),
    ],
)
def test_keys_that_load_something_else(values: dict[str, Any], told: str, copy: Callable[[str], Path]) -> None:
    folder = copy("clip")
    change(folder / "config.json", **values)
    with pytest.raises(StoreError, match=told):
        open_encoder(f"clip:{folder}")


def test_harmless_keys_are_allowed(copy: Callable[[str], Path]) -> None:
    folder = copy("clip")
    change(folder / "config.json", auto_map={}, quantization_config=None, attn_implementation="eager")
    assert open_encoder(f"clip:{folder}").identity.regions == 4


def test_adapters_and_distributed_checkpoints_are_refused(copy: Callable[[str], Path]) -> None:
    folder = copy("clip")
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "evil/model"}')
    with pytest.raises(StoreError, match=r"holds an adapter of peft .*merge it"):
        open_encoder(f"clip:{folder}")
    (folder / "adapter_config.json").unlink()
    shutil.copy(folder / "model.safetensors", folder / "shard-00001-model-00001-of-00001.safetensors")
    with pytest.raises(StoreError, match="holds a distributed checkpoint"):
        open_encoder(f"clip:{folder}")


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/outside.safetensors", "..\\x.safetensors", "a.bin", "", 3]
)
def test_shards_stay_in_their_folder(name: Any, copy: Callable[[str], Path]) -> None:
    folder = copy("clip")
    shutil.move(folder / "model.safetensors", folder.parent / "outside.safetensors")
    name = str(folder.parent / "outside.safetensors") if name == "/outside.safetensors" else name
    index = {"metadata": {}, "weight_map": {"some.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(StoreError, match=r"index\.json: '.*' is not a safetensors file of this folder"):
        weight_files(folder)


@pytest.mark.parametrize("kind", ["bert", "clip", "gpt2"])
def test_chat_templates_are_never_rendered(
    kind: str, copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.utils import chat_template_utils

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("a template was compiled")

    monkeypatch.setattr(chat_template_utils, "_compile_jinja_template", fail)
    folder = copy(kind)
    template = "{% for _ in range(10**9) %}{{ raise_exception('rendered') }}{% endfor %}"
    change(folder / "tokenizer_config.json", chat_template=template)
    (folder / "chat_template.jinja").write_text(template)
    found = read_tokenizer(folder)
    assert found.chat_template == template, "transformers has read it"
    assert found.backend_tokenizer.encode("a red house").ids


# --- damaged files ----------------------------------------------------------------------------------------------------

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "start": lambda content: content[:7],
    "zeros": lambda content: bytes(len(content)),
    "huge header": lambda content: b"\xff" * 7 + b"\x0f" + content[8:],
    "pickle": lambda content: b"\x80\x04cos\nsystem\n(S'touch marker'\ntR.",
    "text": lambda content: b"version https://git-lfs.github.com/spec/v1\n",
}


def assert_one_line(use: Callable[[], Any]) -> None:
    with pytest.raises(StoreError) as caught:
        use()
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_weights_are_one_line(damage: str, copy: Callable[[str], Path]) -> None:
    clip, bert, gpt2 = copy("clip"), copy("bert"), copy("gpt2")
    for folder in (clip, bert, gpt2):
        path = folder / "model.safetensors"
        path.write_bytes(DAMAGE[damage](path.read_bytes()))
    assert_one_line(lambda: open_encoder(f"clip:{clip}").encode([Image.new("RGB", (9, 9))]))
    assert_one_line(lambda: read_model("AutoModel", bert, "bert"))
    assert_one_line(lambda: open_tower(gpt2, "gpt2").identity)


@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json", "tokenizer_config.json", "tokenizer.json"])
@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "3",
        "null",
        '"text"',
        "[" * 100_000,
        "1" * 5000,
        '{"a": ' * 5000,
        "\x00",
        '{"model_type": {}}',
    ],
)
def test_json_of_another_shape_is_one_line(file: str, content: str, copy: Callable[[str], Path]) -> None:
    folder = copy("clip")
    (folder / file).write_text(content)

    def use() -> None:
        encoder = open_encoder(f"clip-tokens:{folder}")
        make_retriever(folder, "clip", encoder.identity)

    if file == "tokenizer_config.json" and content == '{"model_type": {}}':
        use()  # a tokenizer needs no settings
    else:
        assert_one_line(use)


@pytest.mark.parametrize(
    "values",
    [
        {"vision_config": []},
        {"vision_config": {"hidden_size": "many"}},
        {"vision_config": {"patch_size": 0, "image_size": 16, "hidden_size": 12}},
        {"vision_config": {"hidden_size": -3, "image_size": 16}},
        {"vision_config": {"hidden_size": 14, "image_size": 16, "patch_size": 8}},
        {"text_config": {"vocab_size": "x"}},
        {"text_config": {"num_hidden_layers": 10**9}},
        {"text_config": {"num_attention_heads": -2}},
        {"dtype": "load"},
    ],
)
def test_settings_of_another_type_are_one_line(values: dict[str, Any], copy: Callable[[str], Path]) -> None:
    folder = copy("clip")
    change(folder / "config.json", **values)

    def use() -> None:
        encoder = open_encoder(f"clip-tokens:{folder}")
        make_retriever(folder, "clip", encoder.identity)

    assert_one_line(use)


@pytest.mark.parametrize(
    "values",
    [
        {"image_mean": 3},
        {"image_mean": [1, 2]},
        {"image_mean": ["a", "b", "c"]},
        {"image_std": {}},
        {"image_mean": [1e300, 0, 0]},
        {"image_std": [1, 0, 1]},
        {"rescale_factor": 0},
        {"resample": 99},
        {"size": {"height": [16], "width": [16]}},
        {"size": "large"},
    ],
)
def test_preprocessing_of_another_type_is_one_line(values: dict[str, Any], copy: Callable[[str], Path]) -> None:
    folder = copy("clip")
    change(folder / "preprocessor_config.json", **values)
    assert_one_line(lambda: open_encoder(f"clip:{folder}"))


def test_a_missing_tokenizer_is_one_line(copy: Callable[[str], Path]) -> None:
    folder = copy("bert")
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(StoreError, match=r"no tokenizer is here \(tokenizer\.json"):
        read_tokenizer(folder)


def test_a_damaged_configuration_of_a_saved_model(copy: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    write_model(make_retriever(copy("clip"), "clip"), tmp_path / "model")
    path = tmp_path / "model" / "huggingface" / "config.json"
    kept = path.read_text()
    for values in ({"text_config": {"hidden_size": -1}}, {"text_config": 3}, {"projection_dim": "x"}):
        path.write_text(kept)
        change(path, **values)
        with pytest.raises(TellapartError) as caught:
            load_retriever(tmp_path / "model")
        assert len(str(caught.value).splitlines()) == 1


def test_a_panic_of_tokenizers_is_one_line(copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        """As that of pyo3."""

    def panic(*_: Any, **__: Any) -> None:
        raise PanicException("range end index out of range")

    folder = copy("bert")
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", panic)
    assert_one_line(lambda: read_tokenizer(folder))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_opened(copy: Callable[[str], Path]) -> None:
    folder = copy("clip")
    (folder / "preprocessor_config.json").unlink()
    os.mkfifo(folder / "preprocessor_config.json")
    with pytest.raises(StoreError, match=r"preprocessor_config\.json: not a regular file"):
        open_encoder(f"clip:{folder}")


@pytest.mark.parametrize("model", ["~nosuchuser/model", "x" * 5000, "a\x00b"])
def test_paths_that_cannot_be_opened(model: str) -> None:
    assert_one_line(lambda: find_folder(model, model))
    assert_one_line(lambda: find_text(CoderTransformerSettings(text=model).text))
