"""Your own photographs: `caption`, `score`, `export`, `tell-apart`, `index`, `search`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tellapart.cli.base import DownloadOption, ModelOption, app, json_line
from tellapart.errors import TellapartError
from tellapart.progress import ProgressLine, close_bars

if TYPE_CHECKING:
    from tellapart.decoding.settings import DecodingSettings
    from tellapart.index.base import Recall
    from tellapart.index.photos import Found
    from tellapart.telling_apart.tell import ToldApart

PANEL = "Your photographs"  # in the help


def _download(*named: str | Path | None) -> None:
    """Get the models that are named as on the hub, and are not here yet."""
    from tellapart.huggingface.hub import locate

    if not any(named):
        raise typer.BadParameter("--download gets models that are named; name one with --model or --retriever")
    for one in named:
        if one:
            locate(one, download=True)


@app.command(rich_help_panel=PANEL)
def caption(
    images: Annotated[list[Path] | None, typer.Argument(help="Images, or folders of images.")] = None,
    model: ModelOption = None,
    data: Annotated[str | None, typer.Option(help="Caption the --split of this data set instead.")] = None,
    split: Annotated[str, typer.Option(help="Split of --data.")] = "test",
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for the rows (JSONL); by default they are printed. A name that ends in _results.json gives a "
            "result file for COCO's server."
        ),
    ] = None,
    method: Annotated[str | None, typer.Option(help="beam, diverse (beam search in groups) or sample.")] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Beam width; 1 is greedy.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Number of captions for each image.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of samples: below 1 sharper, above 1 flatter.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample only from the likeliest words of this mass.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of samples.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any key of a recipe's decoding section, e.g. length_penalty=1 or groups=3."),
    ] = None,
    overlay: Annotated[Path | None, typer.Option(help="Folder for attention maps over the images.")] = None,
    download: DownloadOption = False,
) -> None:
    """Caption images. On a terminal: a line for each; in a pipe or with --out: JSON rows.

    A row has id, caption, log_prob and ended. Options that are not given are as in the recipe of the (first) model.
    With --out an interrupted call continues.
    """
    from tellapart.captioning import caption as caption_images
    from tellapart.captioning import caption_split, caption_to_file, is_server_file
    from tellapart.decoding.settings import DecodingSettings
    from tellapart.describing import own_decoding
    from tellapart.errors import DataError
    from tellapart.files import check_ending, check_output, write_json, write_jsonl

    if bool(images) == bool(data):
        raise typer.BadParameter("give images to caption, or a data set with --data")
    if data and overlay:
        raise typer.BadParameter("--overlay cannot be combined with --data")
    server = out is not None and is_server_file(out)
    if out is not None:
        marks = ("image_id", "caption") if server else ("id", "caption", "log_prob", "ended")
        check_output(out, *marks, inputs=[*(images or []), *([data] if data else [])])
        check_ending(out, ".jsonl", "_results.json")
    given = {
        "method": method,
        "beam": beam,
        "samples": samples,
        "seed": seed,
        "temperature": temperature,
        "top_p": top_p,
    }
    chosen = {key: value for key, value in given.items() if value is not None}
    if download:
        _download(*(model or []))
    models: list[Path] = model or [Path("shipped")]
    settings = DecodingSettings.parse({**own_decoding(models).model_dump(), **chosen}, set_ or [])
    skipped = _Skipped(ProgressLine("captioning", " images"))
    if data is not None:
        rows = caption_split(data, models, split, settings, skipped.progress, server=server)
        captioned = len(rows)
        if out is None:
            _print_captions(rows)
        else:
            (write_json if server else write_jsonl)(out, rows)
    elif out is None:
        captioned = _caption_and_print(images or [], models, settings, overlay, skipped)
    elif server:
        rows = caption_images(images or [], models, settings, skipped, skipped.progress, overlay, server)
        captioned = len(rows)
        if rows:
            write_json(out, rows)
        if skipped.count:
            missing = f"{skipped.count} of {skipped.count + len(rows)} images"
            print(f"{out}: has no captions of {missing}; COCO's server takes only complete results", file=sys.stderr)
    else:
        captioned = caption_to_file(images or [], out, models, settings, skipped, skipped.progress, overlay)
    if not captioned:
        raise DataError("no image could be read")
    if out is not None:
        _tell_written(out, captioned)
    _tell_others(images or [])
    if skipped.count > 1:
        print(f"{skipped.count:,} images could not be read; the messages above name them", file=sys.stderr)


class _Skipped:
    """Tells on the error stream which images are skipped, as soon as it is known, and counts them.

    Args:
        line: shows the progress.
    """

    def __init__(self, line: ProgressLine) -> None:
        self.count = 0
        self._line = line

    def __call__(self, error: object) -> None:
        self.count += 1
        close_bars()
        print(f"skipped: {error}", file=sys.stderr)

    def progress(self, done: int, of: int) -> None:
        """Show the progress, unless no image at all could be read."""
        if self.count < of:
            self._line.update(done, of)


def _tell_others(images: Sequence[Path]) -> None:
    """Say how many files in folders have a format that is not read."""
    from tellapart.data.readers.folder import describe_others

    others = describe_others([path for path in images if path.is_dir()])
    if others is not None:
        print(others, file=sys.stderr)


def _tell_written(out: Path, rows: int) -> None:
    close_bars()
    print(f"wrote {out}: {rows:,} row{'' if rows == 1 else 's'}", file=sys.stderr)


def _caption_and_print(
    images: Sequence[Path],
    models: Sequence[Path],
    settings: DecodingSettings,
    overlay: Path | None,
    skipped: _Skipped,
) -> int:
    """Print captions a block at a time, on a terminal or into a pipe; gives the number of rows."""
    from tellapart.captioning import caption_blocks

    captioned = 0
    for block in caption_blocks(images, models, settings, overlay):
        for error in block.skipped:
            skipped(error)
        _print_captions(block.rows)
        captioned += len(block.rows)
        if not sys.stdout.isatty():  # there the captions show the progress
            skipped.progress(block.done, block.images)
    return captioned


def _print_captions(rows: Sequence[dict[str, Any]]) -> None:
    """Rows of captions for people on a terminal, else as JSON."""
    if not sys.stdout.isatty():
        for row in rows:
            print(json_line(row), flush=True)
        return
    width = min(40, max((len(row["id"]) for row in rows), default=0))
    for row in rows:
        print(f"{row['id']:<{width}}  {row['caption']}", flush=True)


@app.command(rich_help_panel=PANEL)
def score(
    images: Annotated[list[Path], typer.Argument(help="Images, or folders of images.")],
    caption: Annotated[str, typer.Option(help="The caption to score.")],
    model: ModelOption = None,
    retriever: Annotated[
        Path | None,
        typer.Option(
            help="Rank by this retriever's similarity instead: a run or model folder, a folder of CLIP or SigLIP, or "
            "shipped/retriever."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for the rows (JSONL); by default they are printed.")] = None,
    download: DownloadOption = False,
) -> None:
    """Score a caption: which of these images does it fetch, and what does each of its words add?

    For one image a line for each word: ln p(word), and how much of it is due to the picture. For several images their
    order, the best first.
    """
    from tellapart.errors import DataError
    from tellapart.files import check_ending, check_output, write_jsonl
    from tellapart.scoring import score_images

    if retriever is not None and model is not None:
        raise typer.BadParameter("--retriever ranks the images alone; leave --model out")
    key = "log_prob" if retriever is None else "similarity"
    if out is not None:
        check_output(out, "rank", "id", key, inputs=images)
        check_ending(out, ".jsonl")
    if download:
        _download(*(model or []), retriever)
    skipped = _Skipped(ProgressLine("scoring", " images"))

    def tell_unknown(words: list[str]) -> None:
        print(
            f"the {'captioner' if retriever is None else 'retriever'} does not know: {', '.join(words)}",
            file=sys.stderr,
        )

    rows = score_images(images, caption, model or "shipped", retriever, skipped, skipped.progress, tell_unknown)
    close_bars()
    if not rows:
        raise DataError("no image could be read")
    _tell_others(images)
    if out is not None:
        write_jsonl(out, rows)
        _tell_written(out, len(rows))
    elif not sys.stdout.isatty():
        for row in rows:
            print(json_line(row))
    else:
        _print_scores(rows, key)


def _print_scores(rows: Sequence[dict[str, Any]], key: str) -> None:
    """Scores for people: the words of one image, or the order of several."""
    from tellapart.terminal import print_table

    if len(rows) > 1 or key == "similarity":
        adds = [] if key == "similarity" else ["picture_adds"]
        print_table(["rank", "image", key, *adds], [[row[name] for name in ("rank", "id", key, *adds)] for row in rows])
        return
    (row,) = rows
    words = [[one["word"] + ("" if one["known"] else " (unknown)"), *_figures(one)] for one in row["words"]]
    print_table(["word", "ln p", "picture adds"], [*words, ["all", *_figures(row)]], title=row["id"])


def _figures(row: dict[str, Any]) -> list[str]:
    return [f"{row['log_prob']:.2f}", f"{row['picture_adds']:+.2f}"]


@app.command(rich_help_panel=PANEL)
def export(
    run: Annotated[Path, typer.Argument(help="A run folder whose test split was evaluated.")],
    to: Annotated[Path, typer.Option(help="Folder for the model: a new one, or a model folder, which is replaced.")],
    weights: Annotated[
        str | None,
        typer.Option(
            help="How they are kept: float32, float16 or int8. By default int8 if it leaves 99 % of the captions "
            "unchanged, else float16."
        ),
    ] = None,
    card_notes: Annotated[Path | None, typer.Option(help="Markdown file to put at the end of the card.")] = None,
) -> None:
    """Make a small model folder to give away from a run, with a card: figures, recipe, terms, limits, failures."""
    from tellapart.exporting import export as export_model
    from tellapart.weights import WEIGHT_TYPES

    kept = next((one for one in WEIGHT_TYPES if one == weights), None)
    if weights is not None and kept is None:
        raise TellapartError(f"--weights: '{weights}' is not a way to keep weights; give {', '.join(WEIGHT_TYPES)}")
    made = export_model(run, to, kept, card_notes)
    what = "captions" if made.kind == "captioner" else "first pictures"
    print(f"{made.folder}: {made.kind}, {made.weights}, {made.bytes / 1e6:.1f} MB")
    print(f"{made.same:.1%} of the {what} of {made.pictures:,} pictures are as in the run")


@app.command("tell-apart", rich_help_panel=PANEL)
def tell_apart(
    images: Annotated[list[Path], typer.Argument(help="Images, or folders of images.")],
    model: ModelOption = None,
    retriever: Annotated[
        str,
        typer.Option(
            help="A retriever's run or model folder, or a folder of CLIP or SigLIP, which judges the captions; 'none': "
            "the captioner's likelihood."
        ),
    ] = "shipped/retriever",
    out: Annotated[
        Path | None,
        typer.Option(help="PAGE.html, FILE.jsonl or FILE.csv; by default the rows are printed (JSONL)."),
    ] = None,
    sidecars: Annotated[
        bool, typer.Option("--sidecars", help="Also write photo.xmp beside each picture, with the caption as alt text.")
    ] = False,
    group_size: Annotated[int | None, typer.Option(min=2, help="Most pictures in a group; by default any.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Least mean cosine of a group's pictures.")] = None,
    one_group: Annotated[bool, typer.Option("--one-group", help="Tell all pictures apart from each other.")] = False,
    candidates: Annotated[
        Path | None, typer.Option(help="File with more captions, by anyone: JSONL rows with image and captions.")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="Ask this OpenAI-compatible server for captions too. It is sent the pictures.")
    ] = None,
    endpoint_model: Annotated[str | None, typer.Option(help="Name of the model on the --endpoint.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting of docs/tell-apart.md, e.g. samples=50 or truth=0.")
    ] = None,
    download: DownloadOption = False,
) -> None:
    """Group similar pictures, and caption each so that it can be told from the others of its group.

    If it is interrupted, the same command continues.
    """
    from tellapart.captioning import expand_images
    from tellapart.telling_apart.endpoint import Endpoint
    from tellapart.telling_apart.output import check_told_apart, write_told_apart
    from tellapart.telling_apart.settings import TellApartSettings
    from tellapart.telling_apart.sidecars import check_sidecars, write_sidecars
    from tellapart.telling_apart.tell import tell_apart as tell

    if (endpoint is None) != (endpoint_model is None):
        raise typer.BadParameter("--endpoint and --endpoint-model go together")
    if one_group and (group_size is not None or threshold is not None):
        raise typer.BadParameter("--one-group cannot be combined with --group-size or --threshold")
    given = {"group_size": group_size, "threshold": threshold, "one_group": one_group or None}
    settings = TellApartSettings.parse({key: value for key, value in given.items() if value is not None}, set_ or [])
    server = None if endpoint is None or endpoint_model is None else Endpoint(endpoint, endpoint_model)
    paths = expand_images(images)
    if out is not None:
        check_told_apart(out, inputs=[*paths, *([candidates] if candidates else [])])
    if sidecars:
        check_sidecars(paths)
    if download:
        _download(*(model or []), retriever)
    line = ProgressLine("telling apart", " images")
    told = tell(
        paths,
        model or "shipped",
        None if retriever == "none" else retriever,
        settings,
        candidates=candidates,
        endpoint=server,
        on_skip=_Skipped(line),
        on_progress=line.update,
    )
    close_bars()
    _tell_others(images)
    if sidecars:
        written = write_sidecars([(Path(one.id), one.caption) for one in told.pictures])
        count = "1 sidecar," if len(written) == 1 else f"{len(written):,} sidecars, such as"
        print(f"wrote {count} {written[0]}", file=sys.stderr)
    if out is None:
        for one in told.pictures:
            print(json_line(one.row()))
        return
    write_told_apart(told, out)
    print(f"wrote {out}")
    print(_told_summary(told))


def _told_summary(told: ToldApart) -> str:
    """How many pictures are similar, and how many of them each kind of caption finds; a picture twice counts once."""
    pictures = [one for one in told.pictures if one.same_as is None]
    alike = [one for one in pictures if one.of > 1]
    copies = len(told.pictures) - len(pictures)
    same = "" if not copies else f"; {copies:,} more {'is' if copies == 1 else 'are'} the same as another one"
    if not alike:
        return f"no similar pictures: plain captions kept{same}"
    plain, found = sum(one.plain_rank == 1 for one in alike), sum(one.rank == 1 for one in alike)
    return (
        f"{len(alike):,} of {len(pictures):,} pictures are like others; plain captions find {plain:,} of them, "
        f"distinctive ones {found:,}{same}"
    )


@app.command(rich_help_panel=PANEL)
def index(
    to: Annotated[
        str, typer.Option(help="The index: a folder, e.g. photos.lance, or http://HOST:19530/COLLECTION (Milvus).")
    ],
    photos: Annotated[list[Path] | None, typer.Argument(help="Pictures, or folders of pictures.")] = None,
    retriever: Annotated[
        Path | None,
        typer.Option(help="A retriever's run or model folder, or a CLIP or SigLIP folder; by default the shipped one."),
    ] = None,
    captions: Annotated[
        Path | None, typer.Option(help="Captions of the pictures to search too, e.g. of 'tellapart caption --out'.")
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Remove these pictures and folders from the index; files stay.")
    ] = False,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Also build approximate search, and measure what it finds.")
    ] = False,
    part: Annotated[str, typer.Option(help="Only this part, e.g. 2/4; other processes do the others.")] = "1/1",
    download: DownloadOption = False,
) -> None:
    """Index photographs for 'tellapart search': new and changed files are encoded, removed files leave the index.

    If interrupted, the same command continues.
    """
    from tellapart.data.parts import Part
    from tellapart.index.photos import check_pictures, open_index

    if not photos and not approximate:
        raise typer.BadParameter("give pictures or folders to index (or --approximate for an index that exists)")
    if delete and (captions is not None or part != "1/1" or not photos):
        raise typer.BadParameter("--delete needs pictures or folders, and cannot be combined with --captions or --part")
    share = Part.parse(part)
    if photos:
        check_pictures(photos, to)
    if download:
        _download(retriever)
    opened = open_index(to, retriever, must_exist=delete or not photos)
    if delete:
        print(f"removed {_photos(opened.delete(photos or []))} from {opened.store.place}")
    elif photos:
        changes = opened.add(photos, captions, share, ProgressLine("indexing", " images").update)
        for reason in changes.skipped:
            print(f"skipped: {reason}", file=sys.stderr)
        if changes.unmatched:
            print(f"{captions}: {changes.unmatched:,} ids are none of these pictures", file=sys.stderr)
        counts = {"added": changes.added, "updated": changes.updated, "removed": changes.removed}
        counts |= {"unchanged": changes.unchanged, "skipped": len(changes.skipped)}
        done = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count) or "nothing to do"
        print(f"{opened.store.place}: {_photos(len(opened))} ({done})")
    if approximate:
        print(_recall(opened.build_approximate()))


@app.command(rich_help_panel=PANEL)
def search(
    place: Annotated[str, typer.Argument(metavar="INDEX", help="A folder or address of 'tellapart index'.")],
    query: Annotated[str, typer.Argument(help="What is to be seen, in a few words; or a picture file.")],
    count: Annotated[int, typer.Option("--count", "-k", min=1, max=10_000, help="Number of photographs.")] = 10,
    path: Annotated[
        str | None, typer.Option(help="Only these files: * is any characters, ? one, e.g. 'holiday/*'.")
    ] = None,
    after: Annotated[str | None, typer.Option(help="Taken on this date or later, e.g. 2024-05 or 2024-05-31.")] = None,
    before: Annotated[str | None, typer.Option(help="Taken before this date.")] = None,
    in_: Annotated[
        str, typer.Option("--in", help="What a sentence is compared with: pictures, captions, or both.")
    ] = "both",
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Faster in very large indexes; prints what share it finds.")
    ] = False,
    retriever: Annotated[
        Path | None, typer.Option(help="Where the retriever of the index is, if it was moved.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the results: JSONL, or a page with the pictures (.html).")
    ] = None,
) -> None:
    """Find photographs by a sentence or a picture: a table on a terminal, JSONL in a pipe, a page with --out."""
    from dataclasses import asdict

    from tellapart.data.images import SUFFIXES
    from tellapart.files import GENERATOR, check_ending, check_output, write_jsonl
    from tellapart.index.listing import parse_date
    from tellapart.index.photos import open_index

    page = out is not None and out.suffix.lower() == ".html"
    if out is not None:
        check_output(out, *([GENERATOR] if page else ["path", "similarity"]), inputs=[query])
        check_ending(out, ".html", ".jsonl")
    asked = Path(query)
    is_picture = asked.suffix.lower() in SUFFIXES or (len(query) < 1000 and asked.is_file())
    opened = open_index(place, retriever, must_exist=True)
    found = opened.search(
        asked if is_picture else query,
        count,
        path=path,
        after=parse_date(after) if after is not None else None,
        before=parse_date(before) if before is not None else None,
        compare=in_,
        approximate=approximate,
    )
    recall = _recall(opened.recall) if approximate and opened.recall is not None else None
    if recall is not None:
        print(recall, file=sys.stderr)
    unknown = [] if is_picture else opened.reader.unknown_words(query)
    if unknown:
        print(f"the retriever does not know: {', '.join(unknown)}", file=sys.stderr)
    if not found:
        print("no photograph passes the filters", file=sys.stderr)
    rows = [asdict(one) for one in found]
    if out is not None and page:
        from tellapart.pages.contact_sheet import write_contact_sheet

        filters = {"path": path, "after": after, "before": before}
        limits = [f"{name} {value}" for name, value in filters.items() if value is not None]
        write_contact_sheet(out, asked if is_picture else query, rows, place, len(opened), limits, recall)
        print(out)
    elif out is not None:
        write_jsonl(out, rows)
        _tell_written(out, len(rows))
    elif sys.stdout.isatty():
        _print_found(found)
    else:
        for row in rows:
            print(json_line(row))


def _print_found(found: Sequence[Found]) -> None:
    """Photographs for people; without captions if none has one."""
    from tellapart.terminal import print_table

    cells = [[f"{one.similarity:.3f}", one.path, one.taken[:10], one.caption.replace("\n", "; ")] for one in found]
    shown = 4 if any(one.caption for one in found) else 3
    print_table(["similarity", "photograph", "taken", "caption"][:shown], [row[:shown] for row in cells])


def _photos(count: int) -> str:
    return f"{count:,} photograph{'' if count == 1 else 's'}"


def _recall(measured: Recall) -> str:
    return (
        f"approximate search finds {100 * measured.recall:.1f} % of the exact first {measured.first} (measured with "
        f"{measured.queries} {measured.of} as queries, when the index held {_photos(measured.photos)})"
    )
