"""Commands of figures and of the page."""

import argparse
from pathlib import Path

from causal_priors.cli.options import Add, scale_of, study_options


def register(add: Add) -> None:
    """Declare the commands."""
    sub = add("figures", _figures, "draw every figure of a finished study, as SVG and PNG")
    study_options(sub)
    sub.add_argument("evaluations", type=Path, nargs="+", help="evaluation and intervention tables of run folders")
    sub.add_argument("--summary", type=Path, required=True, help="the summary table, csv")
    sub.add_argument("--theory", type=Path, required=True, help="the table of theory, parquet")
    sub.add_argument("--margins", type=Path, required=True, help="the chosen margins, json")
    sub.add_argument("--swaps", type=Path, required=True, help="table of bias swaps to write, csv")
    sub.add_argument("--out", type=Path, required=True, help="folder for the figures")

    sub = add("report", _report, "write a finished study as one page of HTML")
    study_options(sub)
    sub.add_argument("--folder", type=Path, help="folder of the study (default: results/{scale})")
    sub.add_argument("--out", type=Path, help="page to write (default: report.html in that folder)")


def _figures(options: argparse.Namespace) -> None:
    from causal_priors.report.draw import figures_stage

    figures_stage(
        scale_of(options),
        options.preregistration,
        options.evaluations,
        options.summary,
        options.theory,
        options.margins,
        options.out,
        options.swaps,
    )


def _report(options: argparse.Namespace) -> None:
    from causal_priors.report.html.page import report_stage

    folder = options.folder or Path("results", options.scale)
    report_stage(scale_of(options), options.preregistration, folder, options.out or folder / "report.html")
