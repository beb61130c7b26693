"""Measuring and comparing: `evaluate` and its relatives, `self-retrieval`, `retrieval-entropy`, `compare`, `judge`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tellapart.cli.base import (
    LOOPBACK,
    PORT,
    HostOption,
    JudgeOption,
    LimitOption,
    ListenerOption,
    PortOption,
    TokenOption,
    app,
)
from tellapart.errors import TellapartError

if TYPE_CHECKING:
    from tellapart.run import Run

PANEL = "Measuring"  # in the help


def _open_runs(named: list[str], by_folder: bool = False) -> dict[str, Run]:
    """Open runs given as LABEL=RUN; with `by_folder` a run without a label is named after its folder."""
    from tellapart.run import open_run

    opened: dict[str, Run] = {}
    for one in named:
        label, equals, folder = one.partition("=")
        if by_folder and (not equals or Path(one).exists()):
            label, folder = Path(one).name, one
        elif not by_folder and not (equals and label):
            raise TellapartError(f"'{one}': name each run as LABEL=FOLDER, e.g. MLE=runs/scenes-mle-1a2b3c4d")
        if label in opened:
            raise TellapartError(f"'{one}': '{label}' names two runs; write each as LABEL=RUN, with a label of its own")
        opened[label] = open_run(folder)
    return opened


@app.command(rich_help_panel=PANEL)
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


@app.command("evaluate-diversity", rich_help_panel=PANEL)
def evaluate_diversity(
    runs: Annotated[list[str], typer.Argument(help="Run folders of captioners, each RUN or LABEL=RUN.")],
    captions_per_image: Annotated[int, typer.Option(min=2, help="n: captions of each image, in each way.")] = 20,
    best: Annotated[int, typer.Option(min=2, help="How many of them consensus re-ranking keeps.")] = 5,
    temperatures: Annotated[str, typer.Option(help="Temperatures of the samples, the points of the curve.")] = (
        "0.4,0.6,0.8,1,1.2"
    ),
    control: Annotated[
        str | None, typer.Option(help="Label of the run that the others are compared with; by default the first.")
    ] = None,
    split: Annotated[str, typer.Option(help="The images to measure on.")] = "test",
    images: Annotated[int | None, typer.Option(min=2, help="Only the first so many images; by default all.")] = None,
    meteor: Annotated[bool, typer.Option("--meteor/--no-meteor", help="Also METEOR of every caption (slow).")] = True,
    out: Annotated[Path, typer.Option(help="Folder for diversity.json and diversity.html.")] = Path("diversity"),
) -> None:
    """Measure n captions per image: beam, diverse beam and samples, and diversity where runs have equal quality.

    The same command continues after an interruption.
    """
    from tellapart.evaluation.many_captions import METRICS, ManyCaptionsScorer, many_captions
    from tellapart.pages.diversity import check_diversity_folder, print_diversity, write_diversity

    check_diversity_folder(out)
    try:
        heats = [float(one) for one in temperatures.split(",")]
    except ValueError:
        raise TellapartError(f"--temperatures '{temperatures}': give numbers with commas, e.g. 0.5,1,1.5") from None
    opened = _open_runs(runs, by_folder=True)
    if control is not None and control not in opened:
        raise TellapartError(f"--control '{control}': no run has this label; they are {', '.join(opened)}")
    metrics = METRICS if meteor else [name for name in METRICS if name != "meteor"]
    scorer = ManyCaptionsScorer(split, images, captions_per_image, best, heats, metrics)
    found = many_captions(opened, scorer)
    control = control or next(iter(opened))
    print_diversity(found, control)
    print(f"\n{write_diversity(found, control, scorer, out)}")


@app.command("evaluate-retrieval", rich_help_panel=PANEL)
def evaluate_retrieval(
    run: Annotated[Path, typer.Argument(help="A retriever's run folder.")],
    split: Annotated[str, typer.Option(help="The images to measure on.")] = "test",
    fold_size: Annotated[
        int | None,
        typer.Option(min=1, help="Also the mean over folds of this many images (COCO's 1K: 1000)."),
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
    ensemble: Annotated[
        list[Path] | None, typer.Option(help="Another run to average similarities with; may be repeated. Needs --out.")
    ] = None,
) -> None:
    """Measure image-text retrieval in both directions: R@1, R@5, R@10, ranks and R@sum."""
    from tellapart.evaluation import evaluate_retrieval as retrieval
    from tellapart.pages.gallery import check_gallery, write_gallery
    from tellapart.pages.tables import print_retrieval, print_retrieval_differences
    from tellapart.run import open_run

    opened = open_run(run)
    if gallery:
        check_gallery(out or run, split)
    others = [open_run(other) for other in ensemble or []]
    measured = retrieval.evaluate_retrieval(opened, split, fold_size, out, exact or None, others)
    print_retrieval(measured)
    if against is not None:
        control = retrieval.evaluate_retrieval(open_run(against), split, fold_size, exact=exact or None)
        differences = retrieval.compare_retrieval(measured, control, opened.data)
        print_retrieval_differences(differences, run.name, against.name)
    print(f"\n{write_gallery(opened, measured) if gallery else measured.folder}")


@app.command("self-retrieval", rich_help_panel=PANEL)
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
    from tellapart.data.parts import Part
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


@app.command("retrieval-entropy", rich_help_panel=PANEL)
def retrieval_entropy(
    data: Annotated[str, typer.Argument(help="'scenes', a folder of images, or a data set (docs/data.md).")],
    retriever: Annotated[
        list[Path] | None,
        typer.Option(
            help="A retriever's run or model folder, or a folder of CLIP or SigLIP; by default shipped/retriever. Give "
            "two runs, trained with data.half=1 and data.half=2, so that each judges the captions that it was not "
            "trained on."
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="The captions, and the images they are compared with; by default train, or test of data without it."
        ),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="τ: similarities are divided by it; by default 0.01, as CLIP's.")
    ] = None,
    pool: Annotated[
        int | None, typer.Option(min=1, help="Compare with so many images, drawn from the split; by default all.")
    ] = None,
    captions: Annotated[
        Path | None,
        typer.Option(
            help="How generic are these? A text file with a caption on each line, or JSON, JSONL, CSV. The images need "
            "no captions then."
        ),
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="How features are kept: float16 or int8; by default as in the retriever's run.")
    ] = None,
    show: Annotated[int, typer.Option(min=1, max=1000, help="Number of captions to show from each end.")] = 10,
    out: Annotated[Path | None, typer.Option(help="File for all captions with their entropy (JSONL).")] = None,
    gallery: Annotated[Path | None, typer.Option(help="Page with the pictures to write, e.g. generic.html.")] = None,
) -> None:
    """Find the most generic and the most specific captions: how many images fit a caption, by a retriever.

    The same command continues after an interruption.
    """
    from tellapart.evaluation.caption_files import read_sentences
    from tellapart.evaluation.entropy_sums import TEMPERATURE
    from tellapart.evaluation.generic_captions import (
        caption_rows,
        check_rows,
        describe_judges,
        describe_truth,
        sentence_rows,
    )
    from tellapart.evaluation.retrieval_entropy import data_for
    from tellapart.evaluation.retrieval_entropy import retrieval_entropy as measure
    from tellapart.evaluation.true_listener import open_true_listener
    from tellapart.files import write_jsonl
    from tellapart.pages.generic import check_page, print_generic, write_page
    from tellapart.progress import show_progress

    if out is not None:
        check_rows(out, [data, captions or data])
    if gallery is not None:
        check_page(gallery)
    if store not in ("float16", "int8", None):
        raise TellapartError(f"--store: '{store}' is not a way to keep features; give float16 or int8")
    retrievers = retriever or [Path("shipped/retriever")]
    sentences = None if captions is None else read_sentences(captions)
    settings = data_for(data, retrievers[0], store)
    found = measure(
        retrievers,
        settings,
        split,
        temperature=TEMPERATURE if temperature is None else temperature,
        pool=pool,
        on_progress=show_progress(),
        captioned=sentences is None,
    )
    rows = caption_rows(found) if sentences is None else sentence_rows(found, sentences)
    print_generic(rows, show, found.images)
    print(f"\n{describe_judges(found)}")
    judge = found.judges[0]
    if (listener := open_true_listener(settings, judge.prepared.dataset, judge.split)) is not None:
        print(describe_truth(found, listener))
    if out is not None:
        write_jsonl(out, rows)
        print(out)
    if gallery is not None:
        print(write_page(gallery, found, rows, show))


@app.command(rich_help_panel=PANEL)
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

    check_report_folder(out)
    opened = _open_runs(runs)
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


@app.command(rich_help_panel=PANEL)
def judge(
    a: Annotated[str, typer.Argument(help="Captions of one system: a file (JSONL, JSON, CSV, …), or NAME=FILE.")],
    b: Annotated[str, typer.Argument(help="Captions of the other system.")],
    images: Annotated[str, typer.Option(help="The pictures: a folder, a data set (docs/data.md), or 'scenes'.")],
    out: Annotated[Path, typer.Option(help="File for the answers (JSONL). The same command continues with it.")],
    count: Annotated[
        int | None, typer.Option(min=1, help="Judge only so many pictures, drawn at random; by default all.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw, the sides and each rater's order.")] = 0,
    rater: Annotated[
        list[str] | None,
        typer.Option(help="Name of a rater; repeat. Only they may judge, each by an own link. By default anybody."),
    ] = None,
    host: HostOption = LOOPBACK,
    port: PortOption = PORT,
    token: TokenOption = None,
) -> None:
    """Let people compare two files of captions in the browser, blind; 'tellapart judge-report' gives the figures.

    Every answer is on the disk before it is confirmed.
    """
    from tellapart.judging.serve import serve_trial
    from tellapart.progress import ProgressLine

    serve_trial(
        [a, b],
        images,
        out,
        count=count,
        seed=seed,
        raters=rater or [],
        host=host,
        port=port,
        token=token,
        on_progress=ProgressLine("opening", " pictures").update,
    )


@app.command("judge-report", rich_help_panel=PANEL)
def judge_report(
    answers: Annotated[Path, typer.Argument(help="The file of answers of 'tellapart judge'; it may still grow.")],
    images: Annotated[
        str | None, typer.Option(help="The pictures, to show them on the page: as for 'tellapart judge'.")
    ] = None,
    out: Annotated[
        list[Path] | None, typer.Option(help="File for the figures (.json) or a page (.html); repeat for both.")
    ] = None,
) -> None:
    """Who won, by people: win, tie and lose rates with 95 % intervals, sign test, Fleiss' kappa."""
    from tellapart.judging import report

    for path in out or []:
        report.check_judge_report(path, inputs=[answers])
    found = report.judge_report(answers)
    dataset = None
    if images is not None:
        from tellapart.data.prepare import open_dataset
        from tellapart.data.settings import DataSettings

        dataset = open_dataset(DataSettings(source=images))
    report.print_judge_report(found)
    for path in out or []:
        report.write_judge_report(found, answers, path, dataset)
        print(path)
