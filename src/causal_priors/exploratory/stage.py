"""The exploratory stage: reads what the study wrote, and writes one csv per analysis and a page with their captions."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from causal_priors.arms import ARMS
from causal_priors.artifacts import atomic_path, write_text
from causal_priors.exploratory import PAGE, TABLES, comparisons, drift
from causal_priors.exploratory.changes import CONTROLS, changes
from causal_priors.exploratory.page import page
from causal_priors.exploratory.prior_mass import far_masses
from causal_priors.exploratory.result import Result, joined
from causal_priors.exploratory.sensitivity import sensitivity
from causal_priors.prereg.observations import Observations
from causal_priors.prereg.origin import check_there
from causal_priors.prereg.protocol import registered_interventions, registered_runs
from causal_priors.prereg.scoring import read_results
from causal_priors.prereg.seal import load_sealed
from causal_priors.prereg.terms import EXPLORATORY, DirectionEveryCheckpoint, Protocol
from causal_priors.runs import EDITS, parse_run
from causal_priors.scale import Scale
from causal_priors.tables import SCHEMAS, read_table

EVALUATION, CONTROL, POSITIONS = "evaluation", "control", "positions"


def exploratory_stage(preregistration: Path, scale: Scale, files: Sequence[Path], out: Path) -> None:
    """Write `TABLES` as csv and `PAGE` into the folder `out`.

    files: evaluation, cap, repair, control and positions tables in their run folders, in any order. A run that is not
    among them, that diverged, or whose rows are not whole leaves no rows, and is named with the reason. Raises
    `UserError` for a changed seal and a missing or damaged table.
    """
    results = analyse(preregistration, scale, files)
    for name in TABLES:
        with atomic_path(out / f"{name}.csv") as temporary:
            results[name].rows.to_csv(temporary, index=False, float_format="%.10g", lineterminator="\n")
    write_text(out / PAGE, page(results, scale))


def analyse(preregistration: Path, scale: Scale, files: Sequence[Path]) -> dict[str, Result]:
    """Return every table of the analyses, by name."""
    protocols, _, _ = load_sealed(preregistration)
    check_there(files)
    runs = registered_runs(protocols)
    by_stem: dict[str, list[Path]] = {}
    for path in sorted(files):
        by_stem.setdefault(path.stem, []).append(path)
    columns = SCHEMAS["evaluation"].names
    read = {stem: read_results(by_stem.get(stem, []), columns) for stem in (EVALUATION, *EDITS, CONTROL)}
    plain = read[EVALUATION][0]
    statuses = {run: why for _, found in read.values() for run, why in found.items()}
    positions = _positions(by_stem.get(POSITIONS, []), scale)
    frame = pd.concat([plain, *(read[edit][0] for edit in EDITS)], ignore_index=True)
    observations = Observations(frame, scale, runs, statuses)

    resolutions = _resolutions(protocols)
    edits = {(item.run.name(scale), item.edit): item.status for item in registered_interventions(protocols)}
    given = [(path.parent.name, stem) for stem in EDITS for path in by_stem.get(stem, [])]
    edits = {**dict.fromkeys(given, EXPLORATORY), **edits}
    by_edit = {edit: {key: status for key, status in edits.items() if key[1] == edit} for edit in EDITS}
    controls = {(path.parent.name, kind): EXPLORATORY for path in by_stem.get(CONTROL, []) for kind in CONTROLS}
    evaluated = {path.parent.name for path in by_stem.get(EVALUATION, [])}
    gone = {**{run.name(scale): "is missing" for run in runs if run.name(scale) not in evaluated}, **statuses}
    results = {
        "intervals": comparisons.intervals(protocols, observations, ARMS),
        "sensitivity": sensitivity(protocols, observations, ARMS),
        "edits": joined([changes(read[edit][0], by_edit[edit], statuses, resolutions) for edit in EDITS]),
        "exponents": drift.over_steps(positions),
        "exponents-moved": drift.moved(positions, gone),
        "far-mass": far_masses(plain, positions, ARMS, gone),
        "controls": changes(read[CONTROL][0], controls, statuses, resolutions),
    }
    return {**results, "absent": _absent(results)}


def _positions(paths: Sequence[Path], scale: Scale) -> pd.DataFrame:
    """Rows of kind "positions" with the identity of the run whose folder they lie in."""
    parts = []
    for path in paths:
        run = parse_run(path.parent.name, scale)
        rows = read_table(path, "positions")
        identity = {"run": path.parent.name, "arm": run.arm, "size": run.size}
        parts.append(rows.assign(**identity, train_length=run.train_length(scale), seed=run.seed))
    columns = [*SCHEMAS["positions"].names, *drift.IDENTITY]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def _resolutions(protocols: Sequence[Protocol]) -> dict[tuple[str, str], float]:
    """Registered resolutions of changes, by quantity and dtype."""
    return {
        (protocol.metrics[test.rule.metric].quantity, dtype): value
        for protocol in protocols
        for test in protocol.tests
        if isinstance(test.rule, DirectionEveryCheckpoint)
        for dtype, value in test.rule.resolution
    }


def _absent(results: Mapping[str, Result]) -> Result:
    rows = [(name, item.item, item.reason) for name, found in results.items() for item in found.absent]
    return Result(pd.DataFrame(rows, columns=["table", "item", "reason"]))
