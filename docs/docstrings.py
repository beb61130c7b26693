"""An extension of griffe, which reads docstrings for the API pages: our style as it understands it."""

from __future__ import annotations

import re
from typing import Any

import griffe

# "after, before: text" describes two arguments; griffe wants a line for each.
SEVERAL = re.compile(r"^( +)(\w+(?:, \w+)+): +(.*)$", re.MULTILINE)


class OurDocstrings(griffe.Extension):
    """`Example:` is a section of code, `::` begins a block of equations, one line may describe several arguments."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = translate(obj.docstring.value)


def translate(text: str) -> str:
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    text = re.sub(r"^( *)::\n", r"\1\n", text, flags=re.MULTILINE)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    return SEVERAL.sub(lambda found: "\n".join(f"{found[1]}{name}: {found[3]}" for name in found[2].split(", ")), text)
