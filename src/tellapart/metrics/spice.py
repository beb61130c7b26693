"""SPICE, computed by the Java program of pycocoevalcap if everything it needs is installed.

Idea: F-score between the objects, attributes and relations that a parser finds in the candidate and in the references.
The parser is Stanford CoreNLP 3.6.0, about 500 MB, which pycocoevalcap downloads on first use. It runs on Java 8 or 11
only. Nothing is downloaded here: if something is missing, SPICE is not reported.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from tellapart.errors import MissingExtraError, TellapartError
from tellapart.metrics.image_scores import ImageScores

_CORENLP = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
_JAVA = ("8", "11")


def why_no_spice() -> str | None:
    """What SPICE lacks to run, in one line; None if it can run."""
    folder = _folder()
    if folder is None:
        return str(MissingExtraError("pycocoevalcap", "metrics"))
    missing = [name for name in _CORENLP if not (folder / "lib" / name).exists()]
    if missing:
        return f"SPICE needs {missing[0]} in pycocoevalcap's folder spice/lib; get CoreNLP 3.6.0 and put it there"
    version = _java_version()
    if version not in _JAVA:
        found = "there is no java" if version is None else f"java is version {version}"
        return f"SPICE runs on Java {' or '.join(_JAVA)} and {found}; install one and put it first in PATH"
    return None


def spice_scores(references: Sequence[Sequence[str]], candidates: Sequence[str]) -> ImageScores:
    """SPICE of one candidate per image; captions are tokens joined by spaces. Slow: seconds per hundred images.

    >>> spice_scores([["a dog runs"]], ["a dog"])  # doctest: +SKIP
    ImageScores(per_image=array([0.66…]))
    """
    reason = why_no_spice()
    if reason is not None:
        raise TellapartError(reason)
    from pycocoevalcap.spice.spice import Spice

    groups = {i: list(texts) for i, texts in enumerate(references)}
    said = {i: [text] for i, text in enumerate(candidates)}
    _, details = Spice().compute_score(groups, said)
    return ImageScores(np.array([detail["All"]["f"] for detail in details], dtype=np.float64))


def _folder() -> Path | None:
    """The SPICE folder of pycocoevalcap, found without the slow import of the package."""
    spec = find_spec("pycocoevalcap")
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    return Path(places[0]) / "spice" if places else None


@lru_cache(maxsize=1)
def _java_version() -> str | None:
    """Major version ("8", "11", …) of the java in PATH."""
    java = shutil.which("java")
    if java is None:
        return None
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return found[1] if found else None
