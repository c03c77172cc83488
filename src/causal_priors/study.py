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
from causal_priors.prereg.protocol import load_protocols, registered_interventions, registered_runs
from causal_priors.prereg.seal import check_seals
from causal_priors.prereg.terms import Intervention, Protocol
from causal_priors.runs import Run, parse_run
from causal_priors.scale import Scale


@dataclass(frozen=True)
class Study:
    """The registered study at one scale, narrowed to the arms that are implemented."""

    config: Config
    scale: Scale
    protocols: tuple[Protocol, ...]
    arms: Mapping[str, Arm]

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
        """Return the registered, implemented run called `name`. Raises `UserError` otherwise."""
        return _find(name, self.scale, self.registered, self.arms)

    def check_target(self, target: str | Path) -> None:
        """Refuse a file of a run that is not registered. Raises `UserError`."""
        folder = self.folder / "runs"
        if Path(target).is_relative_to(folder):
            self.run(Path(target).relative_to(folder).parts[0])

    def arm(self, run: Run) -> Arm:
        """Return the table row of a run's arm."""
        return self.arms[run.arm]

    def run_folder(self, run: Run) -> Path:
        """Folder of a run."""
        return self.folder / "runs" / run.name(self.scale)

    def evaluation_files(self, experiment: str | None = None) -> list[Path]:
        """Evaluation and intervention tables that score `experiment`, or all."""
        evaluations = [self.run_folder(run) / "evaluation.parquet" for run in self.runs(experiment)]
        edits = [self.run_folder(item.run) / f"{item.edit}.parquet" for item in self.interventions(experiment)]
        return [*evaluations, *edits]

    def needs_margins(self, run: Run) -> bool:
        """Does the run's prior take its margin from the theory stage?"""
        prior = self.arm(run).log_prior
        return prior is not None and prior.options.get("exponents") == "margin"


def _find(name: str, scale: Scale, registered: Mapping[Run, object], arms: Mapping[str, Arm]) -> Run:
    run = parse_run(name, scale)
    if run not in registered:
        close = difflib.get_close_matches(name, [known.name(scale) for known in registered], n=1)
        remedy = f"did you mean {close[0]}?" if close else "the protocols under preregistration/ list the runs"
        raise refuse("is not a registered run", value=name, remedy=remedy)
    if run.arm not in arms:
        raise refuse(f"cannot be trained: arm {run.arm} is not implemented", value=name)
    return run


def find_run(name: str, scale: Scale, preregistration: str | Path) -> tuple[Run, Arm]:
    """Return a registered run and its arm by the run's name, after checking every seal. Raises `UserError`."""
    check_seals(preregistration)
    run = _find(name, scale, registered_runs(load_protocols(preregistration)), ARMS)
    return run, ARMS[run.arm]


def load_study(data: Any, file: str | Path) -> Study:
    """Return the study that a parsed config describes, after checking the config, the scale and every seal.

    Raises `UserError`.
    """
    config = load_config(data, file)
    scale = load_scale(scale_file(config.scale))
    check_seals(config.preregistration)
    return Study(config, scale, load_protocols(config.preregistration), ARMS)


def use_this_checkout(base: Path) -> None:
    """Make jobs run the interpreter that runs Snakemake and the code in `base/src`, activated and installed or not."""
    for name, first in (("PATH", Path(sys.executable).parent), ("PYTHONPATH", base / "src")):
        rest = [part for part in [os.environ.get(name)] if part]
        os.environ[name] = os.pathsep.join([str(first), *rest])
