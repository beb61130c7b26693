"""From two caption files to a page that people judge on: open the trial, say where the page is, serve it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tellapart.data.prepare import open_dataset
from tellapart.data.settings import DataSettings
from tellapart.errors import DataError
from tellapart.judging.answers import Answers, existing_trial
from tellapart.judging.app import create_app, links
from tellapart.judging.trial import made_from, names_of, new_trial, rater_key
from tellapart.progress import close_bars
from tellapart.serve.web import address_of, check_access, listen, run


def serve_trial(
    files: Sequence[str],
    images: str,
    out: Path,
    count: int | None = None,
    seed: int = 0,
    raters: Sequence[str] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Serve the page until SIGTERM or Ctrl-C.

    Args:
        files: two caption files, each FILE or NAME=FILE.
        images: folder or data set with the pictures, or `scenes`.
        out: the file of answers; if it exists, it must be of the same trial, which then continues.
        count: number of pictures, drawn at random; by default all.
        seed: of the draw, sides and orders.
        raters: only these may judge, each by an own link; without them everybody gives a name.
        host, port, token: see `tellapart.serve.web`.
        on_progress: called with the pictures that were opened.
    """
    check_access(host, token)
    if len({rater_key(name) for name in raters}) < len(raters):
        raise DataError("--rater: two raters have the same name; give each another one")
    a, b = names_of(files)
    trial = existing_trial(out, inputs=[a[1], b[1]])
    dataset = open_dataset(DataSettings(source=images))
    if trial is not None:
        if trial.made_from != made_from(a[1], b[1], count, seed):
            raise DataError(
                f"{out}: has answers about other captions, or with another --count or --seed; choose another --out"
            )
        dataset.row(trial.items[0].id)  # the same pictures
    else:
        trial = new_trial(a, b, dataset, count, seed, on_progress)
    close_bars()
    with listen(host, port) as opened, Answers(out, trial) as answers:
        address = address_of(opened, token)
        asked = sum(not item.identical for item in answers.trial.items)
        same = len(answers.trial.items) - asked
        print(f"{asked:,} pictures to judge" + (f"; {same:,} have identical captions, a tie" if same else ""))
        for rater, link in links(address, answers, raters).items():
            print(f"{rater}: {link}")
        if not raters:
            print(f"open {address}")
        print(f"answers: {out}  (Ctrl-C stops; the same command continues)", flush=True)
        run(create_app(answers, dataset, raters, token), opened)
