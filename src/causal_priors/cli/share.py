"""Commands that hand results on: a checkpoint's folder, TensorBoard events, an RO-Crate; and shell completion."""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from causal_priors.cli.options import Add, results_option, scale_option, study_of, study_options

SHELLS = ("bash", "zsh", "tcsh")


def register(add: Add) -> None:
    """Declare the commands."""
    sub = add("export", _export, "copy a trained run to a folder that loads anywhere: causal_priors.load_run(folder)")
    sub.add_argument("run", help="a finished run, e.g. S-log-L64-s0, or its folder")
    scale_option(sub)
    results_option(sub)
    sub.add_argument("--arm", help="the Python file of an arm of one's own, where the run has one (it is executed)")
    sub.add_argument("--out", type=Path, required=True, help="folder")

    sub = add("tensorboard", _tensorboard, "write loss curves and exponents of finished runs as TensorBoard events")
    sub.add_argument("runs", nargs="*", metavar="RUN", help="finished runs, or their folders (default: all)")
    scale_option(sub)
    results_option(sub)
    sub.add_argument("--out", type=Path, required=True, help="folder, for tensorboard --logdir")

    sub = add("crate", _crate, "write the provenance of a finished study as an RO-Crate (ro-crate-metadata.json)")
    study_options(sub)
    results_option(sub)

    sub = add("completion", _completion, "print the shell's completion of these commands")
    sub.add_argument("shell", choices=SHELLS)


def _run_folder(name: str, options: argparse.Namespace) -> Path:
    """Return the folder of a finished run, given by name or as a folder. Raises `UserError`."""
    from causal_priors.errors import refuse

    for folder in (Path(name), options.results / options.scale / "runs" / name):
        # Unlike `Path.is_file`, it also answers for a name that is too long for a file.
        if os.path.isfile(folder / "run.json"):  # noqa: PTH113
            return folder
    remedy = f"python -m causal_priors status --scale {options.scale} lists the runs"
    raise refuse(f"is no finished run of scale {options.scale}", value=name, remedy=remedy)


def _export(options: argparse.Namespace) -> None:
    from causal_priors.loading import export_run

    folder = _run_folder(options.run, options)
    for path in export_run(folder, options.out, arm=options.arm):
        print(path)


def _tensorboard(options: argparse.Namespace) -> None:
    from causal_priors.report.events import export_events

    names = options.runs or [
        path.parent.name for path in sorted((options.results / options.scale / "runs").glob("*/run.json"))
    ]
    for path in export_events([_run_folder(name, options) for name in names], options.out):
        print(path)


def _crate(options: argparse.Namespace) -> None:
    from causal_priors.report.crate import METADATA, crate_stage

    study = study_of(options)
    crate_stage(study)
    print(study.folder / METADATA)


def _completion(options: argparse.Namespace) -> None:
    from causal_priors.cli import parser
    from causal_priors.errors import refuse

    try:
        import shtab
    except ImportError:
        remedy = "python -m pip install shtab"
        raise refuse("shtab, which writes completions, is not installed", remedy=remedy) from None
    # Of the installed script: a shell completes one word, which `python -m causal_priors` is not.
    top = parser("causal-priors")
    for action in _actions(top):
        if action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(top, shell=options.shell))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from _actions(sub)
