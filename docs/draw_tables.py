"""Draw the tables of docs/results/coco.md and retrieval.md again from the scores in docs/results/scores/.

    python docs/draw_tables.py                                # all tables
    python docs/draw_tables.py --keep RUN/scores.json NAME    # first keep a file: also differences.json, retrieval.json

A kept file holds what `tellapart evaluate`, `evaluate-retrieval` or a benchmark wrote, rounded and without paths:
figures and their intervals, differences. No captions and no pictures. A table stands between two lines of the page,
`<!-- drawn: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from draw_results import rounded, table

from tellapart.files import write_text

RESULTS = Path(__file__).parent / "results"
SCORES = RESULTS / "scores"
PAGES = (RESULTS / "coco.md", RESULTS / "retrieval.md")
PATHS = ("made_from", "captions", "against", "model", "judge", "listener", "shown")
TOLD = ("find their picture", "points more than plain", "CIDEr, of plain")
Kept = dict[str, Any]
Cells = list[list[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="a file to keep")
    parser.add_argument("name", nargs="?", help="with --keep: its name in docs/results/scores/")
    asked = parser.parse_args()
    if asked.keep:
        kept = {key: value for key, value in json.loads(asked.keep.read_text("utf-8")).items() if key not in PATHS}
        write_text(SCORES / f"{asked.name}.json", json.dumps(rounded(kept), ensure_ascii=False, indent=1) + "\n")
    for page in PAGES:
        write_text(page, draw(page.read_text(encoding="utf-8")))


def draw(page: str) -> str:
    """The page with its tables drawn again."""
    return re.sub(
        r"(?<=<!-- drawn: )([\w-]+)( -->\n).*?(?=<!-- end -->)",
        lambda found: "\n".join([found[1] + found[2], *_lines(found[1]), "", ""]),
        page,
        flags=re.DOTALL,
    )


def _lines(name: str) -> list[str]:
    headings, *rows = TABLES[name]()
    return table(headings, rows)


def captions() -> Cells:
    """Captioners: figures with intervals."""
    rows = [
        ("AdaptiveAttention, Lite0, MLE", "75 min", "captions-lite0"),
        ("… then self-critical (CIDEr-D)", "+ 20 min", "captions-lite0-self-critical"),
        ("AdaptiveAttention, DINOv2, MLE", "55 min", "captions-dinov2"),
        ("… with `block_pairs` (shipped)", "the same", "captions-dinov2-pairs"),
        ("… then self-critical (CIDEr-D and margin)", "+ 95 min", "captions-dinov2-self-critical"),
    ]
    scored = ("BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "distinct", "words used", "stop in the middle", "finds its image")
    found = [["", "CPU time", *scored]]
    for label, time, name in rows:
        scores, figures = (kept := _read(name))["corpus"], kept["intervals"]
        among = f" among {scores['self_retrieval_images']:,.0f}"
        cells = [_with_interval(scores, figures, one) for one in ("Bleu_4", "METEOR", "ROUGE_L", "CIDEr")]
        share = _with_interval(scores, figures, "self_retrieval_R@1", 100)
        cells += [f"{100 * scores['distinct']:.0f} %", f"{scores['vocabulary']:.0f}"]
        found.append([label, time, *cells, f"{100 * scores['bad_endings']:.1f} %", share + among])
    return found


def self_critical() -> Cells:
    own, listener = _read("self-critical-differences")["differences"], _read("self-critical-listener")["differences"]
    arms = [_read(name)["corpus"] for name in ("captions-dinov2-pairs", "captions-dinov2-self-critical")]
    rows = [
        *_quality(own, "CIDEr", "Bleu_4", "METEOR"),
        _compared("finds its image among 500, own model", own["self_retrieval_R@1"], 100),
        *_listened(listener),
        _compared("captions not in the training set", own["novel"], 100),
        ["different captions", *(f"{100 * one['distinct']:.1f} %" for one in arms), ""],
        ["words used", *(f"{one['vocabulary']:.0f}" for one in arms), ""],
    ]
    return [["", "MLE (its start)", "self-critical, CIDEr-D and margin", "difference"], *rows]


def contrastive() -> Cells:
    own, listener = _read("cl-differences")["differences"], _read("cl-listener-differences")["differences"]
    arms = [_read(name)["corpus"] for name in ("cl-control", "cl")]
    rows = [
        _compared("finds its image among 250, own model", own["self_retrieval_R@1"], 100),
        _compared("… ranked by the frozen MLE model", own["under_judge_R@1"], 100),
        *_listened(listener),
        *_quality(own, "CIDEr", "Bleu_4"),
        ["distinct captions", *(f"{100 * one['distinct']:.1f} %" for one in arms), ""],
    ]
    return [["", "MLE continued (control)", "CL", "difference"], *rows]


def specificity() -> Cells:
    teacher = _read("specificity-teacher-differences")["differences"]
    listener = _read("specificity-listener-differences")["differences"]
    arms = [_read(name)["corpus"] for name in ("specificity-control", "specificity-ccos")]
    rows = [
        *_listened(teacher, "the teacher"),
        *_listened(listener),
        ["different captions", *(f"{100 * one['distinct']:.1f} %" for one in arms), ""],
        _compared("captions not in the training set", _read("specificity-differences")["differences"]["novel"], 100),
        ["words used", *(f"{one['vocabulary']:.0f}" for one in arms), ""],
        _compared("words a caption", listener["mean_length"], 1, 1),
        *_quality(listener, "CIDEr", "Bleu_4", "METEOR"),
    ]
    return [["", "likelihood (control)", "CCos", "difference"], *rows]


def tell_apart() -> Cells:
    both = [_read(f"tell-apart-{data}")["rows"] for data in ("coco", "flickr8k")]
    found = [["captions", *(f"{data}{one}" for data in ("COCO: ", "Flickr8k: ") for one in TOLD)]]
    for rows in zip(*both, strict=True):
        label = rows[0]["name"] if rows[0]["name"] in ("plain", "people", "tell apart") else f"… {rows[0]['name']}"
        cells = [label]
        for row in rows:
            more, kept = row["points more than plain"], row["of plain"]
            cells += [
                f"{100 * row['finds its picture']:.1f} %",
                "" if more is None else more.replace("-", "−"),
                "" if kept is None else f"{100 * kept:.0f} %",
            ]
        found.append(cells)
    return found


def retrieval() -> Cells:
    found = [["", "CPU time", "", "image→text R@1, 5, 10", "text→image R@1, 5, 10", "R@sum"]]
    for label, time, name in [
        ("Lite0, DCL", "27 min", "retrieval-lite0"),
        ("DINOv2, DCL", "35 min", "retrieval-dinov2"),
        ("… then InfoNCE (shipped)", "+ 22 min", "retrieval-dinov2-info-nce"),
    ]:
        kept = _read(name)
        for among, figures in (("four folds of 1,000", kept["folds"]), (f"all {kept['images']:,}", kept["figures"])):
            found.append([label, time, among, *_recalls(figures)])
            label = time = ""
    return found


def small_retrieval() -> Cells:
    """DCL on Flickr8k, seed by seed, and the three together."""
    found = [["features", "seed", "image→text R@1, 5, 10", "text→image R@1, 5, 10", "R@sum"]]
    for label, name in (("EfficientNet-Lite0", "lite0"), ("EfficientNet-Lite2 at 288", "lite2")):
        seeds = [_read(f"retrieval-flickr8k-{name}-{seed}")["figures"] for seed in range(3)]
        rows = [[label if seed == 0 else "", str(seed), *_recalls(one)] for seed, one in enumerate(seeds)]
        sums = [100 * one["R@sum"] for one in seeds]
        mean_of_all = {figure: mean(one[figure] for one in seeds) for figure in seeds[0]}
        sides = _recalls(mean_of_all)[:2]
        together = _recalls(_read(f"retrieval-flickr8k-{name}-ensemble")["figures"])
        found += [
            *rows,
            ["", "mean", *sides, f"**{mean(sums):.1f} ± {stdev(sums):.1f}**"],
            ["", "ensemble of the three", *together],
        ]
    return found


def _recalls(figures: Kept) -> list[str]:
    """Both directions and R@sum, in percent."""
    sides = [
        ", ".join(f"{100 * figures[f'{side}_R@{k}']:.1f}" for k in (1, 5, 10))
        for side in ("image_to_text", "text_to_image")
    ]
    return [*sides, f"{100 * figures['R@sum']:.1f}"]


TABLES: dict[str, Callable[[], Cells]] = {
    "captions": captions,
    "self-critical": self_critical,
    "contrastive": contrastive,
    "specificity": specificity,
    "tell-apart": tell_apart,
    "retrieval": retrieval,
    "small-retrieval": small_retrieval,
}


def _listened(differences: Kept, listener: str = "independent listener") -> Cells:
    """How a retriever that ranks all pictures finds them."""
    return [
        _compared(f"{listener}, R@1 among 4,407", differences["under_judge_R@1"], 100),
        _compared("… R@10", differences["under_judge_R@10"], 100),
        _compared("… mean rank", differences["under_judge_mean_rank"], 1, 1),
    ]


def _quality(differences: Kept, *figures: str) -> Cells:
    return [_compared(one.replace("Bleu_", "BLEU-"), differences[one]) for one in figures]


def _compared(label: str, found: Kept, scale: float = 1, digits: int = 3) -> list[str]:
    """A figure of the control and of the treatment, and their difference; shares in percent with `scale` 100."""
    digits, unit = (1, " %") if scale == 100 else (digits, "")
    values = [f"{scale * found[one]:.{digits}f}{unit}" for one in ("mean_a", "mean_b")]
    middle, low, high = (f"{scale * found[one]:+.{digits}f}" for one in ("difference", "low", "high"))
    return [_plain(one) for one in (label, *values, f"{middle} [{low}, {high}]")]


def _with_interval(scores: Kept, intervals: Kept, figure: str, scale: float = 1) -> str:
    digits, unit = (1, " %") if scale == 100 else (3, "")
    low, high = (f"{scale * one:.{digits}f}" for one in intervals[figure])
    return _plain(f"{scale * scores[figure]:.{digits}f}{unit} [{low}, {high}]")


def _plain(text: str) -> str:
    """Without the 0 before the point of a share, and with a real minus sign.

    >>> _plain("-0.020 [-0.100, +10.500]")
    '−.020 [−.100, +10.500]'
    """
    return re.sub(r"(?<![\d.])0(?=\.\d{3})", "", text).replace("-", "−") if text[:1] in "+-0123456789" else text


def _read(name: str) -> Kept:
    kept: Kept = json.loads((SCORES / f"{name}.json").read_text(encoding="utf-8"))
    return kept


if __name__ == "__main__":
    main()
