"""The page of `tellapart serve` in a browser: what a person does there, against a stand-in for the service."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("fastapi", reason="needs the extra serve")
if not shutil.which("chromium"):
    pytest.skip("needs the browser chromium", allow_module_level=True)

from playwright.sync_api import Browser, Locator, Page, expect  # noqa: E402

from support.fake_service import FakeService, picture  # noqa: E402
from tellapart.serve import web  # noqa: E402

Open = Callable[..., Page]
expect.set_options(timeout=20_000)  # for busy machines; nothing waits longer than it must
RED, GREEN, BLUE = "red.jpg", "green.jpg", "blue.jpg"
NAMES = {"red": RED, "green": GREEN, "blue": BLUE, "yellow": "yellow.jpg"}
# A drop of files, as the browser sees it.
DROP = """files => {
  const data = new DataTransfer();
  for (const [name, type, text] of files) {
    data.items.add(new File([Uint8Array.from(atob(text), sign => sign.charCodeAt(0))], name, {type}));
  }
  const event = name => new DragEvent(name, {dataTransfer: data, bubbles: true, cancelable: true});
  document.body.dispatchEvent(event("dragenter"));
  const seen = document.getElementById("drop").classList.contains("over");
  document.body.dispatchEvent(event("drop"));
  return seen && !document.getElementById("drop").classList.contains("over");
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Within one module: other tests cannot run a loop of their own meanwhile.
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        yield browser
        browser.close()


@pytest.fixture
def service() -> Iterator[FakeService]:
    service = FakeService()
    yield service
    service.stop()


@pytest.fixture
def open_page(browser: Browser, service: FakeService) -> Iterator[Open]:
    """Open the page. At the end, no script may have failed and nothing may have been blocked or asked elsewhere."""
    contexts, wrong = [], []

    def open_page(path: str = "/", width: int = 1280, height: int = 800, **options: Any) -> Page:
        size = {"width": width, "height": height}
        context = browser.new_context(viewport=size, reduced_motion="reduce", **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
        page.on("request", lambda asked: None if own(asked.url) else wrong.append(f"asked {asked.url}"))
        page.goto(service.address + path)
        return page

    def own(url: str) -> bool:
        return url.startswith((service.address, f"blob:{service.address}"))

    yield open_page
    for context in contexts:
        context.close()
    assert not wrong


def files(*colours: str) -> list[Any]:
    return [{"name": NAMES[one], "mimeType": "image/jpeg", "buffer": picture(one)} for one in colours]


def add(page: Page, *colours: str) -> None:
    """Add pictures by choosing files, and wait until they are told from others."""
    page.locator("#files").set_input_files(files(*colours))
    for colour in colours:
        expect(card(page, NAMES[colour]).locator(".distinctive .rank")).to_be_visible()


def scored(scores: list[float]) -> list[dict[str, Any]]:
    """Results of a search with these similarities."""
    of_all = {"where": "collection", "caption": None, "thumbnail": None}
    return [{**of_all, "id": f"c{at}", "name": f"photo {at}.jpg", "score": one} for at, one in enumerate(scores)]


def card(page: Page, name: str) -> Locator:
    return page.get_by_role("article", name=name)


def run(page: Page, module: str, code: str, value: Any = None) -> Any:
    """Run a function of one of the page's modules; `m` is the module."""
    return page.evaluate(f"async value => {{ const m = await import('/static/{module}.js'); return {code}; }}", value)


def test_drop_pictures_and_read_their_captions(open_page: Open, service: FakeService) -> None:
    page = open_page()
    expect(page.get_by_text("24 pictures in photos.lance")).to_be_visible()
    given = [(RED, "image/jpeg", picture("red")), ("broken.jpg", "image/jpeg", b"no picture")]
    given += [("notes.txt", "text/plain", b"hello"), ("huge.jpg", "image/jpeg", bytes(1_100_000))]
    assert page.evaluate(DROP, [(name, kind, base64.b64encode(content).decode()) for name, kind, content in given])

    red = card(page, RED)
    expect(red.locator(".plain .caption")).to_have_text("a red ball")
    expect(red.locator(".plain .rank")).to_contain_text("its picture comes 3rd of 10")
    expect(red.locator(".distinctive .rank")).to_contain_text("finds its picture: 1st of 10")
    expect(red.locator(".strip img")).to_have_count(9)
    marked = red.get_by_role("button", name="distinguishing")
    expect(marked).to_have_count(1)
    style = marked.evaluate("one => [getComputedStyle(one).textDecorationLine, getComputedStyle(one).fontWeight]")
    assert style == ["underline", "640"]  # more than a colour

    # A bad file has its own error, in plain words, and is not sent if the page can tell.
    expect(card(page, "broken.jpg")).to_contain_text("Save it again as JPEG or PNG.")
    expect(card(page, "notes.txt")).to_contain_text("notes.txt is not a picture.")
    expect(card(page, "huge.jpg")).to_contain_text("too large: 1.1 MB, and this server takes 1 MB")
    assert [body["files"] for path, body in service.asked if path == "/api/captions"] == [[RED, "broken.jpg"]]
    # The same file again is not a second picture; a pasted one is.
    page.evaluate(
        """text => {
          const data = new DataTransfer();
          const bytes = Uint8Array.from(atob(text), sign => sign.charCodeAt(0));
          data.items.add(new File([bytes], "image.png", {type: "image/png"}));
          document.body.dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, bubbles: true}));
        }""",
        base64.b64encode(picture("blue", kind="PNG")).decode(),
    )
    expect(card(page, "image.png").locator(".plain .caption")).to_have_text("a blue ball")


def test_pictures_that_wait_to_be_told_apart_say_so(open_page: Open, service: FakeService) -> None:
    service.may_tell.clear()
    page = open_page()
    page.locator("#files").set_input_files(files("red", "green"))
    expect(card(page, RED).locator(".distinctive")).to_contain_text("Looking for what sets it apart…")
    expect(card(page, GREEN).locator(".distinctive")).to_contain_text("Waiting…")
    service.may_tell.set()
    expect(page.locator(".distinctive .rank")).to_have_count(2)
    expect(page.get_by_text("Waiting…")).to_have_count(0)


def test_attention_of_a_word_is_shown_over_the_picture(open_page: Open) -> None:
    page = open_page()
    add(page, "red")
    view, words = card(page, RED).locator(".view"), card(page, RED).locator(".distinctive .word")
    clear = """view => {  // the clearest place of the shade, in parts of its width and height
      const {width, height} = view.querySelector("canvas");
      const data = view.querySelector("canvas").getContext("2d").getImageData(0, 0, width, height).data;
      const dark = Array.from({length: width * height}, (_, at) => data[4 * at + 3]);
      const at = dark.indexOf(Math.min(...dark));
      return [(at % width + 0.5) / width, (Math.floor(at / width) + 0.5) / height, width / height, Math.max(...dark)];
    }"""
    words.nth(2).hover()
    expect(view).to_have_class("view shaded")
    expect(view.locator(".seen")).to_have_text("ball 74 %")
    x, y, ratio, darkest = view.evaluate(clear)
    assert x == pytest.approx(2.5 / 7, abs=0.03)
    assert y == pytest.approx(1.5 / 7, abs=0.03)
    assert ratio == pytest.approx(160 / 120, abs=0.03)
    assert darkest > 180
    boxes = view.evaluate(
        "view => ['img', 'canvas'].map(tag => JSON.stringify(view.querySelector(tag).getBoundingClientRect()))"
    )
    assert boxes[0] == boxes[1]
    page.mouse.move(2, 2)
    expect(view).to_have_class("view")
    # By keyboard: one tab stop, arrow keys between words, Enter holds the shade, Escape lets it go.
    words.first.focus()
    page.keyboard.press("ArrowRight")
    expect(words.nth(1)).to_be_focused()
    expect(view).to_have_class("view shaded")
    assert view.evaluate(clear)[0] == pytest.approx(1.5 / 7, abs=0.03)
    page.keyboard.press("Enter")
    expect(words.nth(1)).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("End")
    expect(words.last).to_be_focused()
    page.keyboard.press("Tab")
    expect(view).to_have_class("view shaded")  # held
    words.first.focus()
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    expect(view).to_have_class("view")
    assert words.first.get_attribute("aria-description") == "looks at the upper left, 90 % likely"
    toolbar = card(page, RED).get_by_role("toolbar", name="Distinctive caption: a red ball on a beach")
    expect(toolbar).to_be_visible()


def test_search_while_typing_drops_old_answers(open_page: Open, service: FakeService) -> None:
    service.delays["gree"] = 0.6
    page = open_page()
    add(page, "red")
    page.keyboard.press("/")
    query = page.get_by_role("searchbox", name="Search pictures by what is in them")
    expect(query).to_be_focused()
    query.fill("gree")
    page.wait_for_timeout(250)  # the slow search is under way
    query.press_sequentially("n", delay=0)
    expect(page.get_by_role("heading", name="“green”")).to_be_visible()
    found = page.locator("#results li")
    expect(found).to_have_count(6)
    page.wait_for_timeout(450)  # its answer comes now, too late
    expect(page.get_by_role("heading", name="“green”")).to_be_visible()
    expect(found).to_have_count(6)
    expect(page.locator("#heard")).to_have_text("“green”: 6 pictures")

    before = service.count("/api/search")
    query.press_sequentially(" ball on a table", delay=5)
    expect(page.get_by_role("heading", name="“green ball on a table”")).to_be_visible()
    assert service.count("/api/search") < before + 8  # not one for each of the 16 keys
    # Among the pictures of this page only; from a result to its card; then pictures like one of the collection.
    query.fill("red ball")
    page.get_by_role("radio", name="Your pictures").check()
    expect(found).to_have_count(1)
    assert service.asked[-1][1]["ids"] == ["u1"]
    found.get_by_role("button").click()
    expect(card(page, RED)).to_be_focused()
    page.get_by_role("radio", name="Collection").check()
    found.get_by_role("button").first.click()
    expect(page.get_by_role("heading", name="Like photo 0.jpg")).to_be_focused()
    card(page, RED).get_by_role("button", name="Find pictures similar to red.jpg").click()
    expect(page.get_by_role("heading", name="Like red.jpg")).to_be_focused()
    # Each result has its similarity; the tail with less than half of the best is pale, and says why.
    scores = [0.8, 0.3, 0.5, 0.39, 0.1]
    page.route("**/api/search", lambda route: route.fulfill(json={**route.fetch().json(), "results": scored(scores)}))
    query.fill("blue")
    expect(found.locator(".near")).to_have_text([f", similarity {score:.3f}" for score in scores])
    pale = found.evaluate_all("all => all.map(one => getComputedStyle(one.querySelector('img')).opacity < 1)")
    assert pale == [False, False, False, True, True]
    expect(found.last.get_by_role("button")).to_have_attribute("title", re.compile("0.100 .* less than half"))
    page.unroute("**/api/search")
    query.fill("zebra")
    expect(page.get_by_text("Nothing found. Try other words.", exact=True)).to_be_visible()
    query.press("Escape")
    expect(page.locator("#found")).to_be_hidden()
    expect(query).to_have_value("")


def test_tell_a_selection_apart(open_page: Open, service: FakeService) -> None:
    page = open_page()
    add(page, "red", "green", "blue")
    page.get_by_role("checkbox", name="Select red.jpg").check()
    page.get_by_role("checkbox", name="Select blue.jpg").check()
    bar = page.get_by_role("region", name="Selected pictures")
    expect(bar).to_contain_text("2 selected")
    bar.get_by_role("combobox").select_option("4")
    bar.get_by_role("button", name="Tell apart").click()
    expect(page.get_by_role("heading", name="Told apart")).to_be_focused()
    assert service.asked[-1] == ("/api/tell-apart", {"ids": ["u1", "u3"], "distractors": 4, "one_group": True})
    told = page.get_by_role("region", name="Told apart")
    expect(told).to_contain_text("Plain captions find 0 of 2, distinctive captions 2 of 2.")
    expect(told.locator(".together li")).to_have_count(2)
    expect(told.locator(".strip img")).to_have_count(4)
    told.locator(".word.mark").first.hover()
    expect(told.locator(".view.shaded")).to_have_count(1)
    # The cards know it too: told from the other one and the four.
    expect(card(page, RED).locator(".distinctive .rank")).to_contain_text("1st of 6")
    expect(card(page, RED).locator(".strip img")).to_have_count(5)
    expect(card(page, GREEN).locator(".distinctive .rank")).to_contain_text("1st of 10")
    expect(bar).to_be_hidden()
    # A picture that is removed is gone from what others are told from, and the focus stays near.
    card(page, BLUE).get_by_role("button", name="Remove").click()
    expect(card(page, RED).locator(".strip img")).to_have_count(4)
    expect(card(page, GREEN)).to_be_focused()


def test_the_same_picture_twice(open_page: Open) -> None:
    page = open_page()
    add(page, "red", "green")
    page.locator("#files").set_input_files({"name": "copy.jpg", "mimeType": "image/jpeg", "buffer": picture("red")})
    expect(card(page, "copy.jpg").locator(".distinctive .rank")).to_be_visible()
    for name in (RED, "copy.jpg", GREEN):
        page.get_by_role("checkbox", name=f"Select {name}").check()
    page.get_by_role("region", name="Selected pictures").get_by_role("button", name="Tell apart").click()
    expect(page.get_by_role("region", name="Told apart")).to_contain_text("distinctive captions 2 of 2.")
    expect(card(page, "copy.jpg")).to_contain_text(f"The same picture as {RED}.")
    expect(card(page, RED)).not_to_contain_text("The same picture as")


def test_edit_a_caption_and_see_what_it_fetches(open_page: Open, service: FakeService) -> None:
    page = open_page()
    add(page, "red", "green")
    red = card(page, RED)
    red.get_by_role("button", name="Edit the caption of red.jpg").click()
    text = red.get_by_label("Your caption", exact=True)
    expect(text).to_be_focused()
    expect(text).to_have_value("a red ball on a beach")
    expect(red.locator(".change")).to_contain_text("Now 1st of 26")
    expect(red.locator(".editor .own")).to_contain_text("this one")
    text.fill("a green thing")
    expect(red.locator(".change")).to_contain_text("Down from 1st to")
    text.fill("")
    expect(red.get_by_role("button", name="Keep this caption")).to_be_disabled()
    text.fill("the  red ball on a beach")
    expect(red.locator(".change")).to_contain_text("Still 1st of 26")
    text.press("Enter")
    expect(red.get_by_role("button", name="Edit the caption of red.jpg")).to_be_focused()
    expect(red.locator(".distinctive h4")).to_have_text("Yours")
    expect(red.locator(".distinctive .caption")).to_have_text("the red ball on a beach")
    red.get_by_role("button", name="Go back to the distinctive one").click()
    expect(red.locator(".distinctive .caption")).to_contain_text("a red ball on a beach")
    # Escape leaves the editor and changes nothing.
    red.get_by_role("button", name="Edit the caption of red.jpg").click()
    text.press_sequentially("!!")
    text.press("Escape")
    expect(red.locator(".editor")).to_have_count(0)
    expect(red.locator(".distinctive h4")).to_have_text("Distinctive")


def test_export(open_page: Open) -> None:
    page = open_page()
    evil = {"name": '=cmd|"x"!A1.jpg', "mimeType": "image/jpeg", "buffer": picture("blue")}
    page.locator("#files").set_input_files([*files("red"), evil])
    expect(page.locator(".distinctive .rank")).to_have_count(2)
    card(page, RED).get_by_role("button", name="Edit").click()
    card(page, RED).get_by_label("Your caption", exact=True).fill('-2+3 <b>red</b> “ball” & "more"')
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Export").click()
    dialog = page.get_by_role("dialog", name="Export 2 pictures")

    def download() -> tuple[str, str]:
        with page.expect_download() as started:
            dialog.get_by_role("button", name="Download").click()
        return started.value.suggested_filename, started.value.path().read_bytes().decode()

    name, table = download()
    assert name == "captions.csv"
    assert table.startswith("\ufeff")
    rows = list(csv.DictReader(io.StringIO(table.removeprefix("\ufeff"), newline="")))
    assert [row["id"] for row in rows] == [RED, '\'=cmd|"x"!A1.jpg']
    assert rows[0]["caption"] == '\'-2+3 <b>red</b> “ball” & "more"'
    assert (rows[0]["source"], rows[1]["words"]) == ("edited", "chair")
    assert rows[0]["plain_rank"] == ""  # it would be of another number of pictures
    assert (rows[1]["rank"], rows[1]["of"]) == ("1", "10")

    dialog.get_by_label("JSON lines").check()
    name, lines = download()
    records = [json.loads(line) for line in lines.splitlines()]
    assert name == "captions.jsonl"
    assert [record["id"] for record in records] == [RED, evil["name"]]
    assert records[0]["caption"].startswith("-2+3 <b>")
    assert records[1]["plain_rank"] == 3

    dialog.get_by_label("Alt text (HTML)").check()
    name, snippets = download()
    assert name == "alt-text.html"
    parsed = page.evaluate(
        """text => {
          const images = [...new DOMParser().parseFromString(text, "text/html").images];
          return images.map(one => [one.getAttribute("src"), one.alt]);
        }""",
        snippets,
    )
    assert parsed[0] == [RED, '-2+3 <b>red</b> “ball” & "more"']
    assert parsed[1] == ["%3Dcmd%7C%22x%22!A1.jpg", "a blue ball on a chair"]
    dialog.get_by_label("plain captions").check()
    assert 'alt="a red ball"' in dialog.get_by_label("What will be written").input_value()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("button", name="Export")).to_be_focused()


def test_busy_forgotten_and_gone(open_page: Open, service: FakeService) -> None:
    page = open_page()
    expect(page.locator("#search")).to_be_visible()
    service.busy = 3
    add(page, "red", "green")  # asked again after the time the server says
    assert service.busy == 0
    # Forgotten pictures are sent again, and nobody is told.
    service.forget()
    page.get_by_role("checkbox", name="Select red.jpg").check()
    page.get_by_role("button", name="Tell apart").click()
    expect(page.get_by_role("heading", name="Told apart")).to_be_focused()
    assert service.asked[-2] == ("/api/captions", {"files": [RED]})
    page.get_by_role("searchbox").fill("ball on a")
    page.get_by_role("radio", name="Your pictures").check()
    expect(page.locator("#results li")).to_have_count(2)
    expect(page.locator(".alert")).to_have_count(0)
    # A server that is gone is an error that says what to do; then it can be tried again.
    page.context.set_offline(True)
    page.locator("#files").set_input_files(files("blue"))
    expect(page.get_by_role("alert")).to_contain_text("Check that tellapart serve is still running")
    page.context.set_offline(False)
    card(page, BLUE).get_by_role("button", name="Try again").click()
    expect(card(page, BLUE).locator(".plain .caption")).to_have_text("a blue ball")


def test_token(open_page: Open, service: FakeService) -> None:
    service.token = "a-secret-of-many-letters"
    page = open_page("/#token=a-secret-of-many-letters")
    add(page, "red")
    assert page.url == f"{service.address}/"
    thumbnail = card(page, RED).locator(".strip img").first
    assert (
        thumbnail.evaluate("async one => (await one.decode(), one.src.startsWith('blob:') && one.naturalWidth)") == 160
    )
    page = open_page()
    page.get_by_role("textbox", name="Token").fill(service.token)
    page.keyboard.press("Enter")
    expect(page.get_by_text("24 pictures in photos.lance")).to_be_visible()


def test_without_a_collection(open_page: Open, service: FakeService) -> None:
    service.collection = 0
    page = open_page()
    about = "tellapart 0.1.0 · captions by the shipped captioner · search by coco-retriever"
    expect(page.locator("#about")).to_have_text(about)
    expect(page.locator("#search")).to_be_hidden()
    page.locator("#files").set_input_files(files("red"))
    expect(card(page, RED)).to_contain_text("Add a similar picture to tell it apart from.")
    page.locator("#files").set_input_files(files("green"))
    expect(card(page, RED).locator(".distinctive .rank")).to_contain_text("1st of 2")
    expect(card(page, GREEN).locator(".strip img")).to_have_count(1)
    page.get_by_role("searchbox").fill("green ball")
    expect(page.locator("#results li")).to_have_count(2)
    expect(page.locator("#among")).to_be_hidden()
    page.get_by_role("checkbox", name="Select red.jpg").check()
    expect(page.get_by_role("button", name="Tell apart")).to_be_disabled()


def test_keyboard_alone(open_page: Open) -> None:
    page = open_page()
    page.on("filechooser", lambda _: None)  # from now on: else the first one may be missed
    expect(page.locator("#search")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to your pictures")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Choose pictures")).to_be_focused()
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files(files("red", "green"))
    expect(card(page, GREEN).locator(".distinctive .rank")).to_be_visible()
    # From the button on: the select box, both captions (one stop each), then the actions of each card.
    seen = []
    for _ in range(14):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.ariaLabel || document.activeElement.innerText"))
    of_one = [
        "Select {}",
        "a",
        "a",
        *(
            f"{what} {{}}"
            for what in ("Edit the caption of", "Find pictures similar to", "Copy the caption of", "Remove")
        ),
    ]
    assert seen == [text.format(name) for name in (RED, GREEN) for text in of_one]
    for name in (GREEN, RED):
        page.get_by_role("checkbox", name=f"Select {name}").focus()
        page.keyboard.press("Space")
    page.get_by_role("button", name="Tell apart").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Told apart")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # Close
    expect(page.locator("#told")).to_be_hidden()
    expect(page.locator("#pictures")).to_be_focused()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_accessible_and_fits(open_page: Open, width: int, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python").Axe()

    rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

    def check(part: str) -> None:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found = axe.run(page, part, {"runOnly": rules, "resultTypes": ["violations"]})
        assert found.violations_count == 0, found.generate_report()

    page = open_page(width=width, color_scheme=scheme, bypass_csp=True)  # axe is put into the page as a script
    expect(page.locator("#search")).to_be_visible()
    check("html")
    broken = {
        "name": "a-very-long-name-of-a-file-that-does-not-end-soon-enough.jpg",
        "mimeType": "image/jpeg",
        "buffer": b"no",
    }
    page.locator("#files").set_input_files([*files("red", "green"), broken])
    expect(page.locator(".distinctive .rank")).to_have_count(2)
    page.get_by_role("button", name="Select all").click()
    page.get_by_role("button", name="Tell apart").click()
    expect(page.locator("#told")).to_be_visible()
    page.get_by_role("searchbox").fill("ball")
    page.get_by_role("checkbox", name="Select red.jpg").check()
    card(page, RED).get_by_role("button", name="Edit").click()
    expect(page.locator("#results li")).not_to_have_count(0)
    expect(page.locator(".editor .strip li")).not_to_have_count(0)
    card(page, GREEN).locator(".word.mark").click()
    check("html")
    page.get_by_role("button", name="Export").first.click()
    check("#export")


def test_with_the_service_itself(browser: Browser, tmp_path: Path) -> None:
    """The real service with tiny models: what the stand-in answers is what the page gets."""
    pytest.importorskip("lancedb", reason="comes with the extra 'index'")
    import uvicorn

    from support.services import make_settings, picture_bytes
    from tellapart.serve.app import create_app

    opened = web.listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(create_app(make_settings(tmp_path)), ws="none", log_level="warning"))
    running = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
    running.start()
    try:
        page = browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(web.address_of(opened))
        expect(page.get_by_text("12 pictures in photos.lance")).to_be_visible()
        pictures = [(f"photo-{seed}.png", picture_bytes(seed)) for seed in range(2)] + [("broken.png", b"no picture")]
        page.locator("#files").set_input_files(
            [{"name": name, "mimeType": "image/png", "buffer": content} for name, content in pictures]
        )
        expect(page.locator(".distinctive .rank")).to_have_count(2)
        thumbnails = card(page, "photo-0.png").locator(".strip img")
        others = thumbnails.count()  # at most nine; copies of the picture are left out
        assert others > 3
        expect(card(page, "photo-0.png").locator(".distinctive .rank")).to_contain_text(f" of {others + 1}")
        assert thumbnails.first.evaluate("async one => (await one.decode(), one.naturalWidth)") > 0
        expect(card(page, "broken.png").locator(".wrong")).not_to_be_empty()
        expect(card(page, "photo-0.png").locator(".plain .caption")).not_to_be_empty()
        page.get_by_role("searchbox").fill("red")
        expect(page.locator("#results li")).to_have_count(14)
        page.get_by_role("button", name="Select all").click()
        page.get_by_role("button", name="Tell apart").click()
        expect(page.locator("#told-pictures li")).to_have_count(2)
        others = page.locator("#told-against img").count()
        expect(page.locator("#told-pictures .rank").first).to_contain_text(f" of {others + 2}")
        card(page, "photo-1.png").get_by_role("button", name="Edit").click()
        card(page, "photo-1.png").get_by_label("Your caption", exact=True).fill("a dog xyzzy")
        expect(page.locator(".change")).to_contain_text("Now")  # the untrained captioner has no words to compare with
        expect(page.locator(".unknown")).to_contain_text("xyzzy")
        page.locator(".editor .word").first.hover()
        expect(card(page, "photo-1.png").locator(".view")).to_have_class("view shaded")
        assert not errors
        page.close()
    finally:
        server.should_exit = True
        running.join()


def test_parts(open_page: Open) -> None:
    """Functions of the page's modules, each on its own."""
    page = open_page()
    ordinals = run(page, "text", "value.map(m.ordinal)", [1, 2, 3, 4, 11, 12, 13, 21, 112, 1001])
    assert ordinals == ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "112th", "1,001st"]
    assert run(page, "text", "value.map(m.size)", [0, 999, 640_000, 1_500_000, 20_000_000]) == [
        "1 kB",
        "1 kB",
        "640 kB",
        "1.5 MB",
        "20 MB",
    ]
    changes = run(
        page, "text", "[m.changeText(12, 3, 412), m.changeText(1, 2, 9), m.changeText(null, 1001, 5000, false)]"
    )
    assert changes == ["Up from 12th to 3rd of 412", "Down from 1st to 2nd of 9", "Now after the 1,000th of 5,000"]

    cells = [
        "a dog",
        "=1+1",
        "+1",
        "-1",
        "@x",
        "\t=1",
        "\r=1",
        " =1",
        "＝1",
        'say "hi"',
        "a, b",
        "it's",
        "",
        None,
        -9.1,
    ]
    written = run(page, "exporting", "value.map(m.cell)", cells)
    assert written[0] == "a dog"
    assert written[-3:] == ["", "", "-9.1"]
    back = next(csv.reader(io.StringIO(",".join(written), newline="")))
    for given, read in zip(cells[1:9], back[1:9], strict=True):
        assert read == f"'{given}"
    assert back[9:12] == cells[9:12]

    waits = run(
        page,
        "api",
        "value.map(text => m.retryAfter(text, Date.parse('2026-01-01T00:00:00Z')))",
        ["3", "0", None, "soon", "9999", "Thu, 01 Jan 2026 00:00:07 GMT", "Wed, 31 Dec 2025 00:00:00 GMT"],
    )
    assert waits == [3, 0, 2, 2, 30, 7, 0]
    # No request is larger than allowed, all files are sent once and in order.
    sizes = [10_000, 20_000, 50_000, 1_000, 1_000, 1_000, 1_000, 90_000]
    split = run(
        page,
        "uploads",
        "m.requests(value.map(size => ({size})), 100000, 4).map(some => some.map(one => one.size))",
        sizes,
    )
    assert split == [[10_000, 20_000, 50_000, 1_000], [1_000, 1_000, 1_000], [90_000]]

    places = run(
        page,
        "attention",
        "[0, 6, 24, 42, 48, 27].map(cell => m.where(Array.from({length: 49}, (_, at) => +(at === cell)), [7, 7]))",
    )
    assert places == ["upper left", "upper right", "centre", "lower left", "lower right", "right"]
    assert run(page, "attention", "m.where([1, 1, 1, 1], [2, 2])") == "centre"
    flat = run(page, "attention", "[...m.shade([2, 2, 2, 2], [2, 2], 3, 3)]")
    assert flat == [0] * 9  # no word looks anywhere: nothing is hidden
    shade = run(page, "attention", "[...m.shade([1, 0, 0, 0], [2, 2], 4, 2)]")
    assert (shade[0], shade[7]) == (0, 1)
    assert shade[:4] == sorted(shade[:4])
    assert all(above < below for above, below in zip(shade[:4], shade[4:], strict=True))

    # Of several tasks, only the newest one's value counts, also if an earlier one ends later or fails.
    newest = run(
        page,
        "dom",
        """await (async () => {
      const newest = m.newestOnly();
      const after = (ms, value) => () => new Promise((resolve, reject) => {
        setTimeout(() => value ? resolve(value) : reject(new Error()), ms);
      });
      return Promise.all([newest(after(30, "old")), newest(after(20, null)), newest(after(5, "new"))]);
    })()""",
    )
    assert newest == [None, None, "new"]
