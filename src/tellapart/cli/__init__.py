"""The command line: parse, call, print. Heavy imports are inside the commands, so that `COMMAND --help` is instant.

`tellapart --help` is the text of `help.txt`: importing typer and rich to print it would take five times as long. Make
it again after a change of the commands: `python tests/support/help.py`.
"""

from __future__ import annotations

import io
import os
import sys

from tellapart import __version__
from tellapart.errors import TellapartError, out_of_memory
from tellapart.progress import close_bars

__all__ = ["main"]

HELP = os.path.join(os.path.dirname(__file__), "help.txt")
HELP_WIDTH = 80
# typer exits with this status after a KeyboardInterrupt, without a message.
INTERRUPTED = 130


def main() -> None:
    """Run the command line; a user's mistake is one message and status 2, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may lack characters, such as arrows
            stream.reconfigure(errors="backslashreplace")
    if sys.argv[1:] == ["--help"] and _print_help():
        return
    if sys.argv[1:] == ["--version"]:
        print(f"tellapart {__version__}")
        return
    from tellapart.cli.commands import app

    try:
        app(prog_name="tellapart")
    except TellapartError as error:
        _print_error(str(error))
        sys.exit(2)
    except BrokenPipeError:  # such as `tellapart caption … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        from tellapart.files import cache_hint

        hint = cache_hint(error.filename) if isinstance(error.filename, str) else ""
        _print_error(f"{error.filename or 'a file'}: {error.strerror or error}{hint}")
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


def _print_help() -> bool:
    """Print the kept help, in colour on a terminal; False if it does not suit where it goes."""
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    terminal = sys.stdout.isatty()
    if encoding != "utf8" or (terminal and os.get_terminal_size(sys.stdout.fileno()).columns < HELP_WIDTH):
        return False
    with open(HELP, encoding="utf-8") as file:
        text = file.read()
    if not terminal or "NO_COLOR" in os.environ:
        import re

        text = re.sub("\x1b\\[[0-9;]*m", "", text)
    print(text, end="")
    return True


def _print_error(message: str) -> None:
    close_bars()
    print(f"tellapart: {message}", file=sys.stderr)
