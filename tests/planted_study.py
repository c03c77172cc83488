"""A small study at nano scale without training: data, seals, verdicts and summary by the real stages, the rest made up.

Measurements are what a causal model's would be: copies of one number agree (see audit/result_chain.py).
"""

import json
import shutil
import zlib
from pathlib import Path

import helpers
import numpy as np
import pandas as pd
import yaml
from safetensors.numpy import save_file

from causal_priors import runcard
from causal_priors.arms import ARMS
from causal_priors.artifacts import canonical_json, write_signed_json
from causal_priors.codedigest import code_digest
from causal_priors.config import ROOT
from causal_priors.data.index import index_stage
from causal_priors.data.tokenise import shards_stage
from causal_priors.data.tokenizer import tokenizer_stage
from causal_priors.prereg.protocol import load_protocols, registered_interventions, registered_runs
from causal_priors.prereg.scoring import score_stage
from causal_priors.prereg.seal import seal
from causal_priors.report.source import source_stage
from causal_priors.report.tables import summary_stage
from causal_priors.tables import SCHEMAS, write_table
from causal_priors.theory.margin import margin_stage, read_margins
from causal_priors.theory.stage import write_theory
from causal_priors.yamlfile import load_yaml

FACTORS = (1, 2, 4, 8)
# What stays of the registered study: enough for each kind of file and rule that an audit meets.
ARMS_KEPT = ("rope", "log", "alibi-ot", "grape-m", "grape-a", "grape-ap", "cable")
EDITS_KEPT = {("cap", "cable"): "0004-a", ("repair", "log"): "0004-b"}
SCALE = helpers.scale("nano")
FILES = ("model.safetensors", "losses.parquet", "positions.parquet")


def write_register(register: Path) -> None:
    """Write two of the registered protocols with fewer runs (14 and 4 edits of them), sealed."""
    for name in ("0002-position-screening", "0004-bias-swap"):
        shutil.copytree(ROOT / "preregistration" / name, register / name, ignore=lambda *_: ["seal.json"])
        path = register / name / "protocol.yaml"
        data = load_yaml(path)
        data["runs"] = [row for row in data["runs"] if row["arm"] in ARMS_KEPT]
        edits = [row for row in data["interventions"] if row["size"] == "S"]
        data["interventions"] = [row for row in edits if (row["edit"], row["arm"]) in EDITS_KEPT]
        if edits:
            data["tests"] = [test for test in data["tests"] if test["id"] in EDITS_KEPT.values()]
            for test in data["tests"]:
                test["rule"]["checkpoints"] = 2
        path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    for name in ("assumptions.yaml", "published.yaml"):
        shutil.copy(ROOT / "preregistration" / name, register)
    seal(register, "2026-11-29")


def write_study(folder: Path) -> Path:
    """Write a study of the register in `folder`: `folder`/texts and `folder`/results/nano; return the latter."""
    texts, study = helpers.write_corpus(folder / "texts"), folder / "results" / "nano"
    data = study / "data"
    index_stage(texts, data / "index.parquet", allow_packed_blocks=True)
    tokenizer_stage(texts, data / "index.parquet", SCALE, data / "tokenizer.json", cache=folder)
    shards_stage(
        texts,
        data / "index.parquet",
        data / "tokenizer.json",
        SCALE,
        data / "shards",
        allow_packed_blocks=True,
        threads=1,
    )
    margin_stage(SCALE, study / "theory" / "margins.json")
    row = {"result": "margin", "quantity": "made up", "n": 16, "value": 0.5, "limit": None, "relative_error": None}
    write_theory([row], study / "theory" / "theory.parquet", study / "theory" / "theory.csv")
    protocols = load_protocols(folder / "preregistration")
    for run in registered_runs(protocols):
        write_run(study, run)
        write_evaluation(study, run)
    for item in registered_interventions(protocols):
        write_edit(study, item.run, item.edit)
    score(study)
    return study


def score(study: Path) -> None:
    """Score the tables of `study` as the pipeline does, and write the summary and the table beside the source."""
    tables = [*study.glob("runs/*/evaluation.parquet"), *study.glob("runs/*/cap.parquet")]
    tables = sorted([*tables, *study.glob("runs/*/repair.parquet")])
    score_stage(study.parents[1] / "preregistration", SCALE, tables, ARMS, study)
    summary, page = study / "tables" / "summary.csv", study / "tables" / "summary.md"
    summary_stage(tables, summary, page)
    register, source = study.parents[1] / "preregistration", study / "tables" / "source.csv"
    runs, verdicts = study / "runs", study / "verdicts.json"
    source_stage(verdicts, summary, register, SCALE, runs, source, source.with_suffix(".md"))


def write_run(study, run):
    """Weights and logs of made-up numbers, and their card."""
    folder, arm, random = study / "runs" / run.name(SCALE), ARMS[run.arm], _random(run, "weights")
    folder.mkdir(parents=True)
    save_file({"embedding": random.normal(size=(30, 16)).astype(np.float32)}, folder / FILES[0])
    steps = run.budget(SCALE).steps
    loss = 5 + random.normal(size=steps)
    write_table(
        {"step": range(steps), "loss": loss, "lr": [0.1] * steps, "grad_norm": [1.0] * steps},
        folder / FILES[1],
        "losses",
    )
    rows = [(step, *row) for step in (0, steps) for row in exponents(run)]
    columns = ["step", "layer", "head", "quantity", "value"]
    write_table(pd.DataFrame(rows, columns=columns), folder / FILES[2], "positions")
    takes = arm.log_prior is not None and "tolerance" in arm.log_prior.options
    margins = study / "theory" / "margins.json"
    inputs = {"shards": study / "data/shards/card.json", **({"margins": margins} if takes else {})}
    parameters = {
        "run": run.name(SCALE),
        "scale": SCALE.digest(),
        "arm": arm.resolved(),
        "init_seed": run.init_seed,
        "data_seed": run.data_seed,
        "margins": read_margins(margins) if takes else None,
    }
    outputs = {name: folder / name for name in FILES}
    card = runcard.card("train", inputs=inputs, outputs=outputs, parameters=parameters, code=code_digest("train", arm))
    counts = {"total": 480}
    result = {"status": "finished", "steps": steps, "final_loss": float(loss[-1]), "parameter_counts": counts}
    write_signed_json(folder / "run.json", {**card, **result})


def exponents(run):
    """(layer, head, quantity, value) of arms that have exponents."""
    budget = run.budget(SCALE)
    value = 0.5 + _random(run, "exponents").random((budget.depth, budget.heads))
    places = np.ndindex(value.shape) if run.arm.startswith("log") else ()
    return [(layer, head, "exponent", float(value[layer, head])) for layer, head in places]


def write_evaluation(study, run):
    """The evaluation of a run."""
    parts = [measured(run, "plain", FACTORS)]
    if ARMS[run.arm].yarn:
        parts.append(measured(run, "yarn", FACTORS))
    census = pd.DataFrame(exponents(run), columns=["layer", "head", "quantity", "value"])
    parts.append(census.assign(variant="plain", length=0, count=1))
    write_rows(study, run, "evaluation.parquet", pd.concat(parts), "evaluate", "float32", {"packed": True})


def write_edit(study, run, edit):
    """An intervention, which raises (cap) or lowers (repair) what lies beyond L."""
    before = measured(run, "plain", (8,))
    shift = 0.05 if edit == "cap" else -0.05
    moved = np.where(before["bin"].eq(0), 0.0, shift)
    after = before.assign(variant=edit, value=(before["value"] + moved).clip(0, 6))
    rows, parameters = pd.concat([before, after]), {"edit": edit, "packed": True, "factors": [8]}
    write_rows(study, run, f"{edit}.parquet", rows, "intervene", SCALE.intervention_dtype, parameters)


def write_rows(study, run, name, rows, stage, dtype, parameters):
    """Write rows with the card that the stage would give them."""
    folder = study / "runs" / run.name(SCALE)
    identity = {"run": run.name(SCALE), "size": run.size, "arm": run.arm, "train_length": run.train_length(SCALE)}
    rows = rows.assign(**identity, seed=run.seed, stage=stage, dtype=dtype)
    for key in ("block", "window", "bin", "far_window", "layer", "head"):
        rows[key] = rows[key].fillna(-1).astype(int) if key in rows else -1
    inputs = {"run.json": folder / "run.json", "shards": study / "data/shards/card.json"}
    told = json.loads((folder / "run.json").read_text())["parameters"]
    parameters = {**{key: told[key] for key in ("run", "scale", "arm")}, **parameters}
    card = runcard.card(stage, inputs=inputs, outputs={}, parameters=parameters, code="made up")
    columns = {key: rows[key].tolist() for key in SCHEMAS["evaluation"].names}
    write_table(columns, folder / name, "evaluation", {"status": "finished", "card": canonical_json(card).decode()})


def measured(run, variant, factors):
    """Losses and far mass at `factors` times L."""
    length, budget = run.train_length(SCALE), run.budget(SCALE)
    blocks = SCALE.evaluation_tokens // (8 * length)
    random, rows = _random(run, variant), []
    loss = [5 + 0.1 * random.normal(size=(blocks, 8 // base)) for base in FACTORS]
    mass = {(factor, w): random.uniform(0.3, 0.6, size=(blocks, 8 // factor)) for factor in FACTORS for w in (8, 1)}
    for factor in factors:
        for number, base in enumerate(FACTORS[: FACTORS.index(factor) + 1]):
            for block, window in np.ndindex(blocks, 8 // factor):
                value, count = loss[number][block, window * factor // base], length * max(1, base // 2)
                rows.append(("loss", factor * length, block, window, number, -1, -1, -1, value, count))
        for w in (8, 1):
            share, far = mass[factor, w], length // w
            for block, window in np.ndindex(blocks, 8 // factor):
                count = budget.depth * budget.heads * far
                place = ("far_mass", factor * length, block, window, -1, far, -1, -1)
                rows.append((*place, share[block, window], count))
            for layer, head in np.ndindex(budget.depth, budget.heads):
                count = share.size * far
                place = ("far_mass_head", factor * length, -1, -1, -1, far, layer, head)
                rows.append((*place, share.mean(), count))
    names = ["quantity", "length", "block", "window", "bin", "far_window", "layer", "head", "value", "count"]
    return pd.DataFrame(rows, columns=names).assign(variant=variant)


def _random(run, what):
    return np.random.default_rng(zlib.crc32(f"{run.name(SCALE)} {what}".encode()))
