"""A rater in a browser: all by keyboard, closing the tab in the middle, coming back, a server that dies."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tellapart.judging.answers import latest_answers, read_answers
from tellapart.judging.report import judge_report, write_judge_report

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
if shutil.which("chromium") is None:
    pytest.skip("Chromium is not installed", allow_module_level=True)

WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
SERVER = "from tellapart.cli import main; main()"


class Server:
    """`tellapart judge` as a process of its own."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self.arguments, self.log = arguments, log
        self.port = "0"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-c", SERVER, "judge", *self.arguments, "--port", self.port]
        with open(self.log, "w") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        self.said = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if line.startswith("answers:"):
                break
        found = re.search(r"http://[^ ]*:(\d+)/\S*", self.said)
        assert found, self.said + self.log.read_text()
        self.address, self.port = found[0], found[1]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@pytest.fixture
def server(files: tuple[Path, Path], pictures: Path, tmp_path: Path) -> Iterator[Server]:
    out = tmp_path / "answers.jsonl"
    started = Server([*map(str, files), "--images", str(pictures), "--out", str(out)], tmp_path / "log")
    yield started
    if started.process.poll() is None:
        started.stop(signal.SIGKILL)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield opened
        opened.close()


def new_page(context: Any, address: str) -> Any:
    page = context.new_page()
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("console", lambda told: page.problems.append(told.text) if "Content Security" in told.text else None)
    page.goto(address)
    return page


def start(page: Any, name: str) -> None:
    page.get_by_label("Your name").fill(name)
    page.keyboard.press("Enter")
    page.locator("#picture").wait_for()


def wait_until_stored(page: Any) -> None:
    page.locator("body[data-pending='0']").wait_for()
    page.get_by_text("Your answers are stored.", exact=True).wait_for()


def judge_one(page: Any, keys: str) -> None:
    """Answer the three questions by number keys, and wait until the answers are confirmed."""
    page.locator("#picture").wait_for()
    for key in keys:
        page.keyboard.press(key)
    wait_until_stored(page)


def violations(page: Any) -> list[str]:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html']}" for one in found]


def test_a_rater_judges_everything_by_keyboard_and_comes_back(server: Server, browser: Any, tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    context = browser.new_context(viewport=WIDE)
    page = new_page(context, server.address)
    start(page, "Anna")
    assert page.get_by_role("heading", name="Picture 1 of 6").is_visible()
    judge_one(page, "123")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Picture 2 of 6").wait_for()
    judge_one(page, "31")
    seen = page.locator("#left").inner_text()
    page.close()  # in the middle of a picture
    assert len(latest_answers(read_answers(answers)[1])) == 5

    page = new_page(context, server.address)
    assert page.get_by_label("Your name").input_value() == "Anna"
    start(page, "anna")
    assert page.get_by_role("heading", name="Picture 2 of 6").is_visible()
    assert page.locator("#left").inner_text() == seen
    assert [one.get_attribute("value") for one in page.locator("input:checked[type=radio]").all()] == ["right", "left"]
    page.keyboard.press("Enter")  # not yet: a question is open
    assert page.get_by_text("Answer this question too").is_visible()
    page.keyboard.press("2")
    page.keyboard.press("Enter")
    for number in range(3, 7):
        page.get_by_role("heading", name=f"Picture {number} of 6").wait_for()
        judge_one(page, "111")
        page.keyboard.press("Enter")
    page.get_by_text("all your answers are stored").wait_for()

    # An answer can be changed, by the arrows too; the last one counts.
    page.get_by_role("button", name="Look at my answers again").click()
    page.get_by_role("heading", name="Picture 1 of 6").wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    wait_until_stored(page)
    page.keyboard.press("Enter")
    page.get_by_text("all your answers are stored").wait_for()
    assert page.problems == []
    context.close()
    assert server.stop() == 0
    trial, rows = read_answers(answers)
    latest = latest_answers(rows)
    assert len(latest) == 18
    assert latest["anna", trial.items[trial.asked("Anna")[0]].id, "informativeness"] == "tie"
    assert judge_report(answers).raters[0].items == 6


def test_two_tabs_and_a_killed_server_neither_lose_nor_double(server: Server, browser: Any, tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    context = browser.new_context(viewport=PHONE)
    one, other = new_page(context, server.address), new_page(context, server.address)
    for page in (one, other):
        start(page, "Ben")
    for page in (one, other):  # both show the same picture
        judge_one(page, "111")
    assert len(read_answers(answers)[1]) == 3
    server.stop(signal.SIGKILL)
    one.keyboard.press("Enter")
    one.get_by_role("heading", name="Picture 2 of 6").wait_for()
    one.keyboard.press("3")
    one.get_by_text("1 answer is not stored yet").wait_for()
    one.close()  # the browser keeps the answer
    server.start()
    page = new_page(context, server.address)
    start(page, "Ben")
    wait_until_stored(page)
    trial, rows = read_answers(answers)
    assert latest_answers(rows)["ben", trial.items[trial.asked("Ben")[1]].id, "informativeness"] == "right"
    assert len(rows) == 4
    context.close()


def test_the_pages_are_accessible_and_fit(server: Server, browser: Any, tmp_path: Path) -> None:
    answers, report = tmp_path / "answers.jsonl", tmp_path / "report.html"
    for size in (WIDE, PHONE):
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport=size, color_scheme=scheme)
            page = new_page(context, server.address)
            page.get_by_label("Your name").wait_for()
            assert violations(page) == []
            start(page, f"Carla {size['width']} {scheme}")
            judge_one(page, "12")
            page.locator("summary").click()
            assert violations(page) == []
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            write_judge_report(judge_report(answers), answers, report)
            page.goto(report.as_uri())
            assert violations(page) == []
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            context.close()


def test_a_rater_with_a_link_needs_no_name(
    files: tuple[Path, Path], pictures: Path, browser: Any, tmp_path: Path
) -> None:
    arguments = [*map(str, files), "--images", str(pictures), "--out", str(tmp_path / "answers.jsonl")]
    server = Server([*arguments, "--rater", "Anna", "--rater", "Ben", "--token", "t" * 20], tmp_path / "log")
    try:
        context = browser.new_context()
        page = new_page(context, re.search(r"Ben: (\S+)", server.said)[1])  # type: ignore[index]
        page.get_by_role("button", name="Start").click()
        page.get_by_text("You are Ben").wait_for()
        judge_one(page, "1")
        stranger = new_page(context, server.address.partition("#")[0] + f"#token={'t' * 20}")
        stranger.get_by_text("needs your own link").wait_for()
        context.close()
    finally:
        server.stop()
    assert [row.rater for row in read_answers(tmp_path / "answers.jsonl")[1]] == ["Ben"]
