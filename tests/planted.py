"""Evaluation tables with planted effects, for the tests of scoring."""

import zlib
from collections.abc import Callable, Iterable
from functools import cache

import numpy as np
import pandas as pd

from causal_priors.config import ROOT, load_scale, scale_file
from causal_priors.prereg.protocol import load_protocols, registered_interventions, registered_runs
from causal_priors.prereg.scoring import score
from causal_priors.runs import Run
from causal_priors.scale import Scale

FACTORS = (1, 2, 4, 8)
BINS = ((0, 1), (1, 2), (2, 4), (4, 8))


def planted_loss(
    run: Run,
    scale: Scale,
    level: Callable[[int, int], float],
    *,
    variant: str = "plain",
    stage: str = "evaluate",
    dtype: str = "float32",
    factors: Iterable[int] = FACTORS,
) -> pd.DataFrame:
    """Return loss rows of kind "evaluation" whose mean over even (and over odd) blocks is `level(factor, parity)`.

    Every run has noise of its own that cancels between the two halves of its blocks, so that means are as planted while
    no two runs agree.
    """
    length = run.train_length(scale)
    blocks = scale.evaluation_tokens // (8 * length)
    rows = []
    for factor in factors:
        noise = _noise(run, factor)
        for block in range(blocks):
            for window in range(8 // factor):
                for number, (first, end) in enumerate(BINS[: FACTORS.index(factor) + 1]):
                    wiggle = noise[block % (blocks // 2), window, number] * (1 if block < blocks // 2 else -1)
                    value = level(factor, block % 2) + wiggle
                    rows.append((factor * length, block, window, number, -1, value, (end - first) * length))
    return _frame(rows, run, scale, variant=variant, stage=stage, dtype=dtype, quantity="loss")


def planted_far_mass(
    run: Run,
    scale: Scale,
    level: Callable[[int], float],
    *,
    variant: str = "plain",
    stage: str = "evaluate",
    dtype: str = "float32",
    factors: Iterable[int] = FACTORS,
) -> pd.DataFrame:
    """Return far-mass rows at w = L/8 with mean `level(factor)`, and rows at w = L that no test may read (all 0.5)."""
    length, size = run.train_length(scale), run.budget(scale)
    blocks = scale.evaluation_tokens // (8 * length)
    rows = []
    for factor in factors:
        noise = _noise(run, factor) / 100
        for block in range(blocks):
            for window in range(8 // factor):
                wiggle = noise[block % (blocks // 2), window, 0] * (1 if block < blocks // 2 else -1)
                for w, value in ((length // 8, level(factor) + wiggle), (length, 0.5)):
                    rows.append((factor * length, block, window, -1, w, value, size.heads * size.depth * w))
    return _frame(rows, run, scale, variant=variant, stage=stage, dtype=dtype, quantity="far_mass")


def _noise(run: Run, factor: int) -> np.ndarray:
    seed = zlib.crc32(f"{run.size}-{run.arm}-{run.multiple}-{run.seed}-{factor}".encode())
    return np.random.default_rng(seed).uniform(-0.01, 0.01, size=(32, 8, 4))


def _frame(rows: list[tuple], run: Run, scale: Scale, **constant: str) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["length", "block", "window", "bin", "far_window", "value", "count"])
    identity = {"run": run.name(scale), "size": run.size, "arm": run.arm, "train_length": run.train_length(scale)}
    return frame.assign(**identity, seed=run.seed, layer=-1, head=-1, **constant)


# Levels at which every registered test holds (0002-b is triggered). Loss in nats per target at every length.
LOSS = {"rope": 5.0, "rope-logn": 4.9, "ot-50": 4.7, "ot-75": 4.8, "cable": 4.5, "alibi-ot": 4.4, "log-gt1": 4.3}
LOSS |= {"log-lt1": 4.4}
OTHER_LOSS = 4.6
FAR = 0.3
GROWTH = {"log-margin-t050": 0.04, "log-margin-t020": 0.015, "log-margin-t005": 0.004}
EDIT_LOSS = {"cap": 0.01, "repair": -0.01}
EDIT_FAR = {"cap": 0.05, "repair": -0.05}


def planted_run(run: Run, scale: Scale) -> pd.DataFrame:
    """Return what `evaluate` would write for `run` at the levels above: loss and far mass; `rope` also under YaRN."""
    parts = [
        planted_loss(run, scale, lambda factor, parity: LOSS.get(run.arm, OTHER_LOSS)),
        planted_far_mass(run, scale, lambda factor: FAR + (GROWTH.get(run.arm, 0.1) if factor == 8 else 0.0)),
    ]
    if run.arm == "rope":
        parts.append(planted_loss(run, scale, lambda factor, parity: 5.1, variant="yarn"))
    return pd.concat(parts, ignore_index=True)


def planted_edit(run: Run, edit: str, scale: Scale, dtype: str = "float64") -> pd.DataFrame:
    """Return what `intervene` would write for `run`: before and after at L and 8L, moved as the tests predict."""
    parts = []
    for variant, by_loss, by_far in (("plain", 0.0, 0.0), (edit, EDIT_LOSS[edit], EDIT_FAR[edit])):
        options = {"variant": variant, "stage": "intervene", "dtype": dtype, "factors": (1, 8)}
        level = LOSS.get(run.arm, OTHER_LOSS)
        parts.append(planted_loss(run, scale, lambda factor, parity, at=level + by_loss: at, **options))
        parts.append(planted_far_mass(run, scale, lambda factor, at=FAR + by_far: at, **options))
    return pd.concat(parts, ignore_index=True)


SCALE = load_scale(scale_file("nano"))
PROTOCOLS = load_protocols(ROOT / "preregistration")
RUNS = registered_runs(PROTOCOLS)
ARMS = {run.arm for run in RUNS}
SEALS = {protocol.id: protocol.id * 16 for protocol in PROTOCOLS}


@cache
def study():
    """The whole study, all tests holding: 82 evaluations and 30 interventions."""
    parts = [planted_run(run, SCALE) for run in RUNS]
    parts += [planted_edit(item.run, item.edit, SCALE) for item in registered_interventions(PROTOCOLS)]
    return pd.concat(parts, ignore_index=True)


def verdicts(frame, implemented=ARMS, statuses=None, inputs=None, amendments=None, scale=SCALE):
    found = score(
        PROTOCOLS, frame, scale, implemented,
        statuses=statuses or {}, inputs=inputs or {}, seals=SEALS, amendments=amendments or {},
    )  # fmt: skip
    return {verdict.test_id: verdict for verdict in found}


def rows(frame, size, arm, seed=None, multiple=1, variant="plain", stage="evaluate", quantity="loss", factor=None):
    """Which rows of `frame` belong to an arm (and seed) at one training length."""
    length = multiple * 16
    chosen = (frame["size"] == size) & (frame["arm"] == arm) & (frame["train_length"] == length)
    chosen &= (frame["variant"] == variant) & (frame["stage"] == stage) & (frame["quantity"] == quantity)
    if seed is not None:
        chosen &= frame["seed"] == seed
    if factor is not None:
        chosen &= frame["length"] == factor * length
    assert chosen.any()
    return chosen


def shifted(amount, *args, **keywords):
    frame = study().copy()
    frame.loc[rows(frame, *args, **keywords), "value"] += amount
    return frame


def without(chosen):
    return study()[~chosen]
