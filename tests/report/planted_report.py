"""A finished nano study in a folder, with planted numbers: what the figures and the page must show.

Losses, far masses and effects of edits are those of `planted`; exponents, step times and theory are planted here. One
run has diverged, and one arm is nobody's but the reader's own.
"""

import json
from pathlib import Path

import pandas as pd
import planted

from causal_priors.arms import ARMS
from causal_priors.artifacts import write_signed_json
from causal_priors.config import ROOT
from causal_priors.prereg.protocol import registered_interventions
from causal_priors.prereg.scoring import score_stage
from causal_priors.report.source import source_stage
from causal_priors.report.tables import summary_stage
from causal_priors.runs import Run
from causal_priors.tables import SCHEMAS, write_table
from causal_priors.theory.margin import margin_stage
from causal_priors.theory.stage import write_theory

PREREGISTRATION = ROOT / "preregistration"
SCALE = planted.SCALE
OWN = Run("S", "root", 1, 0)
DIVERGED = "S-fox-L16-s1"
WITH_EXPONENTS = {
    key
    for key, arm in ARMS.items()
    if arm.log_prior is not None and arm.log_prior.ref.split(":")[1] in {"LogDistance", "Kerple"}
}
EXPONENTS = (0.5, 1.5)
DRIFT = 0.04
SECONDS = {"rope": 0.01, "ot-75": 0.03}
CONTENT = (
    "# Exploratory analyses\n\n## Planted part\n\nWith `code` and *stress*.\n\n| a | b |\n|---|---|\n| 1 | x < y |\n"
)


def write_study(folder):
    """Write the study; return the evaluation and intervention tables."""
    found = []
    for run in [*planted.RUNS, OWN]:
        found.append(_run(folder / "runs" / run.name(SCALE), run))
    for item in registered_interventions(planted.PROTOCOLS):
        path = folder / "runs" / item.run.name(SCALE) / f"{item.edit}.parquet"
        lost = item.run.name(SCALE) == DIVERGED
        _table(path, _empty() if lost else planted.planted_edit(item.run, item.edit, SCALE), lost)
        found.append(path)
    path = folder / "runs" / OWN.name(SCALE) / "cap.parquet"
    _table(path, planted.planted_edit(OWN, "cap", SCALE), False)
    found.append(path)
    margin_stage(SCALE, folder / "theory/margins.json")
    write_theory(theory_rows(), folder / "theory/theory.parquet", folder / "theory/theory.csv")
    summary_stage(found, folder / "tables/summary.csv", folder / "tables/summary.md")
    score_stage(PREREGISTRATION, SCALE, found, ARMS, folder)
    source_stage(
        folder / "verdicts.json", folder / "tables/summary.csv", PREREGISTRATION, SCALE, folder / "runs",
        folder / "tables/source.csv", folder / "tables/source.md",
    )  # fmt: skip
    (folder / "tables/exploratory").mkdir()
    (folder / "tables/exploratory/exploratory.md").write_text(CONTENT)
    (folder / "data/shards").mkdir(parents=True)
    splits = {"train": {"documents": 41, "tokens": 1234567}, "heldout": {"documents": 5, "tokens": 89}}
    card = {"splits": splits, "corpus": "c" * 64, "tokenizer": "d" * 64}
    write_signed_json(folder / "data/shards/card.json", card)
    return found


def theory_rows():
    """A few rows of the theory table, one a kind."""

    def row(result, quantity, n, value, limit):
        error = None if value is None or limit is None else value / limit - 1
        return {"result": result, "quantity": quantity, "n": n, "value": value, "limit": limit, "relative_error": error}

    return [
        row("amplitude", "i exp(a[i]), strength 0.5", 512, 0.347213, 0.318310),
        row("profile", "i P[i, i/2], strength 0.5", 512, 0.7, 0.5),
        row("profile", "i P[i, i/2], strength 0.5", 4096, 0.55, 0.5),
        row("dilution", "far mass beyond 64 keys, exponent 1.1", 10**9, 0.61, 0.6228),
        row("classification", "rope: far mass bounded? no", None, 0.0, None),
        row("classification", "log: far mass bounded? iff α > 1", None, None, None),
        row("classification", "log + cap: far mass bounded? no", None, 0.0, None),
        row("classification", "log + repair: far mass bounded? yes", None, 1.0, None),
    ]


def _run(folder, run):
    lost = run.name(SCALE) == DIVERGED
    frame = _empty() if lost else pd.concat([planted.planted_run(run, SCALE), _census(run)], ignore_index=True)
    path = folder / "evaluation.parquet"
    _table(path, frame, lost)
    write_table(_positions(run), folder / "positions.parquet", "positions")
    seconds = SECONDS.get(run.arm, 0.02) * (1 + 0.1 * run.seed)
    timing = {"seconds_per_step": 9.0, "steps_here": 5, "cpu_seconds": 2.0 + 5 * seconds, "startup_cpu_seconds": 2.0}
    (folder / "timing.json").write_text(json.dumps(timing))
    card = {
        "status": "diverged at step 3" if lost else "finished",
        "steps": 5,
        "parameter_counts": {"total": 123456},
        "code": "abcdef" * 10,
        "versions": {"torch": "2.13.0", "python": "3.11.7"},
    }
    write_signed_json(folder / "run.json", card)
    return path


def _table(path: Path, frame: pd.DataFrame, lost: bool):
    write_table(frame, path, "evaluation", {"status": "diverged at step 3" if lost else "finished"})


def _empty():
    return SCHEMAS["evaluation"].empty_table().to_pandas()


def _census(run):
    values = [value + DRIFT for value in EXPONENTS] if run.arm in WITH_EXPONENTS else []
    rows = {"layer": 0, "head": range(len(values)), "value": values}
    identity = {"run": run.name(SCALE), "size": run.size, "arm": run.arm, "train_length": run.train_length(SCALE)}
    places = dict.fromkeys(("block", "window", "bin", "far_window"), -1)
    constant = {"stage": "evaluate", "dtype": "float32", "variant": "plain", "quantity": "exponent", "length": 0}
    return pd.DataFrame(rows).assign(**identity, **places, **constant, seed=run.seed, count=1)


def _positions(run):
    reported = {"exponent": EXPONENTS} if run.arm in WITH_EXPONENTS else {}
    reported |= {"rate": (0.5, 0.5)} if run.arm == "kerple" else {}
    reported |= {"slope": (0.25, 0.0625)} if run.arm in {"alibi", "alibi-ot"} else {}
    rows = [
        (step, 0, head, name, value + (DRIFT * step / 5 if name == "exponent" and run.arm != "log-fixed" else 0.0))
        for step in range(6)
        for name, values in reported.items()
        for head, value in enumerate(values)
    ]
    return pd.DataFrame(rows, columns=["step", "layer", "head", "quantity", "value"])
