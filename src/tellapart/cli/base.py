"""What the commands share: the application, options that several of them have, and rows of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from tellapart import __version__

app = typer.Typer(
    help="Captions that tell your images apart.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"tellapart {__version__}")
        raise typer.Exit


@app.callback()
def tellapart(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Captions that tell your images apart."""


RunsOption = Annotated[Path, typer.Option(help="Folder for run folders, named NAME-KEY.")]
BudgetOption = Annotated[
    str | None,
    typer.Option(help="smoke (seconds), laptop (two cores; COCO: up to 3 hours) or paper (the published sizes)."),
]
JudgeOption = Annotated[
    list[Path] | None,
    typer.Option(
        help="Another run that ranks images for the captions: a captioner's, or a retriever's; repeat to ensemble "
        "captioners."
    ),
]
ListenerOption = Annotated[
    Path | None,
    typer.Option(help="A run that ranks them too: a retriever's (or captioner's) that had no part in any training."),
]
ModelOption = Annotated[
    list[Path] | None,
    typer.Option(
        help="A run or model folder, or a folder of BLIP or GIT; repeat to ensemble models. By default the model that "
        "is shipped."
    ),
]
DownloadOption = Annotated[
    bool,
    typer.Option(
        "--download",
        help="Get a model that is named as on the Hugging Face hub, OWNER/NAME, once; its commit is recorded. Without "
        "this nothing is downloaded.",
    ),
]
# Of the commands that serve a page.
HostOption = Annotated[str, typer.Option(help="Address to listen on; others than this machine's need a --token.")]
PortOption = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 is any free one.")]
TokenOption = Annotated[
    str | None,
    typer.Option(envvar="TELLAPART_TOKEN", help="Secret that clients must send; 16 characters or more."),
]
LOOPBACK, PORT = "127.0.0.1", 8000
LimitOption = Annotated[
    int | None,
    typer.Option(min=2, help="Only so many images for self-retrieval (quadratic in time); by default all."),
]


def json_line(row: object) -> str:
    """A row as JSON; characters that the terminal cannot show are escaped."""
    line = json.dumps(row, ensure_ascii=False)
    try:
        line.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(row)
    return line
