"""Fills ptb_own.json and scores_own.json with what the COCO caption tool says of our own sentences.

    .venv/bin/python tests/metrics/make_own.py

Needs Java. The sentences stay as they are; only the tokens and figures are written anew.
"""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    def tokens(captions: list[str]) -> list[str]:
        # What the tool does with a caption's last period depends on the next caption: here it begins like most do.
        lines = [text for caption in captions for text in (caption, "A dog.")]
        return PTBTokenizer().tokenize({0: [{"caption": line} for line in lines]})[0][::2]

    path = HERE / "ptb_own.json"
    sentences = [sentence for sentence, _ in json.loads(path.read_text(encoding="utf-8"))]
    _write(path, [list(pair) for pair in zip(sentences, tokens(sentences), strict=True)])

    path = HERE / "scores_own.json"
    images = json.loads(path.read_text(encoding="utf-8"))["images"]
    references = {i: tokens(image["references"]) for i, image in enumerate(images)}
    candidates = {i: tokens([image["candidate"]]) for i, image in enumerate(images)}
    with contextlib.redirect_stdout(io.StringIO()):
        bleu, bleus = Bleu(4).compute_score(references, candidates)
        rouge, rouges = Rouge().compute_score(references, candidates)
        cider, ciders = Cider().compute_score(references, candidates)
    for i, image in enumerate(images):
        image["Bleu"] = [bleus[n][i] for n in range(4)]
        image["ROUGE_L"], image["CIDEr"] = float(rouges[i]), float(ciders[i])
    _write(path, {"corpus": {"Bleu": bleu, "ROUGE_L": float(rouge), "CIDEr": float(cider)}, "images": images})


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
