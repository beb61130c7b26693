"""The command line: parse, call, print. Heavy imports are inside the commands, so that `--help` is instant."""

# ruff: noqa: I001

from __future__ import annotations

import io
import os
import sys

from tellapart.cli import photos, serve, train, recipes, measure  # the order in the help
from tellapart.cli.base import app
from tellapart.errors import TellapartError, out_of_memory
from tellapart.progress import close_bars

__all__ = ["main", "measure", "photos", "recipes", "serve", "train"]

# typer exits with this status after a KeyboardInterrupt, without a message.
INTERRUPTED = 130


def main() -> None:
    """Run the command line; a user's mistake is one message and status 2, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may lack characters, such as arrows
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="tellapart")
    except TellapartError as error:
        _print_error(str(error))
        sys.exit(2)
    except BrokenPipeError:  # such as `tellapart caption … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _print_error(f"{error.filename or 'a file'}: {error.strerror or error}")
        sys.exit(2)
    except UnicodeEncodeError as error:
        text = ascii(error.object[max(0, error.start - 40) : error.end + 40])
        _print_error(f"{text}: this name or text is not valid Unicode; rename or change it")
        sys.exit(2)
    except RecursionError:
        _print_error("an input file is nested too deeply; check the files of this command")
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        _print_error("not enough memory; use smaller batches, a smaller beam or a smaller model")
        sys.exit(2)
    except SystemExit as done:
        if done.code == INTERRUPTED:
            _print_error(
                "stopped; finished parts of work that goes to a file or folder are kept, the same command continues"
            )
        raise


def _print_error(message: str) -> None:
    close_bars()
    print(f"tellapart: {message}", file=sys.stderr)
