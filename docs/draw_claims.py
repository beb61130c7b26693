"""Draw the tables of docs/results.md: what the four papers claim, and what was found here.

    python docs/draw_claims.py

A table stands between `<!-- drawn: NAME -->` and `<!-- end -->`. Its figures come from the scores in docs/results/, and
the verdicts from their intervals (`verdict`). Figures that have no kept scores are written out below as text.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from draw_results import MANY, table

from tellapart.files import write_text

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent / "results.md"
Kept = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """A difference from the control that was kept.

    Attributes:
        file: its name in docs/results/, without the ending.
        figure: what was measured.
        row: the arm, in the file of a study; the file of a comparison has one.
        note: said before the figures, e.g. another measure than the row's.
    """

    file: str
    figure: str
    row: str = ""
    note: str = ""

    @property
    def found(self) -> Kept:
        """The difference, with its interval and the means of both arms."""
        differences = _read(self.file)["differences"]
        found: Kept = (differences[self.row] if self.row else differences)[self.figure]
        return found

    def values(self, arm: str) -> list[float]:
        """The figure of an arm, for each seed; none if only means are kept."""
        rows = _read(self.file).get("rows", {})
        seeds = rows[arm]["figures"] if arm in rows else []
        return [one[self.figure] for one in seeds if self.figure in one]

    @property
    def seeds(self) -> int:
        rows = _read(self.file).get("rows", {})
        return len(rows[self.row]["figures"]) if self.row else 1


@dataclass(frozen=True)
class Means:
    """A figure of two arms for which no difference was kept: only whether it moved as the claim says.

    Attributes:
        file, figure, row: as in `Measured`.
        control: the other arm.
        note: said before the figures.
    """

    file: str
    figure: str
    row: str
    control: str
    note: str = ""

    def values(self, arm: str) -> list[float]:
        """The figure of an arm, for each seed."""
        return [one[self.figure] for one in _read(self.file)["rows"][arm]["figures"]]


Cell = Measured | Means | str


@dataclass(frozen=True)
class Claim:
    """A row: the claim, the paper's figures, and a cell for each data set.

    Attributes:
        says: the claim in a sentence.
        paper: its figures.
        cells: what was measured; text is taken as it is.
        higher: whether the claim is that the figure rises.
        gain: by how much in the paper, where the figure is the same one.
    """

    says: str
    paper: str
    cells: tuple[Cell, ...]
    higher: bool = True
    gain: float | None = None


def verdict(low: float, middle: float, high: float, seeds: int, claim: Claim) -> str:
    """Confirmed, not confirmed, or too noisy and how many seeds would decide; as docs/results.md says at its top.

    >>> claim = Claim("CIDEr rises", "1.04 → 1.14", (), gain=0.1)
    >>> verdict(0.01, 0.02, 0.03, 3, claim), verdict(-0.03, -0.02, -0.01, 3, claim), verdict(-0.01, 0.0, 0.01, 3, claim)
    ('**confirmed**', '**not confirmed**', '**not confirmed**, less than the paper')
    >>> verdict(-0.1, 0.1, 0.3, 3, claim), verdict(-0.1, 0.1, 0.3, 1, claim)
    ('too noisy, 12 seeds', 'too noisy, one seed')
    """
    if not claim.higher:
        low, middle, high = -high, -middle, -low
    if low > 0:
        return "**confirmed**"
    if high < 0:
        return "**not confirmed**"
    if claim.gain is not None and high < claim.gain:
        return "**not confirmed**, less than the paper"
    against = ", leaning against" if middle < 0 else ""
    if seeds == 1:
        return f"too noisy, one seed{against}"
    # The interval is over seeds and images, and its width falls with the root of the seeds at best.
    needed = seeds * ((high - low) / 2 / middle) ** 2 if middle else math.inf
    told = f"over {MANY}" if needed > MANY else str(max(seeds + 1, math.ceil(needed)))
    return f"too noisy, {told} seeds{against}"


def cell(claim: Claim, one: Cell) -> str:
    """The verdict, the difference with its interval, and the control's and the arm's mean with their deviation."""
    if isinstance(one, str):
        return _unbroken(one)
    if isinstance(one, Means):
        return _cell_of_means(claim, one)
    found, scale, digits = one.found, *_scale(one.figure)
    signed = [f"{scale * found[name] + 0.0:+.{digits}f}" for name in ("difference", "low", "high")]
    told = verdict(found["low"], found["difference"], found["high"], one.seeds, claim)
    arms = [(found["mean_a"], one.values(found.get("against", ""))), (found["mean_b"], one.values(one.row))]
    means = [_mean(of, values, scale, digits) for of, values in arms]
    lines = [told, f"{one.note}{signed[0]} [{signed[1]}, {signed[2]}]"]
    if found["mean_a"] or found["mean_b"] != found["difference"]:  # else only differences were kept
        lines.append(f"{means[0]} → {means[1]}")
    return _written(lines)


def _cell_of_means(claim: Claim, one: Means) -> str:
    before, after = one.values(one.control), one.values(one.row)
    higher = mean(after) > mean(before)
    told = f"{'in this direction' if higher == claim.higher else 'the other way'}, not tested"
    scale, digits = _scale(one.figure)
    shown = [_mean(mean(values), values, scale, digits) for values in (before, after)]
    return _written([told, f"{one.note}{shown[0]} → {shown[1]}"])


def _mean(found: float, values: list[float], scale: int, digits: int) -> str:
    """A mean, with the deviation over seeds if there are several."""
    return f"{scale * found:.{digits}f}" + (f" ± {scale * stdev(values):.{digits}f}" if len(values) > 1 else "")


def _written(lines: list[str]) -> str:
    """Lines of a cell with real minus signs, and no 0 before the point of a share."""
    shares = re.sub(r"(?<=[+-])0(?=\.\d{3})|(?<![\d.+-])0(?=\.\d{3})", "", "<br>".join(lines))
    return _unbroken(shares.replace("-", "−"))


def _unbroken(text: str) -> str:
    """Without a line break inside an interval or before a deviation."""
    return re.sub(r" (?=[\[±])|(?<=[,±]) (?=[+−.\d])", "\u00a0", text)


def _scale(figure: str) -> tuple[int, int]:
    """Shares are in percentage points with one digit, scores have three digits, ranks one."""
    if "R@" in figure or figure in ("novel", "truth"):
        return 100, 1
    return 1, 1 if figure.endswith("rank") else 3


@cache
def _read(name: str) -> Kept:
    kept: Kept = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return kept


def _study(rows: str, figure: str, *files: str) -> tuple[Measured, ...]:
    return tuple(Measured(file, figure, rows) for file in files)


# --- Contrastive learning ---------------------------------------------------------------------------------------------

_CL = ("telling-apart-flickr8k", "adaptive-cl")
CONTRASTIVE = [
    Claim(
        "CL captions find their picture first more often, by the model itself",
        "R@1 0.10 → 0.32 % of 5,000",
        (
            "**confirmed**<br>+3.0 [+0.9, +5.1]<br>71.5 ± 1.7 → 74.5 ± 1.6",
            Measured(_CL[0], "self_retrieval_R@1", _CL[1]),
            Measured("scores/cl-differences", "self_retrieval_R@1"),
        ),
    ),
    Claim(
        "… and by a retriever that had no part in it",
        "not asked",
        (
            "too noisy, 18 seeds<br>+0.8 [−0.7, +2.3]<br>37.8 ± 0.6 → 38.7 ± 1.0",
            Measured(_CL[0], "under_listener_R@1", _CL[1]),
            Measured("scores/cl-listener-differences", "under_judge_R@1"),
        ),
    ),
    Claim(
        "… and what they say fits their picture alone",
        "not asked",
        ("too noisy, 80 seeds<br>+0.4 [−1.2, +2.0]<br>33.2 ± 0.9 → 33.6 ± 1.1", "", ""),
    ),
    Claim(
        "CL captions are better (CIDEr)",
        "1.042 → 1.142",
        (
            "**not confirmed**, less than the paper<br>−.025 [−.059, +.007]<br>1.601 ± .022 → 1.576 ± .025",
            Measured(_CL[0], "CIDEr", _CL[1]),
            Measured("scores/cl-differences", "CIDEr"),
        ),
        gain=0.1,
    ),
    Claim(
        "IL is worse than likelihood (CIDEr)",
        "1.042 → 1.004",
        ("too noisy, 28 seeds<br>−.012 [−.040, +.016]<br>1.601 ± .022 → 1.589 ± .022", "", ""),
        higher=False,
    ),
    Claim(
        "GAN is worse than likelihood (CIDEr)",
        "1.042 → .700",
        ("too noisy, 14 seeds, leaning against<br>+.042 [−.005, +.091]<br>1.601 ± .022 → 1.644 ± .023", "", ""),
        higher=False,
    ),
    Claim(
        "Captions that find their picture are better captions",
        "correlated",
        ("too noisy<br>−.31 [−.88, +.78], of R@1 by the own model and CIDEr", "", ""),
    ),
]

# --- Specificity training ---------------------------------------------------------------------------------------------

_SPECIFICITY = ("specificity-scenes", "specificity-flickr8k", "specificity-coco")


def _specific(figure: str, coco: Cell, arm: str = "ccos") -> tuple[Cell, ...]:
    scenes, flickr8k, shipped = _study(f"adaptive-specificity-{arm}", figure, *_SPECIFICITY)
    return scenes, flickr8k, coco, shipped


_TAUGHT = {name: f"scores/specificity-{name}differences" for name in ("", "teacher-", "listener-")}
SPECIFICITY = [
    Claim(
        "CCos captions find their picture first more often, by the retriever that teaches",
        "R@1 10.8 → 12.5 %",
        _specific("under_judge_R@1", Measured(_TAUGHT["teacher-"], "under_judge_R@1")),
    ),
    Claim(
        "… at better mean ranks",
        "39.3 → 32.3",
        _specific("under_judge_mean_rank", Measured(_TAUGHT["teacher-"], "under_judge_mean_rank")),
        higher=False,
    ),
    Claim(
        "… and by a retriever that had no part in it",
        "not asked",
        _specific("under_listener_R@1", Measured(_TAUGHT["listener-"], "under_judge_R@10", note="R@10 ")),
    ),
    Claim(
        "… and what they say fits their picture alone",
        "not asked",
        (Measured("specificity-scenes", "true_listener_R@1", "adaptive-specificity-ccos"), "", "", ""),
    ),
    Claim("More captions are new", "69 → 77 %", _specific("novel", Measured(_TAUGHT[""], "novel"))),
    Claim(
        "It costs a little agreement with people (CIDEr)",
        "1.036 → .980",
        _specific("CIDEr", Measured(_TAUGHT["listener-"], "CIDEr")),
        higher=False,
    ),
    Claim(
        "Without contrast, DP harms: R@1 by the teacher",
        "10.8 → 10.4 %",
        _specific("under_judge_R@1", "", "dp"),
        higher=False,
    ),
    Claim(
        "… and so does Cos",
        "10.8 → 10.0 %",
        _specific("under_judge_R@1", "", "cos"),
        higher=False,
    ),
]

# --- CODER ------------------------------------------------------------------------------------------------------------


_CODER_FILES = ("coder-flickr8k", "coder-coco")


def _coder(arm: str) -> tuple[Cell, ...]:
    return _study(arm, "R@sum", *_CODER_FILES)


CODER = [
    Claim(
        "CODER is better than GPO, whole methods with the rates of their recipes",
        "502.3 → 520.9",
        ("", Measured("coder-methods-flickr8k", "R@sum", "coder", note="one seed: "), ""),
    ),
    Claim(
        "Diversity-sensitive contrast (DCL) beats hard negatives (BTR), each with its own rate",
        "503.7 → 514.5",
        ("**confirmed**<br>+11.7 [+3.4, +20.1]<br>462.1 → 473.8", *_coder("dcl")),
    ),
    Claim(
        "Coupled banks help",
        "514.5 → 518.3",
        ("too noisy, one seed, leaning against<br>−4.2 [−10.1, +1.3]<br>473.8 → 469.6", *_coder("dcl-bank")),
    ),
    Claim(
        "Concepts help",
        "518.3 → 519.1",
        ("too noisy, one seed, leaning against<br>−6.0 [−12.7, +0.4]<br>469.6 → 463.6", *_coder("coder-no-prototypes")),
    ),
    Claim(
        "Prototypes help",
        "519.1 → 520.9",
        ("too noisy, one seed, leaning against<br>−6.2 [−13.4, +1.0]<br>463.6 → 457.4", *_coder("coder")),
    ),
    Claim(
        "Banks replace a large batch: what they add to a batch of 32",
        "a batch of 32 with banks is enough",
        ("", "too noisy, one seed<br>+0.5 [−3.3, +4.3]<br>230.6 → 231.1; [details](results/retrieval.md)", ""),
    ),
    Claim(
        "The negatives of a query spread more under DCL (figure 1)",
        "a histogram",
        ("", *(Means(file, "image_to_text_negative_SD", "dcl", "gpo", "SD ") for file in _CODER_FILES)),
    ),
]

# --- UNKT -------------------------------------------------------------------------------------------------------------

_UNKT = ("unkt-scenes", "unkt-flickr8k", "unkt-coco")
_POSITIVE, _STUDENT = "transformer-unkt-positive-teacher", "transformer-unkt"
NEGATIVE_TEACHER = [
    Claim(
        "Captions of high retrieval entropy are generic",
        "by Div-1 of a model of them",
        (
            "**confirmed**<br>D⁻ fits 4.4 scenes, D⁺ 2.5; [details](results/captions-on-scenes.md"
            "#does-retrieval-entropy-find-generic-captions)",
            "",
            "",
        ),
    ),
    Claim(
        "A model of captions of low entropy (D⁺) says more different things than one of high (D⁻): Div-1",
        ".18 and .32",
        _study(_POSITIVE, "best_5_Div_1", *_UNKT),
    ),
    Claim(
        "… and its captions find their picture first more often, by a retriever that had no part in it",
        "not asked",
        _study(_POSITIVE, "under_listener_R@1", *_UNKT),
    ),
    Claim(
        "UNKT makes captions more diverse at temperature 1: Div-1",
        "to .46",
        _study(_STUDENT, "best_5_Div_1", *_UNKT),
    ),
    Claim("… SelfCIDEr", "to .85", _study(_STUDENT, "best_5_SelfCIDEr_Luo", *_UNKT)),
    Claim(
        "… and still does at equal quality: Div-1",
        "not asked",
        _study(_STUDENT, "at_equal_quality_Div_1", *_UNKT),
    ),
    Claim(
        "… but not with a teacher of D⁺, so the teacher must be generic: SelfCIDEr, against the control",
        ".85 with D⁻, .63 with D⁺",
        _study("transformer-unkt-of-positive", "best_5_SelfCIDEr_Luo", *_UNKT),
        higher=False,
    ),
    Claim(
        "The best of 20 captions is better (CIDEr)",
        "to 1.742",
        _study(_STUDENT, "oracle_20_CIDEr", *_UNKT),
    ),
]

TABLES = {
    "contrastive": (
        ("[scenes, five seeds](results/captions-on-scenes.md)", "[Flickr8k, three](results/telling-apart-flickr8k.md)",
         "[COCO, one](results/coco.md#contrastive-learning-matched)"),
        CONTRASTIVE,
    ),
    "specificity": (
        ("[scenes, five seeds](results/specificity-scenes.md)", "[Flickr8k, three](results/specificity-flickr8k.md)",
         "[COCO, one](results/coco.md#specificity-training-matched)",
         "[COCO from the shipped captioner, one](results/specificity-coco.md)"),
        SPECIFICITY,
    ),
    "coder": (
        ("[scenes, one seed](results/retrieval.md#retrieval-on-scenes-table-2)",
         "[Flickr8k, three](results/coder-flickr8k.md)", "[COCO, one](results/coder-coco.md)"),
        CODER,
    ),
    "unkt": (
        ("[scenes, five seeds](results/unkt-scenes.md)", "[Flickr8k, three](results/unkt-flickr8k.md)",
         "[COCO, one](results/unkt-coco.md)"),
        NEGATIVE_TEACHER,
    ),
}  # fmt: skip


def draw(page: str) -> str:
    """The page with its tables drawn again."""

    def lines(name: str) -> list[str]:
        headings, claims = TABLES[name]
        rows = [[claim.says, claim.paper, *(cell(claim, one) for one in claim.cells)] for claim in claims]
        return table(["claim", "paper", *headings], rows)

    return re.sub(
        r"(?<=<!-- drawn: )([\w-]+)( -->\n).*?(?=<!-- end -->)",
        lambda found: "\n".join([found[1] + found[2], *lines(found[1]), "", ""]),
        page,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    write_text(PAGE, draw(PAGE.read_text(encoding="utf-8")))
