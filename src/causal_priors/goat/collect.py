"""Tables of experiment 0006 from what each arm measured: one csv per subject, all rows as parquet, and a page."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from causal_priors.artifacts import atomic_path, write_text
from causal_priors.goat import LONGER, MIXTURE, PAGE, RETRIEVAL, TWO_BACK
from causal_priors.goat.design import GUESS, Design
from causal_priors.goat.mixture import Mixture
from causal_priors.goat.page import page
from causal_priors.goat.predictions import Facts, check
from causal_priors.goat.sink import margin_table, sensitivity
from causal_priors.tables import read_metadata, read_table, write_table

KIND = "probes"
ALL = "probes.parquet"


def collect_stage(design: Design, files: Sequence[Path], out: Path) -> dict[str, pd.DataFrame]:
    """Write every table and the page into the folder `out` from the arms' tables `files`; return the tables by name.

    Raises `UserError` for a damaged table, and a rule of the protocol that does not exist.
    """
    order = {arm: number for number, arm in enumerate(design.arms)}
    paths = sorted(files, key=lambda path: order.get(path.stem, len(order)))
    said = {path.stem: read_metadata(path, KIND) for path in paths}
    probes = pd.concat([read_table(path, KIND) for path in paths], ignore_index=True)
    tables = {
        MIXTURE: mixture_table(probes, MIXTURE, design.copy.mixture),
        TWO_BACK: mixture_table(probes, TWO_BACK, replace(design.copy.mixture, back=2)),
        "prior": prior_table(probes),
        RETRIEVAL: retrieval_table(probes, RETRIEVAL),
        LONGER: retrieval_table(probes, LONGER),
        "sinks": sinks_table(probes),
        "margin": margin_table(),
    }
    tables["reach"] = pd.concat([reach_table(tables[name]).assign(test=name) for name in (RETRIEVAL, LONGER)])
    facts = Facts(
        mixture=tables[MIXTURE],
        prior=tables["prior"][tables["prior"]["task"] == MIXTURE],
        retrieval=tables[RETRIEVAL],
        sinks=tables["sinks"],
        arms=design.arms,
        train_length=design.train_length,
    )
    tables["predictions"] = check(design.predictions, facts)
    write_table(probes, out / ALL, KIND)
    for name, frame in tables.items():
        with atomic_path(out / f"{name}.csv") as temporary:
            frame.to_csv(temporary, index=False, float_format="%.8g", lineterminator="\n")
    write_text(out / PAGE, page(tables, design, said))
    return tables


def mixture_table(probes: pd.DataFrame, task: str, mixture: Mixture) -> pd.DataFrame:
    """One row per arm and length: losses in nats, the exact optimum and what less knowledge gives, share closed."""
    rows = _wide(probes[probes["task"] == task], "copy", ["arm", "length"], ["loss", "regret"])
    for name in ("optimum", "first_only", "previous_only"):
        rows[name] = [getattr(mixture, name)(n) for n in rows["length"]]
    rows["uniform"] = mixture.uniform()
    rows["share"] = 1.0 - rows["regret"] / (rows["uniform"] - rows["optimum"])
    return rows


def prior_table(probes: pd.DataFrame) -> pd.DataFrame:
    """Goat's log-prior after each mixture, in its parts: one row per layer, head, quantity and index (j or d)."""
    rows = probes[probes["quantity"].str.startswith("prior_") & (probes["test"] == "copy")]
    return rows[["arm", "task", "quantity", "layer", "head", "index", "value"]].reset_index(drop=True)


def retrieval_table(probes: pd.DataFrame, test: str) -> pd.DataFrame:
    """One row per arm, task, length and depth: means over examples. The data of the heat maps."""
    keys, names = ["arm", "task", "length", "depth"], ["log_probability", "correct", "far_mass"]
    rows = _wide(probes, test, keys, names)
    counted = probes[(probes["test"] == test) & (probes["quantity"] == "correct")]
    counts = counted.groupby(keys).size().rename("examples").reset_index()
    return rows.merge(counts, on=keys, how="left")


def reach_table(retrieval: pd.DataFrame) -> pd.DataFrame:
    """One row per arm and task: whether it is learnt, and whether it reaches, with far mass at the longest windows.

    gain: log-probability of the answer at the shortest windows above that of a guess among all answers, in nats; gap: at
    the longest, that of the deepest item minus that of the nearest.
    """
    rows = []
    for (arm, task), part in retrieval.groupby(["arm", "task"], sort=False):
        lengths, longest = part["length"], part[part["length"] == part["length"].max()].sort_values("depth")
        log_p = longest["log_probability"].to_numpy()
        near = part[lengths == lengths.min()]["log_probability"].mean()
        found = {"gain": near - GUESS[str(task)], "gap": log_p[0] - log_p[-1], "far_mass": longest["far_mass"].mean()}
        rows.append({"arm": arm, "task": task, **found})
    return pd.DataFrame(rows, columns=["arm", "task", "gain", "gap", "far_mass"])


def sinks_table(probes: pd.DataFrame) -> pd.DataFrame:
    """One row per arm, layer, head and length: mass on key 0, margins, and the sensitivity that the prior alone gives."""
    names = ["mass", "margin", "prior_margin", "bound_slack"]
    rows = _wide(probes, "sink", ["arm", "layer", "head", "length"], names)
    rows["sensitivity"] = 1.0 - rows["mass"]
    rows["sensitivity_of_prior"] = sensitivity(rows["prior_margin"].to_numpy(), rows["length"].to_numpy())
    return rows


def _wide(probes: pd.DataFrame, test: str, keys: list[str], names: list[str]) -> pd.DataFrame:
    """Means of the quantities `names` as columns, arms in the order of the protocol."""
    rows = probes[(probes["test"] == test) & probes["quantity"].isin(names)]
    wide = rows.groupby([*keys, "quantity"], sort=False)["value"].mean().unstack("quantity", sort=False)
    return wide.reindex(columns=names).rename_axis(columns=None).reset_index()
