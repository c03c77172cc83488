"""Commands of one run: train it, evaluate it, change its log-prior."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from causal_priors.cli.belongs import check_corpus_of_run, check_scale_of_margins
from causal_priors.cli.options import Add, Command, packed_option, scale_of, study_options

DEVICES = ("auto", "cpu", "cuda")


def register(add: Add) -> None:
    """Declare the commands."""

    def add_for_run(name: str, command: Command, help_text: str) -> argparse.ArgumentParser:
        sub = add(name, command, help_text)
        sub.add_argument("run", help="a registered run, e.g. S-rope-L64-s0, or one of the arm that --arm gives")
        study_options(sub)
        sub.set_defaults(command=_explained(command))
        sub.add_argument("--arm", help="an arm of one's own: a Python file, or a composition as JSON (exploratory)")
        sub.add_argument("--shards", type=Path, required=True, help="folder of the tokenised corpus")
        sub.add_argument(
            "--device", choices=DEVICES, default="auto", help="auto: a GPU at scales for one, if there is one"
        )
        return sub

    sub = add_for_run("train", _train, "train one run, or continue it")
    sub.add_argument("--margins", type=Path, help="the margins file, for the arms that train with one")
    sub.add_argument(
        "--micro-batch", type=int, default=0, help="most tokens of a forward pass (default: 0, a whole step)"
    )
    sub.add_argument("--processes", type=int, default=1, help="train in so many processes, a GPU each, by torchrun")
    sub.add_argument("--out", type=Path, required=True, help="folder of the run")

    sub = add_for_run("evaluate", _evaluate, "evaluate one checkpoint at L, 2L, 4L and 8L")
    sub.add_argument("--yarn-ramps", nargs="+", choices=["paper", "code"], default=["paper"], metavar="RAMP")
    sub.add_argument("--folder", type=Path, required=True, help="folder of the run")
    packed_option(sub)
    sub.add_argument("--out", type=Path, required=True)

    sub = add_for_run("intervene", _intervene, "change a checkpoint's log-prior beyond L; measure before and after")
    sub.add_argument("edit", choices=["cap", "repair"])
    sub.add_argument("--folder", type=Path, required=True, help="folder of the run")
    packed_option(sub)
    sub.add_argument("--out", type=Path, required=True)

    sub = add_for_run("control", _control, "measure negative controls of the bias swap on an arm without a log-prior")
    sub.add_argument("--folder", type=Path, required=True, help="folder of the run")
    packed_option(sub)
    sub.add_argument("--out", type=Path, required=True)


def _run_of(options: argparse.Namespace, stage: str) -> dict[str, Any]:
    """Return what every stage of a run is given: the run, its scale and arm, the digest of the code, and the device."""
    from causal_priors.codedigest import code_digest
    from causal_priors.devices import pick
    from causal_priors.study import find_run

    scale = scale_of(options)
    run, arm = find_run(options.run, scale, options.preregistration, options.arm)
    return {
        "run": run,
        "scale": scale,
        "arm": arm,
        "code": code_digest(stage, arm),
        "device": pick(options.device, scale),
    }


def _explained(command: Command) -> Command:
    """The same command, with one line for what the code of an arm of one's own raises."""

    def run(options: argparse.Namespace) -> None:
        if options.arm is None:
            return command(options)
        from causal_priors.own_arms import explained

        with explained(options.arm):
            return command(options)

    return run


def _train(options: argparse.Namespace) -> None:
    from causal_priors.devices import become_team, end_with_launcher

    if "RANK" in os.environ:
        end_with_launcher()
    elif options.processes > 1:
        become_team(options.processes, sys.argv[1:])
    given = _run_of(options, "train")
    if options.margins:
        check_scale_of_margins(options.margins, given["scale"])
    from causal_priors.train.loop import train_stage

    micro_batch = options.micro_batch or None
    train_stage(**given, shards=options.shards, out=options.out, margins=options.margins, micro_batch=micro_batch)


def _evaluate(options: argparse.Namespace) -> None:
    given = _run_of(options, "evaluate")
    check_corpus_of_run(options.folder, options.shards)
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
    check_corpus_of_run(options.folder, options.shards)
    from causal_priors.intervene import intervene_stage

    intervene_stage(
        **given,
        edit=options.edit,
        folder=options.folder,
        shards=options.shards,
        out=options.out,
        allow_packed=options.packed,
    )


def _control(options: argparse.Namespace) -> None:
    given = _run_of(options, "control")
    check_corpus_of_run(options.folder, options.shards)
    from causal_priors.control import control_stage

    control_stage(**given, folder=options.folder, shards=options.shards, out=options.out, allow_packed=options.packed)
