"""Commands of experiment 0006, exploratory: Goat's own tests."""

import argparse
from pathlib import Path

from causal_priors.cli.options import Add, scale_of, study_options


def register(add: Add) -> None:
    """Declare the commands."""
    sub = add("goat", _goat, "train and measure one arm of experiment 0006 (copies, retrieval, sinks)")
    sub.add_argument("arm", help="an arm of the experiment, e.g. goat")
    study_options(sub)
    sub.add_argument("--shards", type=Path, required=True, help="folder of the tokenised corpus")
    sub.add_argument("--tokenizer", type=Path, required=True, help="tokenizer of the shards")
    sub.add_argument("--out", type=Path, required=True, help="table to write, {arm}.parquet")

    sub = add("goat-tables", _tables, "write tables, page and figures of experiment 0006")
    study_options(sub)
    sub.add_argument("tables", type=Path, nargs="+", help="tables of the arms")
    sub.add_argument("--out", type=Path, required=True, help="folder to write to")


def _goat(options: argparse.Namespace) -> None:
    from causal_priors.codedigest import code_digest
    from causal_priors.goat.registered import load_design, probed_arm

    design = load_design(options.preregistration, scale_of(options))
    arm = probed_arm(options.arm, design)
    from causal_priors.goat.probe import probe_stage

    probe_stage(arm, design, options.shards, options.tokenizer, options.out, code_digest("goat", arm))


def _tables(options: argparse.Namespace) -> None:
    from causal_priors.goat.collect import collect_stage
    from causal_priors.goat.draw import draw_stage
    from causal_priors.goat.registered import load_design

    design = load_design(options.preregistration, scale_of(options))
    draw_stage(collect_stage(design, options.tables, options.out), design, options.out)
