"""Write `help.txt`, the text of `tellapart --help`, as typer renders it in colour on a terminal of 80 columns.

Run it after a change of the commands: python tests/support/help.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tellapart.cli import HELP, HELP_WIDTH

CODE = "from tellapart.cli.commands import app; app(['--help'], prog_name='tellapart')"


def rendered_help() -> str:
    """The help with the codes of its colours."""
    columns = str(HELP_WIDTH)
    env = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": columns, "TERMINAL_WIDTH": columns, "TERM": "xterm-256color"}
    env = {key: value for key, value in env.items() if key not in ("NO_COLOR", "PY_COLORS", "GITHUB_ACTIONS")}
    command = [sys.executable, "-X", "utf8", "-c", CODE]
    return subprocess.run(command, env=env, check=True, capture_output=True, encoding="utf-8").stdout


if __name__ == "__main__":
    Path(HELP).write_text(rendered_help(), encoding="utf-8")
    print(f"wrote {HELP}")
