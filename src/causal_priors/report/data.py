"""Tidy tables of a finished study, as figures and the page take them.

Everything is read once, here, from what the pipeline has written; figures are pure functions of the result. Runs that
diverged or are not there leave no rows, and are named in `absent`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from causal_priors.arms import ARMS
from causal_priors.errors import refuse
from causal_priors.prereg.ledger import load_published
from causal_priors.prereg.origin import check_one_scale, read_cards
from causal_priors.prereg.protocol import load_protocols, registered_interventions, registered_runs
from causal_priors.prereg.terms import REGISTERED, DirectionEveryCheckpoint, Protocol
from causal_priors.report.sidecar import read_timing
from causal_priors.report.tables import EXPLORATORY
from causal_priors.runs import EDITS
from causal_priors.scale import Scale
from causal_priors.tables import read_metadata, read_table
from causal_priors.theory.margin import read_margins

RUN = ["run", "size", "arm", "status", "train_length", "seed"]
FULL = 8
FINISHED = "finished"
PREDICTED = {"cap": 1, "repair": -1}
# Scales whose interventions run in this are meant for the CPU.
CPU_DTYPE = "float64"


@dataclass(frozen=True)
class Tables:
    """What one study measured. Losses in nats per target, far mass as a share of attention at w = L/8.

    Every frame has the columns of `RUN`; `status` is "registered" or "exploratory". Beside them:
    lengths      variant, length, loss, loss_beyond, far_mass_eighth (the summary table)
    positions    variant, bin, loss: by position in windows of 8L; bins as in the kind "evaluation"
    swaps        edit, dtype, loss_before, loss_after (positions beyond L of windows of 8L), far_before, far_after
    exponents    layer, head, value: after training
    training     step, layer, head, quantity, value: parameters of the log-prior during training
    step_times   seconds
    resolutions: by "loss" and "far", and dtype: below it, a change by an edit counts as unresolved (sealed).
    theory is the table of the theory stage, margins the chosen ones by arm, published the source's numbers, absent the
    runs without a result with the reason.
    """

    scale: Scale
    lengths: pd.DataFrame
    positions: pd.DataFrame
    swaps: pd.DataFrame
    exponents: pd.DataFrame
    training: pd.DataFrame
    step_times: pd.DataFrame
    theory: pd.DataFrame
    margins: Mapping[str, float]
    published: Mapping[str, Any]
    resolutions: Mapping[str, Mapping[str, float]]
    absent: tuple[str, ...]

    @property
    def comparable(self) -> bool:
        """Do the source's numbers belong to this scale?"""
        return bool(self.scale.name == self.published["comparable_scale"])

    def note(self) -> str:
        """One line on runs that no figure can show, or nothing."""
        if not self.absent:
            return ""
        more = f" and {len(self.absent) - 6} more" if len(self.absent) > 6 else ""
        return f"Without a result, so not drawn: {', '.join(self.absent[:6])}{more}."


def gather(
    scale: Scale,
    preregistration: str | Path,
    evaluations: Sequence[Path],
    summary: str | Path,
    theory: str | Path,
    margins: str | Path,
) -> Tables:
    """Read a study's tables. evaluations: evaluation and intervention tables in their run folders, in any order.

    Raises `UserError` where a table is missing, damaged or of another scale.
    """
    protocols = load_protocols(preregistration)
    check_one_scale(read_cards(evaluations), scale)
    apart = {
        (item.run.name(scale), item.edit) for item in registered_interventions(protocols) if item.status != REGISTERED
    }
    read: dict[str, list[pd.DataFrame]] = {"positions": [], "swaps": [], "exponents": [], "training": [], "times": []}
    status = {run.name(scale): "missing" for run in registered_runs(protocols)}
    for path in sorted(evaluations):
        frame = read_table(path, "evaluation")
        frame["status"] = frame["arm"].isin(list(ARMS)).map({True: REGISTERED, False: EXPLORATORY})
        if path.stem in EDITS:
            read["swaps"].append(_swaps(frame, path.stem, apart))
            continue
        status[path.parent.name] = read_metadata(path, "evaluation").get("status", FINISHED)
        read["positions"].append(_positions(frame))
        read["exponents"].append(frame.loc[frame["quantity"] == "exponent", [*RUN, "layer", "head", "value"]])
        if len(frame):
            identity = _identity(frame)
            read["training"].append(_training(path.parent, identity))
            read["times"].append(_step_time(path.parent, identity, scale))
    absent = tuple(f"{run} {why}" if why != "missing" else f"{run} (missing)" for run, why in _without(status))
    return Tables(
        scale=scale,
        lengths=_summary(summary),
        positions=_joined(read["positions"], [*RUN, "variant", "bin", "loss"]),
        swaps=_joined(read["swaps"], [*RUN, "edit", "dtype", "loss_before", "loss_after", "far_before", "far_after"]),
        exponents=_joined(read["exponents"], [*RUN, "layer", "head", "value"]),
        training=_joined(read["training"], [*RUN, "step", "layer", "head", "quantity", "value"]),
        step_times=_joined(read["times"], [*RUN, "seconds"]),
        theory=read_theory(theory),
        margins=read_margins(margins),
        published=load_published(preregistration),
        resolutions=resolutions(protocols),
        absent=absent,
    )


def resolutions(protocols: Iterable[Protocol]) -> dict[str, dict[str, float]]:
    """Return the sealed resolutions of bias swaps: by "loss" and "far", and by dtype."""
    rules = [test.rule for protocol in protocols for test in protocol.tests]
    edits = [rule for rule in rules if isinstance(rule, DirectionEveryCheckpoint)]
    return {"far" if rule.metric == "far_mass" else "loss": dict(rule.resolution) for rule in edits}


def _without(status: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    return ((run, why) for run, why in status.items() if why != FINISHED)


def _joined(frames: Iterable[pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    kept = [frame for frame in frames if len(frame)]
    return pd.concat(kept, ignore_index=True)[columns] if kept else pd.DataFrame(columns=columns)


def weighted_mean(frame: pd.DataFrame, keys: list[str]) -> pd.Series:
    """Mean of `value` over targets: each row weighs as many targets as it counts. Not a number where one row is not."""
    weighed = frame.assign(total=frame["value"] * frame["count"]).groupby(keys)[["total", "count"]].sum(skipna=False)
    return weighed["total"] / weighed["count"]


def _positions(frame: pd.DataFrame) -> pd.DataFrame:
    rows = frame[(frame["quantity"] == "loss") & (frame["length"] == FULL * frame["train_length"])]
    return weighted_mean(rows, [*RUN, "variant", "bin"]).rename("loss").reset_index()


def _swaps(frame: pd.DataFrame, edit: str, apart: set[tuple[str, str]]) -> pd.DataFrame:
    """One row: what an edit changed at windows of 8L, where the table holds both sides."""
    rows = frame[(frame["stage"] == "intervene") & (frame["length"] == FULL * frame["train_length"])]
    found: dict[str, Any] = {}
    for name, chosen in (
        ("loss", rows[(rows["quantity"] == "loss") & (rows["bin"] > 0)]),
        ("far", rows[(rows["quantity"] == "far_mass") & (rows["far_window"] * 8 == rows["train_length"])]),
    ):
        means = weighted_mean(chosen, ["variant"]) if len(chosen) else pd.Series(dtype=float)
        if not {"plain", edit} <= set(means.index):
            return pd.DataFrame()
        found |= {f"{name}_before": means["plain"], f"{name}_after": means[edit]}
    run = _identity(rows)
    status = EXPLORATORY if (run["run"], edit) in apart else run["status"]
    return pd.DataFrame([{**run, "status": status, "edit": edit, "dtype": rows["dtype"].iloc[0], **found}])


def _identity(frame: pd.DataFrame) -> dict[str, Any]:
    return {column: frame[column].iloc[0] for column in RUN}


def _training(folder: Path, identity: Mapping[str, Any]) -> pd.DataFrame:
    return read_table(folder / "positions.parquet", "positions").assign(**identity)


def _step_time(folder: Path, identity: Mapping[str, Any], scale: Scale) -> pd.DataFrame:
    """Seconds of a training step, from the run's sidecar; nothing where there is none.

    On the CPU scales it is CPU time, which other jobs on the machine disturb least; on a GPU the median step's time.
    """
    timing = read_timing(folder / "timing.json")
    seconds = timing.get("seconds_per_step")
    if scale.intervention_dtype == CPU_DTYPE and timing.get("steps_here") and "cpu_seconds" in timing:
        seconds = (timing["cpu_seconds"] - timing.get("startup_cpu_seconds", 0.0)) / timing["steps_here"]
    return pd.DataFrame([{**identity, "seconds": seconds}] if seconds else [])


def _summary(path: str | Path) -> pd.DataFrame:
    return _read(path, pd.read_csv, [*RUN, "variant", "length", "loss", "loss_beyond", "far_mass_eighth"])


def read_theory(path: str | Path) -> pd.DataFrame:
    """Return the table of the theory stage. Raises `UserError`."""
    return _read(path, pd.read_parquet, ["result", "quantity", "n", "value", "limit", "relative_error"])


def _read(path: str | Path, reader: Callable[[Any], pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    try:
        return reader(path)[columns]
    except (OSError, ValueError, KeyError) as error:
        raise refuse(f"cannot be read ({error})", file=path, remedy="run the pipeline first") from error
