"""`python -m causal_priors STAGE`: one subcommand per stage of the pipeline.

Exit codes: 0 done, 2 a mistake or a fault that one line on stderr explains, 128 + n stopped by signal n (work saved).
Each stage is imported only when it is called, so `--help` and the stages without tensors never import torch.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from causal_priors.errors import UserError

if TYPE_CHECKING:
    from causal_priors.scale import Scale

Command = Callable[[argparse.Namespace], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit code."""
    options = parser().parse_args(arguments)
    if options.log is None:
        return _run(options)
    try:
        terminal = _redirect(options.log)
    except OSError as error:
        print(f"error: {options.log}: cannot be written ({error.strerror})", file=sys.stderr)
        return 2
    with terminal:
        return _run(options, terminal)


def _run(options: argparse.Namespace, terminal: TextIO | None = None) -> int:
    command: Command = options.command
    try:
        command(options)
    except UserError as error:
        for stream in filter(None, (sys.stderr, terminal)):
            print(f"error: {error}", file=stream, flush=True)
        return 2
    except BrokenPipeError:
        # The reader of a pipe has seen enough (`... | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _redirect(log: Path) -> TextIO:
    """Send this process's stderr to a new file `log`; return what was the terminal, for the one line of a failure."""
    terminal = os.fdopen(os.dup(2), "w", encoding="utf-8")
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 2)
    return terminal


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = argparse.ArgumentParser(prog="python -m causal_priors", description="One subcommand per stage.")
    top.add_argument(
        "--log", type=Path, help="file for messages and progress; the line of a failure is printed as well"
    )
    commands = top.add_subparsers(title="stages", metavar="STAGE", required=True)

    def add(name: str, command: Command, help_text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}.")
        sub.set_defaults(command=command)
        return sub

    _add_data(add)
    _add_runs(add)
    _add_verdicts(add)
    sub = add("bench", _bench, "measure speed and memory, as ratios within one run")
    sub.add_argument("what", choices=["transport", "attention"])
    sub.add_argument("rest", nargs=argparse.REMAINDER, help="options of the benchmark")
    return top


def _add_data(add: Callable[..., argparse.ArgumentParser]) -> None:
    sub = add("corpus", _corpus, "fetch the default corpus, verified by sha256")
    sub.add_argument("card", type=Path, help="corpus card to write; the texts lie beside it")
    sub.add_argument("--archives", default="", help="folder that holds the archives, where there is no network")

    sub = add("index", _index, "check a corpus, and split it into training and held-out documents")
    _texts(sub)
    sub.add_argument("--card", type=Path, help="card of the default corpus, to check the texts against")
    _packed(sub)
    sub.add_argument("--out", type=Path, required=True)

    sub = add("tokenizer", _tokenizer, "train the byte-level BPE on the training split, or fetch GPT-2's")
    _texts(sub)
    _scale(sub)
    sub.add_argument("--index", type=Path, required=True)
    sub.add_argument("--cache", type=Path, required=True, help="folder for downloads")
    sub.add_argument("--archives", default="", help="folder that holds the archives, where there is no network")
    sub.add_argument("--out", type=Path, required=True)

    sub = add("shards", _shards, "tokenise the corpus into training and held-out shards")
    _texts(sub)
    _scale(sub)
    sub.add_argument("--index", type=Path, required=True)
    sub.add_argument("--tokenizer", type=Path, required=True)
    sub.add_argument("--allow-repeats", action="store_true", help="accept a corpus that training repeats often")
    _packed(sub)
    sub.add_argument("--threads", type=int, default=0, help="tokenising threads; 0: one a core")
    sub.add_argument("--out", type=Path, required=True, help="folder")

    sub = add("margins", _margins, "choose the margins of experiment 0005 from theory")
    _scale(sub)
    sub.add_argument("--out", type=Path, required=True)

    sub = add("theory", _theory, "write the table of numbers that need no training, beside their limits")
    _scale(sub)
    sub.add_argument("--parquet", type=Path, required=True)
    sub.add_argument("--csv", type=Path, required=True)


def _add_runs(add: Callable[..., argparse.ArgumentParser]) -> None:
    def add_for_run(name: str, command: Command, help_text: str) -> argparse.ArgumentParser:
        sub = add(name, command, help_text)
        sub.add_argument("run", help="a registered run, e.g. S-rope-L64-s0, or one of the arm that --arm gives")
        _study(sub)
        sub.set_defaults(command=_explained(command))
        sub.add_argument("--arm", help="an arm of one's own: a Python file, or a composition as JSON (exploratory)")
        sub.add_argument("--shards", type=Path, required=True, help="folder of the tokenised corpus")
        return sub

    sub = add_for_run("train", _train, "train one run, or continue it")
    sub.add_argument("--margins", type=Path, help="the margins file, for the arms that train with one")
    sub.add_argument("--out", type=Path, required=True, help="folder of the run")

    sub = add_for_run("evaluate", _evaluate, "evaluate one checkpoint at L, 2L, 4L and 8L")
    sub.add_argument("--yarn-ramps", nargs="+", choices=["paper", "code"], default=["paper"], metavar="RAMP")
    sub.add_argument("--folder", type=Path, required=True, help="folder of the run")
    _packed(sub)
    sub.add_argument("--out", type=Path, required=True)

    sub = add_for_run("intervene", _intervene, "change a checkpoint's log-prior beyond L; measure before and after")
    sub.add_argument("edit", choices=["cap", "repair"])
    sub.add_argument("--folder", type=Path, required=True, help="folder of the run")
    _packed(sub)
    sub.add_argument("--out", type=Path, required=True)


def _add_verdicts(add: Callable[..., argparse.ArgumentParser]) -> None:
    sub = add("score", _score, "score the registered tests")
    _study(sub)
    sub.add_argument("evaluations", type=Path, nargs="+", help="evaluation and intervention tables of run folders")
    sub.add_argument("--experiment", help="score one experiment only, e.g. 0003")
    sub.add_argument("--out", type=Path, required=True, help="folder for verdicts.{json,parquet,csv,md}")

    sub = add("verdicts", _verdicts, "print the last verdict table")
    _scale(sub)
    sub.add_argument("--folder", type=Path, help="folder that holds verdicts.json (default: results/{scale})")

    sub = add("summary", _summary, "write tables of loss and far mass per run and arm")
    sub.add_argument("evaluations", type=Path, nargs="+", help="evaluation tables")
    sub.add_argument("--csv", type=Path, required=True)
    sub.add_argument("--md", type=Path, required=True)

    sub = add("source", _source, "write what came out beside what the source reports")
    _study(sub)
    sub.add_argument("--verdicts", type=Path, required=True, help="verdicts.json")
    sub.add_argument("--summary", type=Path, required=True, help="the summary table, csv")
    sub.add_argument("--runs", type=Path, required=True, help="folder of the runs, for their step times")
    sub.add_argument("--csv", type=Path, required=True)
    sub.add_argument("--md", type=Path, required=True)

    sub = add("timings", _timings, "print where the minutes of a study went, per rule")
    _scale(sub)
    sub.add_argument("--folder", type=Path, help="folder of the study (default: results/{scale})")

    sub = add("snapshot", _snapshot, "copy a finished study's tables to results/reference/{scale}")
    _scale(sub)

    sub = add("seal", _seal, "seal new protocols; with --check, only look whether anything sealed has changed")
    sub.add_argument("--preregistration", type=Path, default=Path("preregistration"))
    sub.add_argument("--check", action="store_true")
    sub.add_argument("--date", help="date of the seal, YYYY-MM-DD")
    sub.add_argument("--results", type=Path, default=Path("results"), help="folder that must hold no trained run yet")


def _texts(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--texts", type=Path, required=True, help="folder of .txt, .jsonl(.gz) or .parquet files")
    sub.add_argument("--text-column", default="text", help="column or field that holds the text")


def _scale(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--scale", default="micro", help="nano, micro, mini or paper")


def _study(sub: argparse.ArgumentParser) -> None:
    _scale(sub)
    sub.add_argument("--preregistration", default="preregistration", help="folder of the sealed protocols")


def _packed(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--packed", action="store_true", help="allow evaluation blocks across document borders")


def _load_scale(options: argparse.Namespace) -> "Scale":
    from causal_priors.config import load_scale, scale_file

    return load_scale(scale_file(options.scale))


def _run_of(options: argparse.Namespace, stage: str) -> dict[str, Any]:
    """Return what every stage of a run is given: the run, its scale and arm, and the digest of the code."""
    from causal_priors.codedigest import code_digest
    from causal_priors.study import find_run

    scale = _load_scale(options)
    run, arm = find_run(options.run, scale, options.preregistration, options.arm)
    return {"run": run, "scale": scale, "arm": arm, "code": code_digest(stage, arm)}


def _explained(command: Command) -> Command:
    """The same command, with one line for what the code of an arm of one's own raises."""

    def run(options: argparse.Namespace) -> None:
        if options.arm is None:
            return command(options)
        from causal_priors.own_arms import explained

        with explained(options.arm):
            return command(options)

    return run


def _corpus(options: argparse.Namespace) -> None:
    from causal_priors.data.corpus import corpus_stage

    corpus_stage(options.card, options.archives)


def _index(options: argparse.Namespace) -> None:
    from causal_priors.data.index import index_stage

    index_stage(
        options.texts, options.out, column=options.text_column, card=options.card, allow_packed_blocks=options.packed
    )


def _tokenizer(options: argparse.Namespace) -> None:
    from causal_priors.data.tokenizer import tokenizer_stage

    tokenizer_stage(
        options.texts,
        options.index,
        _load_scale(options),
        options.out,
        column=options.text_column,
        cache=options.cache,
        archives=options.archives,
    )


def _shards(options: argparse.Namespace) -> None:
    from causal_priors.data.tokenise import shards_stage

    shards_stage(
        options.texts,
        options.index,
        options.tokenizer,
        _load_scale(options),
        options.out,
        column=options.text_column,
        allow_repeats=options.allow_repeats,
        allow_packed_blocks=options.packed,
        threads=options.threads,
    )


def _margins(options: argparse.Namespace) -> None:
    from causal_priors.theory.margin import margin_stage

    margin_stage(_load_scale(options), options.out)


def _theory(options: argparse.Namespace) -> None:
    from causal_priors.theory.stage import theory_stage

    theory_stage(_load_scale(options), options.parquet, options.csv)


def _train(options: argparse.Namespace) -> None:
    given = _run_of(options, "train")
    from causal_priors.train.loop import train_stage

    train_stage(**given, shards=options.shards, out=options.out, margins=options.margins)


def _evaluate(options: argparse.Namespace) -> None:
    given = _run_of(options, "evaluate")
    from causal_priors.evaluate import evaluate_stage

    evaluate_stage(
        **given,
        folder=options.folder,
        shards=options.shards,
        out=options.out,
        allow_packed=options.packed,
        yarn_ramps=tuple(options.yarn_ramps),
    )


def _intervene(options: argparse.Namespace) -> None:
    given = _run_of(options, "intervene")
    from causal_priors.intervene import intervene_stage

    intervene_stage(
        **given,
        edit=options.edit,
        folder=options.folder,
        shards=options.shards,
        out=options.out,
        allow_packed=options.packed,
    )


def _score(options: argparse.Namespace) -> None:
    from causal_priors.arms import ARMS
    from causal_priors.prereg.scoring import score_stage

    score_stage(
        Path(options.preregistration),
        _load_scale(options),
        options.evaluations,
        ARMS,
        options.out,
        experiment=options.experiment,
    )


def _verdicts(options: argparse.Namespace) -> None:
    from causal_priors.prereg.verdict_tables import plain_text, read_verdicts

    print(plain_text(read_verdicts((options.folder or Path("results", options.scale)) / "verdicts.json")))


def _summary(options: argparse.Namespace) -> None:
    from causal_priors.report.tables import summary_stage

    summary_stage(options.evaluations, options.csv, options.md)


def _source(options: argparse.Namespace) -> None:
    from causal_priors.report.source import source_stage

    source_stage(
        options.verdicts,
        options.summary,
        options.preregistration,
        _load_scale(options),
        options.runs,
        options.csv,
        options.md,
    )


def _timings(options: argparse.Namespace) -> None:
    from causal_priors.report.timings import timing_table

    print(timing_table(options.folder or Path("results", options.scale)), end="")


def _snapshot(options: argparse.Namespace) -> None:
    from causal_priors.report.snapshot import snapshot

    target = Path("results", "reference", options.scale)
    for name in snapshot(Path("results", options.scale), target):
        print(target / name)


def _seal(options: argparse.Namespace) -> None:
    from datetime import UTC, datetime

    from causal_priors.prereg.seal import check_seals, seal

    if options.check:
        for protocol, digest in check_seals(options.preregistration).items():
            print(f"{protocol}  {digest}")
        return
    date = options.date or datetime.now(UTC).date().isoformat()
    for path in seal(options.preregistration, date, options.results):
        print(path)


def _bench(options: argparse.Namespace) -> None:
    from importlib import import_module

    import_module(f"causal_priors.bench.{options.what}").main(options.rest)
