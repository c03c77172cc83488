"""Summary tables for readers: loss and far mass against length, per run and per arm. They enter no verdict.

Rows of swapped biases (variants `cap` and `repair`) stand beside their checkpoints'; arms of one's own are marked.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from causal_priors.arms import ARMS
from causal_priors.artifacts import atomic_path, write_text
from causal_priors.runs import EDITS
from causal_priors.tables import read_table

EXPLORATORY, REGISTERED = "exploratory", "registered"
RUN_KEYS = ["run", "size", "arm", "status", "train_length", "seed", "variant"]
ARM_KEYS = ["size", "arm", "status", "train_length", "variant"]


def summary_stage(evaluations: Sequence[Path], out_csv: Path, out_md: Path) -> None:
    """Write one row per run, variant and window length to `out_csv`, and a table per arm to `out_md`.

    evaluations: tables of kind "evaluation", of checkpoints and of edits.
    """
    runs = summarise(pd.concat([read_table(path, "evaluation") for path in evaluations], ignore_index=True))
    with atomic_path(out_csv) as temporary:
        runs.to_csv(temporary, index=False, float_format="%.6f", lineterminator="\n")
    write_text(out_md, arm_table(runs))


def summarise(frame: pd.DataFrame) -> pd.DataFrame:
    """Return loss, loss beyond L (nats per target) and far mass per run, variant and length, from evaluation rows.

    Column `status` says "exploratory" of an arm that is not in the study's table. What an intervention measured before
    its edit is left out: the checkpoint's own evaluation says it. A mean over rows of which one is not a number is not
    one either.
    """
    frame = frame[(frame["stage"] == "evaluate") | frame["variant"].isin(EDITS)]
    frame = frame.assign(status=frame["arm"].isin(list(ARMS)).map({True: REGISTERED, False: EXPLORATORY}))
    losses = frame[frame["quantity"] == "loss"]
    columns = {"loss": _weighted_mean(losses), "loss_beyond": _weighted_mean(losses[losses["bin"] > 0])}
    masses = frame[frame["quantity"] == "far_mass"]
    for name, divisor in (("far_mass_eighth", 8), ("far_mass_full", 1)):
        chosen = masses[masses["far_window"] * divisor == masses["train_length"]]
        columns[name] = chosen.groupby([*RUN_KEYS, "length"])["value"].mean(skipna=False)
    return pd.DataFrame(columns).reset_index().sort_values([*RUN_KEYS, "length"], ignore_index=True)


def _weighted_mean(rows: pd.DataFrame) -> pd.Series:
    keys = [rows[key] for key in [*RUN_KEYS, "length"]]
    total = (rows["value"] * rows["count"]).groupby(keys).sum(skipna=False)
    return total / rows["count"].groupby(keys).sum()


def arm_table(runs: pd.DataFrame) -> str:
    """Return a markdown table: per arm the mean over seeds and spread of loss, and far mass, at L to 8L."""
    lines = [
        "Held-out loss in nats per token (mean over seeds; largest minus smallest seed in brackets) at multiples of",
        "the training length L, and far mass (share of attention at distance L/8 or more) at L and 8L. Arms marked",
        f"{EXPLORATORY} are not part of the registered study: no verdict looks at them.",
        "",
        "| size | arm | L | seeds | loss at L | 2L | 4L | 8L | far mass at L | 8L |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for key, rows in runs.groupby(ARM_KEYS):
        size, arm, status, length, variant = (str(part) for part in key)
        by_factor = dict(list(rows.groupby(rows["length"] // rows["train_length"])))
        label = arm if variant == "plain" else f"{arm} + {variant}"
        label = label if status == REGISTERED else f"{label} ({status})"
        losses = [_spread(by_factor[factor]["loss"]) if factor in by_factor else "–" for factor in (1, 2, 4, 8)]
        masses = [_mean(by_factor[factor]["far_mass_eighth"]) if factor in by_factor else "–" for factor in (1, 8)]
        cells = [size, label, length, str(rows["seed"].nunique()), *losses, *masses]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _spread(values: pd.Series) -> str:
    return "–" if values.isna().any() else f"{values.mean():.3f} ({values.max() - values.min():.3f})"


def _mean(values: pd.Series) -> str:
    return "–" if values.isna().any() else f"{values.mean():.3f}"
