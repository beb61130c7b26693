"""The page on which people judge: two captions of a picture side by side, three questions, one answer at a time.

The page gets the rater's pictures in the rater's order with what was answered before, and sends every answer at once.
An answer is confirmed when it is on the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import Response
from pydantic import BaseModel, Field

import tellapart
from tellapart.data.images import jpeg_without_metadata, load_image
from tellapart.data.records import Dataset
from tellapart.errors import DataError
from tellapart.judging.answers import Answers
from tellapart.judging.trial import QUESTIONS, Choice, rater_name
from tellapart.serve.web import Guard, Limits, Refusal, new_app

STATIC = Path(__file__).with_name("static")
# Longer side of a picture in pixels, and quality of its JPEG: better than in a report, since people judge by it.
SIDE, QUALITY = 1280, 88
# An answer is a few hundred bytes.
LIMITS = Limits(body=16 << 10, bodies=4 << 20)


class Rater(BaseModel):
    """Who asks: a name, or the key of a rater's own link."""

    rater: str = Field(max_length=200)


class Given(Rater):
    """An answer as the page sends it; `item` is the number of the picture."""

    item: int
    question: str
    choice: Choice


class Task(BaseModel):
    """A picture to judge, and what the rater answered before."""

    item: int
    left: str
    right: str
    answers: dict[str, Choice]


class Start(BaseModel):
    """All that a rater is asked, in the rater's order; `trial` tells trials apart."""

    rater: str
    trial: str
    questions: dict[str, str]
    tasks: list[Task]


class Stored(BaseModel):
    """An answer is on the disk."""

    stored: bool


def create_app(answers: Answers, dataset: Dataset, raters: Sequence[str] = (), token: str | None = None) -> Guard:
    """The application.

    Args:
        answers: the open file of answers, with the trial.
        dataset: has the pictures.
        raters: only these people may judge, each by an own link; without them everybody gives a name.
        token: needed by everyone, see `Guard`.
    """
    trial = answers.trial
    app: FastAPI = new_app("tellapart judge", tellapart.__version__, "Judge captions.", STATIC)
    by_key = {trial.link_key(rater): rater_name(rater) for rater in raters}

    def rater_of(given: str) -> str:
        if by_key:
            if given not in by_key:
                raise Refusal(403, "link", "this page needs your own link; ask for it, and open it as it is")
            return by_key[given]
        try:
            return rater_name(given)
        except DataError as error:
            raise Refusal(422, "name", str(error)) from None

    @app.get("/api/about")
    def about() -> dict[str, bool]:
        """Whether raters have links, or give a name."""
        return {"links": bool(by_key)}

    @app.post("/api/start")
    def start(who: Rater) -> Start:
        """What a rater is asked, and has answered."""
        rater = rater_of(who.rater)
        before = answers.of(rater)
        tasks = []
        for place in trial.asked(rater):
            item = trial.items[place]
            left, right = (item.a, item.b) if trial.a_is_left(rater, item.id) else (item.b, item.a)
            tasks.append(Task(item=place, left=left, right=right, answers=before.get(item.id, {})))
        return Start(rater=rater, trial=trial.public_id, questions=QUESTIONS, tasks=tasks)

    @app.post("/api/answers")
    def answer(given: Given) -> Stored:
        """Store an answer; the last one of a picture and question counts."""
        rater = rater_of(given.rater)
        if given.question not in QUESTIONS or not is_asked(given.item):
            raise Refusal(
                404, "not_asked", "this picture or question is not part of the comparison; load the page again"
            )
        try:
            answers.put(rater, trial.items[given.item].id, given.question, given.choice)
        except OSError as error:
            reason = error.strerror or str(error)
            raise Refusal(
                507, "disk", f"the answer cannot be stored ({reason}); tell the person who runs this"
            ) from None
        return Stored(stored=True)

    @app.get("/api/pictures/{item}", response_class=Response)
    def picture(item: int) -> Response:
        """A picture without metadata; its number says nothing about its file."""
        if not is_asked(item):
            raise Refusal(404, "not_asked", "there is no such picture; load the page again")
        try:
            path = dataset.path(dataset.records[dataset.row(trial.items[item].id)])
            return Response(
                jpeg_without_metadata(load_image(path, at_least=SIDE), SIDE, QUALITY), media_type="image/jpeg"
            )
        except DataError:  # its message names the file, which is no concern of a rater
            raise Refusal(404, "gone", "this picture can no longer be read; tell the person who runs this") from None

    def is_asked(item: int) -> bool:
        return 0 <= item < len(trial.items) and not trial.items[item].identical

    return Guard(app, token, LIMITS)


def links(address: str, answers: Answers, raters: Sequence[str]) -> dict[str, str]:
    """The address of each rater.

    Args:
        address: of the page; with a token it ends in `#token=…`.
        answers: has the keys.
        raters: their names.
    """
    joint = "&" if "#" in address else "#"
    return {rater: f"{address}{joint}rater={answers.trial.link_key(rater)}" for rater in raters}
