"""What one call of the pipeline is about: config, scale, sealed protocols and arms, and where each artefact lies.

The Snakefile and the command line ask here; nothing else knows the layout of `results/`. Imports no torch.
"""

import difflib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from causal_priors.arms import ARMS, Arm
from causal_priors.config import Config, load_config, load_scale, scale_file
from causal_priors.errors import refuse
from causal_priors.own_arms import OwnArm, own_arm, own_arms
from causal_priors.prereg.protocol import load_protocols, registered_interventions, registered_runs
from causal_priors.prereg.seal import check_seals
from causal_priors.prereg.terms import Intervention, Protocol
from causal_priors.runs import EDITS, Run, parse_run
from causal_priors.scale import Scale

# What an arm of one's own trains by itself: size, multiple of its training length, seed.
OWN_RUNS = (("S", 1, 0), ("S", 1, 1))
# Arms without a log-prior on which the negative controls of the bias swap are measured, at this size.
CONTROL_ARMS, CONTROL_SIZE = ("nope", "rope"), "S"


@dataclass(frozen=True)
class Study:
    """The registered study at one scale, narrowed to the arms that are implemented, and arms of one's own beside it.

    `runs`, `interventions` and `evaluation_files` are the registered ones only: what `own` holds reaches no verdict.
    """

    config: Config
    scale: Scale
    protocols: tuple[Protocol, ...]
    arms: Mapping[str, Arm]
    own: Mapping[str, OwnArm]

    @property
    def folder(self) -> Path:
        """`results/{scale}`."""
        return Path(self.config.results) / self.scale.name

    @property
    def experiments(self) -> tuple[str, ...]:
        """Ids of the registered experiments."""
        return tuple(protocol.id for protocol in self.protocols)

    @cached_property
    def registered(self) -> dict[Run, tuple[str, ...]]:
        """Every registered run, with the experiments that use it."""
        return registered_runs(self.protocols)

    def runs(self, experiment: str | None = None) -> list[Run]:
        """Registered runs whose arm is implemented, of one experiment or of all."""
        return [
            run
            for run, users in self.registered.items()
            if run.arm in self.arms and (experiment is None or experiment in users)
        ]

    def interventions(self, experiment: str | None = None) -> list[Intervention]:
        """Interventions whose arm is implemented, of one experiment or of all."""
        chosen = [protocol for protocol in self.protocols if experiment in (None, protocol.id)]
        return [item for item in registered_interventions(chosen) if item.run.arm in self.arms]

    def run(self, name: str) -> Run:
        """Return the run called `name`: registered and implemented, or any of one's own. Raises `UserError`."""
        return _find(name, self.scale, self.registered, self.arms, self.own)

    def check_target(self, target: str | Path) -> None:
        """Refuse a file of a run that is not registered, an edit of an arm without a log-prior, a control of one with.

        Raises `UserError`.
        """
        folder, path = self.folder / "runs", Path(target)
        if not path.is_relative_to(folder):
            return
        run = self.run(path.relative_to(folder).parts[0])
        without = self.arm(run).log_prior is None
        if path.stem in EDITS and without:
            raise refuse(f"cannot be made: arm {run.arm} has no log-prior to {path.stem}", value=str(target))
        if path.stem == "control" and not without:
            problem = f"cannot be made: the controls are for arms without a log-prior, and {run.arm} has one"
            raise refuse(problem, value=str(target))

    def arm(self, run: Run) -> Arm:
        """Return the table row of a run's arm."""
        return self.own[run.arm].arm if run.arm in self.own else self.arms[run.arm]

    def own_argument(self, run: Run) -> str:
        """What hands the run's arm to a stage (`--arm`) where it is one's own, else nothing."""
        return self.own[run.arm].argument if run.arm in self.own else ""

    def own_files(self) -> list[Path]:
        """Evaluation and intervention tables of one's own arms."""
        found = []
        for key, own in self.own.items():
            names = ["evaluation", *(EDITS if own.arm.log_prior is not None else ())]
            for size, multiple, seed in OWN_RUNS:
                folder = self.run_folder(Run(size, key, multiple, seed))
                found += [folder / f"{name}.parquet" for name in names]
        return found

    def run_folder(self, run: Run) -> Path:
        """Folder of a run."""
        return self.folder / "runs" / run.name(self.scale)

    def evaluation_files(self, experiment: str | None = None) -> list[Path]:
        """Evaluation and intervention tables that score `experiment`, or all."""
        evaluations = [self.run_folder(run) / "evaluation.parquet" for run in self.runs(experiment)]
        edits = [self.run_folder(item.run) / f"{item.edit}.parquet" for item in self.interventions(experiment)]
        return [*evaluations, *edits]

    def control_runs(self) -> list[Run]:
        """Runs on which the negative controls of the bias swap are measured."""
        return [run for run in self.runs() if run.arm in CONTROL_ARMS and run.size == CONTROL_SIZE]

    def control_files(self) -> list[Path]:
        """Tables of the negative controls of the bias swap, which enter no verdict."""
        return [self.run_folder(run) / "control.parquet" for run in self.control_runs()]

    def positions_files(self) -> list[Path]:
        """Logs of the positional parameters of every run, one's own among them."""
        own = [Run(size, key, multiple, seed) for key in self.own for size, multiple, seed in OWN_RUNS]
        return [self.run_folder(run) / "positions.parquet" for run in (*self.runs(), *own)]

    def needs_margins(self, run: Run) -> bool:
        """Does the run's prior take its margin from the theory stage?"""
        prior = self.arm(run).log_prior
        return prior is not None and prior.options.get("exponents") == "margin"


def _find(
    name: str, scale: Scale, registered: Mapping[Run, object], arms: Mapping[str, Arm], own: Mapping[str, OwnArm]
) -> Run:
    run = parse_run(name, scale)
    if run.arm in own:
        return run
    if run not in registered:
        close = difflib.get_close_matches(name, [known.name(scale) for known in registered], n=1)
        remedy = f"did you mean {close[0]}?" if close else "the protocols under preregistration/ list the runs"
        raise refuse("is not a registered run", value=name, remedy=remedy)
    if run.arm not in arms:
        raise refuse(f"cannot be trained: arm {run.arm} is not implemented", value=name)
    return run


def find_run(name: str, scale: Scale, preregistration: str | Path, argument: str | None = None) -> tuple[Run, Arm]:
    """Return a run and its arm by the run's name, after checking every seal.

    The run is registered, or one of the arm that `argument` gives (`own_arms.own_arm`). Raises `UserError`.
    """
    check_seals(preregistration)
    registered = registered_runs(load_protocols(preregistration))
    given = [] if argument is None else [own_arm(argument, _reserved(registered))]
    own = {item.arm.key: item for item in given}
    run = _find(name, scale, registered, ARMS, own)
    if own and run.arm not in own:
        remedy = "leave out --arm for a registered run"
        raise refuse(f"is no run of arm {given[0].arm.key}", value=name, remedy=remedy)
    return run, own[run.arm].arm if own else ARMS[run.arm]


def _reserved(registered: Mapping[Run, object]) -> set[str]:
    """Keys that no arm of one's own may take: implemented arms, and arms of any protocol."""
    return {*ARMS, *(run.arm for run in registered)}


def load_study(data: Any, file: str | Path) -> Study:
    """Return the study that a parsed config describes, after checking the config, the scale and every seal.

    Raises `UserError`.
    """
    config = load_config(data, file)
    scale = load_scale(scale_file(config.scale))
    check_seals(config.preregistration)
    protocols = load_protocols(config.preregistration)
    own = own_arms(config.arms, Path(file).name, _reserved(registered_runs(protocols)))
    return Study(config, scale, protocols, ARMS, {item.arm.key: item for item in own})


def use_this_checkout(base: Path) -> None:
    """Make jobs run the interpreter that runs Snakemake and the code in `base/src`, activated and installed or not."""
    for name, first in (("PATH", Path(sys.executable).parent), ("PYTHONPATH", base / "src")):
        rest = [part for part in [os.environ.get(name)] if part]
        os.environ[name] = os.pathsep.join([str(first), *rest])
