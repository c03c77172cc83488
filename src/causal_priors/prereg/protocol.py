"""Read the protocols: what is trained, what is edited, what is tested.

A protocol is data (`protocol.yaml`), read strictly: unknown keys, misspelled arms, undeclared runs and seeds are
refused by name. Rules are data too: each kind is interpreted by `rules.py`, and no test has code of its own. The arms
that exist in a protocol are those of its own runs, so a protocol can be complete before its arms are built.
"""

import copy
import difflib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from causal_priors.artifacts import read_at_most, sha256_bytes
from causal_priors.config import check_schema
from causal_priors.errors import refuse
from causal_priors.prereg.terms import (
    REGISTERED,
    AtMostEverySeed,
    DirectionEveryCheckpoint,
    FallingEverySeed,
    Group,
    Intervention,
    LowerAnyOf,
    LowerEverySeed,
    Metric,
    Operand,
    Outcome,
    Protocol,
    RegisteredTest,
    Rule,
    Select,
    rule_arms,
)
from causal_priors.runs import Run
from causal_priors.yamlfile import MAX_BYTES, load_yaml

# By content digest: checking seals reads each file several times, and parsing and checking YAML is slow.
_PARSED: dict[str, Any] = {}
_FITS: set[tuple[str, str]] = set()


def protocol_folders(folder: str | Path) -> list[Path]:
    """Return the protocol folders (NNNN-name) under `folder`, sorted.

    Raises `UserError` where there is none, and for a link, which would lead elsewhere.
    """
    folders = sorted(path for path in Path(folder).glob("[0-9][0-9][0-9][0-9]-*") if path.is_dir())
    if not folders:
        raise refuse("holds no protocol", file=folder, remedy="is the key `preregistration` of the config right?")
    for path in folders:
        if path.is_symlink():
            raise refuse("is a link to a folder", file=path, remedy="put a copy there instead")
    return folders


def read_data(file: str | Path, schema: str | None = None) -> Any:
    """Return the data of a YAML file of the register, which must fit `schema`; the same bytes are read once.

    Raises `UserError`.
    """
    path = Path(file)
    key = sha256_bytes(read_at_most(path, MAX_BYTES, "is this the right file?"))
    if key not in _PARSED:
        _PARSED[key] = load_yaml(path)
    if schema is not None and (key, schema) not in _FITS:
        check_schema(_PARSED[key], schema, path)
        _FITS.add((key, schema))
    return copy.deepcopy(_PARSED[key])


def load_protocols(folder: str | Path) -> tuple[Protocol, ...]:
    """Return the protocols under `folder` in order of their id, not looking at seals (see seal.py).

    Raises `UserError` naming file, key and value for whatever is not as the schema says or refers to nothing.
    """
    protocols = tuple(_load(path) for path in protocol_folders(folder))
    declared = {run for protocol in protocols for run in protocol.runs}
    for protocol in protocols:
        for item in protocol.interventions:
            if item.run not in declared:
                problem = f"edits {item.run}, which no protocol trains"
                raise refuse(problem, file=protocol.file, key="interventions", remedy="declare the run")
    return protocols


def registered_runs(protocols: Iterable[Protocol]) -> dict[Run, tuple[str, ...]]:
    """Return every run once, with the ids of the experiments that use it, in the order of the protocols."""
    used: dict[Run, list[str]] = {}
    for protocol in protocols:
        for run in (*protocol.runs, *(item.run for item in protocol.interventions)):
            experiments = used.setdefault(run, [])
            if protocol.id not in experiments:
                experiments.append(protocol.id)
    return {run: tuple(experiments) for run, experiments in used.items()}


def registered_interventions(protocols: Iterable[Protocol]) -> tuple[Intervention, ...]:
    """Return every intervention, registered and exploratory, in the order of the protocols."""
    return tuple(item for protocol in protocols for item in protocol.interventions)


def _load(folder: Path) -> Protocol:
    file = folder / "protocol.yaml"
    data = read_data(file, "protocol")
    if data["id"] != folder.name[:4]:
        raise refuse("differs from the folder's name", file=file, key="id", value=data["id"])
    protocol = Protocol(
        id=data["id"],
        title=data["title"],
        question=data["question"],
        folder=folder,
        runs=tuple(_expand(data["runs"])),
        interventions=tuple(
            Intervention(row["edit"], run, row["status"]) for row in data["interventions"] for run in _expand([row])
        ),
        metrics={row["name"]: Metric(**row) for row in data["metrics"]},
        floors=data["floors"]["targets_per_length"],
        tests=tuple(_test(row) for row in data["tests"]),
        exploratory=tuple(data["exploratory"]),
        prior_knowledge=tuple(data["prior_knowledge"]),
        data=data,
    )
    _check(protocol)
    return protocol


def _expand(rows: Sequence[dict[str, Any]]) -> Iterator[Run]:
    for row in rows:
        for seed in row["seeds"]:
            yield Run(row["size"], row["arm"], row["multiple"], seed)


def _test(row: dict[str, Any]) -> RegisteredTest:
    return RegisteredTest(
        id=row["id"],
        claim=row["claim"],
        rule=_rule(row["rule"]),
        assumptions=tuple(row["assumptions"]),
        source=Outcome(row["source"]["outcome"], row["source"]["note"]),
        expected={scale: Outcome(item["outcome"], item["why"]) for scale, item in row["expected"].items()},
        notes=tuple((tuple(item["scales"]), item["text"]) for item in row["notes"]),
    )


def _rule(row: dict[str, Any]) -> Rule:
    metric, length, blocks = row["metric"], row["length"], row["blocks"]
    groups = tuple(Group(item["size"], item["multiple"], tuple(item["seeds"])) for item in row.get("groups", []))
    match row["kind"]:
        case "lower_every_seed":
            select = Select(**row["select"]) if "select" in row else None
            right, beside = (tuple(Operand(**item) for item in row[key]) for key in ("right", "beside"))
            left, threshold = tuple(row["left"]), float(row["threshold"])
            return LowerEverySeed(metric, length, blocks, left, select, right, threshold, groups, beside)
        case "lower_any_of":
            left, threshold = tuple(row["left"]), float(row["threshold"])
            return LowerAnyOf(metric, length, blocks, left, Operand(**row["right"]), threshold, groups)
        case "direction_every_checkpoint":
            edits = tuple((item["edit"], 1 if item["direction"] == "up" else -1) for item in row["edits"])
            resolution = tuple((dtype, float(value)) for dtype, value in row["resolution"].items())
            return DirectionEveryCheckpoint(metric, length, blocks, edits, resolution, row["checkpoints"])
        case "at_most_every_seed":
            bounds = tuple((item["arm"], float(item["at_most"])) for item in row["bounds"])
            return AtMostEverySeed(metric, length, blocks, bounds, groups)
        case _:
            return FallingEverySeed(metric, length, blocks, tuple(row["arms"]), float(row["threshold"]), groups)


def _check(protocol: Protocol) -> None:
    """Refuse what the schema cannot see: repeated names and references to nothing."""
    file = protocol.file
    for key, values in (
        ("runs", [str(run) for run in protocol.runs]),
        ("interventions", [f"{item.edit} of {item.run}" for item in protocol.interventions]),
        ("metrics", [row["name"] for row in protocol.data["metrics"]]),
        ("tests", [test.id for test in protocol.tests]),
    ):
        if repeated := [value for value in values if values.count(value) > 1]:
            raise refuse(f"holds {repeated[0]} twice", file=file, key=key, remedy="keep one")
    for metric in protocol.metrics.values():
        needed = {"loss": metric.positions, "far_mass": metric.far_window, "exponent": ...}[metric.quantity]
        if needed is None:
            remedy = "loss needs `positions`, far mass needs `far_window`"
            raise refuse("is not defined", file=file, key="metrics", value=metric.name, remedy=remedy)
    for test in protocol.tests:
        key = f"tests.{test.id}"
        if not test.id.startswith(f"{protocol.id}-"):
            raise refuse("is no test of this protocol", file=file, key="tests.id", value=test.id)
        metrics = [test.rule.metric]
        if isinstance(test.rule, LowerEverySeed) and test.rule.select is not None:
            metrics.append(test.rule.select.metric)
        for name in metrics:
            if name not in protocol.metrics:
                remedy = _close(name, protocol.metrics)
                raise refuse(
                    "is not declared in metrics", file=file, key=f"{key}.rule.metric", value=name, remedy=remedy
                )
        _check_members(protocol, test, key)


def _check_members(protocol: Protocol, test: RegisteredTest, key: str) -> None:
    rule, file = test.rule, protocol.file
    if isinstance(rule, DirectionEveryCheckpoint):
        found = len(protocol.interventions_of(rule, REGISTERED))
        if found != rule.checkpoints:
            problem = f"differs from the {found} registered interventions"
            raise refuse(problem, file=file, key=f"{key}.rule.checkpoints", value=rule.checkpoints)
        return
    beside = tuple(item.arm for item in rule.beside) if isinstance(rule, LowerEverySeed) else ()
    for group in rule.groups:
        declared: dict[str, set[int]] = {}
        for run in protocol.runs:
            if (run.size, run.multiple) == (group.size, group.multiple):
                declared.setdefault(run.arm, set()).add(run.seed)
        where = f"{group.size} at {group.multiple} L"
        for arm in (*rule_arms(rule), *beside):
            if arm not in declared:
                problem = f"is not declared in runs for {where}"
                raise refuse(problem, file=file, key=f"{key}.rule", value=arm, remedy=_close(arm, declared))
            if declared[arm] != set(group.seeds):
                problem = f"are not the registered seeds {sorted(declared[arm])} of {arm} for {where}"
                raise refuse(problem, file=file, key=f"{key}.rule.groups.seeds", value=list(group.seeds))


def _close(name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"declared are {', '.join(names)}"
