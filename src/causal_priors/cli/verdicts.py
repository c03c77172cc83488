"""Commands of verdicts and of tables for readers, and of seals."""

import argparse
from pathlib import Path

from causal_priors.cli.options import Add, scale_of, scale_option, study_options


def register(add: Add) -> None:
    """Declare the commands."""
    sub = add("score", _score, "score the registered tests")
    study_options(sub)
    sub.add_argument("evaluations", type=Path, nargs="+", help="evaluation and intervention tables of run folders")
    sub.add_argument("--experiment", help="score one experiment only, e.g. 0003")
    sub.add_argument("--out", type=Path, required=True, help="folder for verdicts.{json,parquet,csv,md}")

    sub = add("verdicts", _verdicts, "print the last verdict table")
    scale_option(sub)
    sub.add_argument("--folder", type=Path, help="folder that holds verdicts.json (default: results/{scale})")

    sub = add("summary", _summary, "write tables of loss and far mass per run and arm")
    sub.add_argument("evaluations", type=Path, nargs="+", help="evaluation tables")
    sub.add_argument("--csv", type=Path, required=True)
    sub.add_argument("--md", type=Path, required=True)

    sub = add("exploratory", _exploratory, "write analyses that enter no verdict: intervals, flip thresholds, controls")
    study_options(sub)
    sub.add_argument(
        "tables", type=Path, nargs="+", help="evaluation, cap, repair, control and positions tables of run folders"
    )
    sub.add_argument("--out", type=Path, required=True, help="folder for the tables and exploratory.md")

    sub = add("source", _source, "write what came out beside what the source reports")
    study_options(sub)
    sub.add_argument("--verdicts", type=Path, required=True, help="verdicts.json")
    sub.add_argument("--summary", type=Path, required=True, help="the summary table, csv")
    sub.add_argument("--runs", type=Path, required=True, help="folder of the runs, for their step times")
    sub.add_argument("--csv", type=Path, required=True)
    sub.add_argument("--md", type=Path, required=True)

    sub = add("timings", _timings, "print where the minutes of a study went, per rule")
    scale_option(sub)
    sub.add_argument("--folder", type=Path, help="folder of the study (default: results/{scale})")

    sub = add("snapshot", _snapshot, "copy a finished study's tables to results/reference/{scale}")
    scale_option(sub)

    sub = add("seal", _seal, "seal new protocols; with --check, only look whether anything sealed has changed")
    sub.add_argument("--preregistration", type=Path, default=Path("preregistration"))
    sub.add_argument("--check", action="store_true")
    sub.add_argument("--exploratory", action="store_true", help="seal new protocols of the folder exploratory/ instead")
    sub.add_argument("--date", help="date of the seal, YYYY-MM-DD")
    sub.add_argument("--results", type=Path, default=Path("results"), help="folder that must hold no trained run yet")


def _score(options: argparse.Namespace) -> None:
    from causal_priors.arms import ARMS
    from causal_priors.prereg.scoring import score_stage

    score_stage(
        Path(options.preregistration),
        scale_of(options),
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


def _exploratory(options: argparse.Namespace) -> None:
    from causal_priors.exploratory.stage import exploratory_stage

    exploratory_stage(Path(options.preregistration), scale_of(options), options.tables, options.out)


def _source(options: argparse.Namespace) -> None:
    from causal_priors.report.source import source_stage

    source_stage(
        options.verdicts,
        options.summary,
        options.preregistration,
        scale_of(options),
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

    from causal_priors.prereg.exploratory import check_exploratory, seal_exploratory
    from causal_priors.prereg.ledger import check_date
    from causal_priors.prereg.seal import check_seals, seal

    if options.date is not None:
        check_date(options.date, options.preregistration, "--date")
    if options.check:
        for protocol, digest in check_seals(options.preregistration).items():
            print(f"{protocol}  {digest}")
        for protocol, digest in check_exploratory(options.preregistration).items():
            print(f"{protocol}  {digest}  exploratory")
        return
    date = options.date or datetime.now(UTC).date().isoformat()
    for path in (seal_exploratory if options.exploratory else seal)(options.preregistration, date, options.results):
        print(path)
