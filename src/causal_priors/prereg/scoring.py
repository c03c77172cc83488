"""Score the register: from sealed protocols and evaluation tables to verdicts.

`score` is a pure function of its arguments; `score_stage` is the file edge around it. A failed test is a result and
raises nothing; a changed seal does. No test has code here: see rules.py for what a rule means.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from causal_priors.artifacts import sha256_file, write_text
from causal_priors.errors import refuse
from causal_priors.prereg.chance import chance_level, in_words
from causal_priors.prereg.ledger import Amendment
from causal_priors.prereg.observations import NotEvaluatedError, Observations
from causal_priors.prereg.origin import check_one_origin, check_one_scale, check_there, read_cards
from causal_priors.prereg.protocol import registered_runs
from causal_priors.prereg.rules import NOT_EVALUATED, Finding, evaluate_rule
from causal_priors.prereg.seal import load_sealed
from causal_priors.prereg.terms import (
    AtMostEverySeed,
    DirectionEveryCheckpoint,
    LowerEverySeed,
    Protocol,
    RegisteredTest,
    rule_runs,
)
from causal_priors.prereg.verdict_tables import flat_frame, markdown, write_verdicts
from causal_priors.runs import Run
from causal_priors.scale import Scale
from causal_priors.tables import read_metadata, read_table, write_table

FINISHED = "finished"
COLUMNS = ["run", "size", "arm", "train_length", "seed", "stage", "dtype", "variant", "quantity", "length"]
COLUMNS += ["block", "window", "bin", "far_window", "value", "count"]


@dataclass(frozen=True)
class Verdict:
    """One registered test at one scale: outcome, numbers, and all that the outcome rests on.

    thresholds: what the observed differences are held to, by name ("difference", a dtype, or an arm); `threshold` is
    the single one, None where there are several. inputs: sha256 of each table read, by run and file.
    """

    test_id: str
    experiment: str
    title: str
    scale: str
    scale_status: str
    claim: str
    rule: str
    metric: str
    unit: str
    threshold: float | None
    thresholds: dict[str, float]
    verdict: str
    reason: str
    margin: float | None
    n: int
    chance_level: float | None
    chance_note: str
    selection: dict[str, Any] | None
    observed: list[dict[str, Any]]
    beside: list[dict[str, Any]]
    exploratory: list[dict[str, Any]]
    assumptions: list[str]
    expected: dict[str, str]
    source: dict[str, str]
    notes: list[str]
    amendments: list[dict[str, Any]]
    inputs: dict[str, str]
    seal_digest: str
    scale_digest: str


def score(
    protocols: Sequence[Protocol],
    frame: pd.DataFrame,
    scale: Scale,
    implemented: Collection[str],
    *,
    statuses: Mapping[str, str],
    inputs: Mapping[str, Mapping[str, str]],
    seals: Mapping[str, str],
    amendments: Mapping[str, Sequence[Amendment]],
    experiment: str | None = None,
) -> list[Verdict]:
    """Return one verdict per registered test (of `experiment`, where one is named), in the protocols' order.

    frame: rows of kind "evaluation" of all checkpoints, in any order; rows of runs that no protocol declares are
    ignored. implemented: keys of the study's own arms that this code can train, without arms of one's own. statuses:
    runs without a result, with the reason. inputs: sha256 of each file, by run name. seals and amendments: by protocol
    id, checked (see `load_sealed`).
    """
    verdicts = []
    observations = Observations(frame, scale, registered_runs(protocols), statuses)
    for protocol in protocols:
        for test in protocol.tests if experiment in {None, protocol.id} else ():
            finding = find(test, protocol, observations, implemented)
            remarks = [asdict(item) for item in amendments.get(protocol.id, ()) if test.id in item.tests]
            files = _files(test, protocol, scale, inputs)
            verdicts.append(_verdict(test, protocol, scale, finding, seals[protocol.id], files, remarks))
    return verdicts


def score_stage(
    preregistration: Path,
    scale: Scale,
    evaluations: Sequence[Path],
    implemented: Collection[str],
    out: Path,
    *,
    experiment: str | None = None,
) -> None:
    """Check the seals, score `evaluations`, and write verdicts.parquet, .csv, .json and .md into the folder `out`.

    evaluations: evaluation.parquet, cap.parquet and repair.parquet of run folders. experiment: id of the only protocol
    to score. Raises `UserError` for a changed seal, a missing or damaged table, tables of another scale, of several
    corpora or of several trainings of a run, and an unknown experiment.
    """
    protocols, seals, amendments = load_sealed(preregistration)
    if experiment is not None and experiment not in seals:
        remedy = f"registered are {', '.join(seals)}"
        raise refuse("is not an experiment", key="experiment", value=experiment, remedy=remedy)
    # A run's folder carries its name; folders that no protocol names (arms of one's own) are left alone.
    names = {run.name(scale) for run in registered_runs(protocols)}
    check_there(evaluations)
    chosen = sorted(path for path in evaluations if path.parent.name in names)
    frame, statuses = read_results(chosen)
    cards = read_cards(chosen)
    check_one_scale(cards, scale)
    check_one_origin(cards)
    inputs: dict[str, dict[str, str]] = {}
    for path in chosen:
        inputs.setdefault(path.parent.name, {})[path.name] = sha256_file(path)
    verdicts = score(
        protocols,
        frame,
        scale,
        implemented,
        statuses=statuses,
        inputs=inputs,
        seals=seals,
        amendments=amendments,
        experiment=experiment,
    )
    records = [asdict(verdict) for verdict in verdicts]
    flat = flat_frame(records)
    write_table(flat, out / "verdicts.parquet", "verdicts")
    write_text(out / "verdicts.csv", flat.to_csv(index=False, lineterminator="\n"))
    write_text(out / "verdicts.md", markdown(records))
    write_verdicts(out / "verdicts.json", records)


def read_results(evaluations: Sequence[Path], columns: list[str] = COLUMNS) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return these columns of tables of kind "evaluation" in their run folders, and the runs without a result, with why.

    Raises `UserError` for a damaged table.
    """
    parts: list[pd.DataFrame] = []
    statuses: dict[str, str] = {}
    for path in evaluations:
        parts.append(read_table(path, "evaluation")[columns])
        if (status := read_metadata(path, "evaluation").get("status", FINISHED)) != FINISHED:
            statuses[path.parent.name] = status
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns), statuses


def find(test: RegisteredTest, protocol: Protocol, observations: Observations, implemented: Collection[str]) -> Finding:
    """Return what `test` finds; `not evaluated`, with the reason, where something it needs is not there."""
    runs = rule_runs(test.rule, protocol)
    if unknown := [arm for arm in dict.fromkeys(run.arm for run in runs) if arm not in implemented]:
        return Finding(NOT_EVALUATED, f"{'arm' if len(unknown) == 1 else 'arms'} {', '.join(unknown)} not implemented")
    if missing := observations.missing(runs):
        return Finding(NOT_EVALUATED, missing)
    try:
        return evaluate_rule(test, protocol, observations)
    except NotEvaluatedError as reason:
        return Finding(NOT_EVALUATED, str(reason))


def _verdict(
    test: RegisteredTest,
    protocol: Protocol,
    scale: Scale,
    finding: Finding,
    seal_digest: str,
    files: dict[str, str],
    amendments: list[dict[str, Any]],
) -> Verdict:
    chance, chance_note = chance_level(test)
    metric, thresholds = protocol.metrics[test.rule.metric], _thresholds(test)
    expected = test.expected.get(scale.name)
    return Verdict(
        test_id=test.id,
        experiment=protocol.id,
        title=protocol.title,
        scale=scale.name,
        scale_status=scale.status,
        claim=test.claim,
        rule=in_words(test),
        metric=metric.name,
        unit=metric.unit,
        threshold=next(iter(thresholds.values())) if len(thresholds) == 1 else None,
        thresholds=thresholds,
        verdict=finding.outcome,
        reason=finding.reason,
        margin=finding.margin,
        n=finding.n,
        chance_level=chance,
        chance_note=chance_note,
        selection=finding.selection,
        observed=finding.observed,
        beside=finding.beside,
        exploratory=finding.exploratory,
        assumptions=list(test.assumptions),
        expected=asdict(expected)
        if expected
        else {"outcome": "open", "note": "no expectation was registered for this scale"},
        source=asdict(test.source),
        notes=test.notes_at(scale.name),
        amendments=amendments,
        inputs=files,
        seal_digest=seal_digest,
        scale_digest=scale.digest(),
    )


def _thresholds(test: RegisteredTest) -> dict[str, float]:
    match test.rule:
        case DirectionEveryCheckpoint() as rule:
            return dict(rule.resolution)
        case AtMostEverySeed() as rule:
            return dict(rule.bounds)
        case rule:
            return {"difference": rule.threshold}


def _files(
    test: RegisteredTest, protocol: Protocol, scale: Scale, inputs: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """Digests of the tables that `test` reads, those shown beside included."""
    rule, runs = test.rule, rule_runs(test.rule, protocol)
    if isinstance(rule, DirectionEveryCheckpoint):
        edits = {edit for edit, _ in rule.edits}
        runs = [item.run for item in protocol.interventions if item.edit in edits]
        wanted = {f"{edit}.parquet" for edit in edits}
    else:
        wanted = {"evaluation.parquet"}
    if isinstance(rule, LowerEverySeed):
        runs += [
            Run(g.size, item.arm, g.multiple, seed) for item in rule.beside for g in rule.groups for seed in g.seeds
        ]
    found = {}
    for name in dict.fromkeys(run.name(scale) for run in runs):
        found.update({f"{name}/{file}": sha for file, sha in sorted(inputs.get(name, {}).items()) if file in wanted})
    return found
