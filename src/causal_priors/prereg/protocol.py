"""The protocols as frozen data: what is trained, what is edited, what is tested.

A protocol is data (`protocol.yaml`), read strictly: unknown keys, misspelled arms, undeclared runs and seeds are
refused by name. Rules are data too: each kind is interpreted by `rules.py`, and no test has code of its own. The arms
that exist in a protocol are those of its own runs, so a protocol can be complete before its arms are built.
"""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from causal_priors.config import check_schema
from causal_priors.errors import refuse
from causal_priors.runs import Run
from causal_priors.yamlfile import load_yaml

REGISTERED, EXPLORATORY = "registered", "exploratory"


@dataclass(frozen=True)
class Operand:
    """An arm under an evaluation-time variant ("plain" or "yarn")."""

    arm: str
    variant: str = "plain"

    def __str__(self) -> str:
        return self.arm if self.variant == "plain" else f"{self.arm}+{self.variant}"


@dataclass(frozen=True)
class Group:
    """Runs of one size and training length: the seeds that are paired."""

    size: str
    multiple: int
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Select:
    """How the best of several arms is chosen: lowest metric, averaged over seeds, on these blocks."""

    metric: str
    length: int
    blocks: str


@dataclass(frozen=True)
class LowerEverySeed:
    """right - left >= threshold for each comparator and each seed of each group."""

    metric: str
    length: int
    blocks: str
    left: tuple[str, ...]
    select: Select | None
    right: tuple[Operand, ...]
    threshold: float
    groups: tuple[Group, ...]
    beside: tuple[Operand, ...]


@dataclass(frozen=True)
class LowerAnyOf:
    """Triggered if one arm of `left` has right - left >= threshold on each seed of each group."""

    metric: str
    length: int
    blocks: str
    left: tuple[str, ...]
    right: Operand
    threshold: float
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class DirectionEveryCheckpoint:
    """after - before has the registered sign on each registered checkpoint. `edits` maps edit to +1 or -1."""

    metric: str
    length: int
    blocks: str
    edits: tuple[tuple[str, int], ...]
    resolution: tuple[tuple[str, float], ...]
    checkpoints: int


@dataclass(frozen=True)
class AtMostEverySeed:
    """The metric is at most the arm's own bound on each seed of each group."""

    metric: str
    length: int
    blocks: str
    bounds: tuple[tuple[str, float], ...]
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class FallingEverySeed:
    """The metric falls by more than the threshold from each arm to the next, on each seed of each group."""

    metric: str
    length: int
    blocks: str
    arms: tuple[str, ...]
    threshold: float
    groups: tuple[Group, ...]


Rule = LowerEverySeed | LowerAnyOf | DirectionEveryCheckpoint | AtMostEverySeed | FallingEverySeed


@dataclass(frozen=True)
class Metric:
    """A measured quantity, its unit and its admissible range.

    `far_window` is a share of the training length; `minus_at` is the multiple of L whose value is subtracted.
    """

    name: str
    meaning: str
    unit: str
    quantity: str
    minimum: float
    maximum: float
    add_ln_vocabulary: bool
    positions: str | None = None
    far_window: float | None = None
    minus_at: int | None = None


@dataclass(frozen=True)
class Outcome:
    """An outcome and its reason: the source's, or the one expected at a scale."""

    outcome: str
    note: str


@dataclass(frozen=True)
class RegisteredTest:
    """One registered test."""

    id: str
    claim: str
    rule: Rule
    assumptions: tuple[str, ...]
    source: Outcome
    expected: dict[str, Outcome]
    notes: tuple[tuple[tuple[str, ...], str], ...]

    def notes_at(self, scale: str) -> list[str]:
        """Notes that concern `scale`."""
        return [text for scales, text in self.notes if scale in scales]


@dataclass(frozen=True, order=True)
class Intervention:
    """One edit of one checkpoint."""

    edit: str
    run: Run
    status: str


@dataclass(frozen=True)
class Protocol:
    """One sealed protocol. `data` is the parsed file, which the seal covers."""

    id: str
    title: str
    question: str
    folder: Path
    runs: tuple[Run, ...]
    interventions: tuple[Intervention, ...]
    metrics: dict[str, Metric]
    floors: dict[str, int]
    tests: tuple[RegisteredTest, ...]
    exploratory: tuple[str, ...]
    prior_knowledge: tuple[str, ...]
    data: dict[str, Any]

    @property
    def file(self) -> Path:
        """Path of protocol.yaml."""
        return self.folder / "protocol.yaml"

    def floor(self, scale: str) -> int:
        """Least number of targets behind a scored mean at `scale`."""
        return self.floors.get(scale, self.floors["default"])

    def interventions_of(self, rule: DirectionEveryCheckpoint, status: str) -> list[Intervention]:
        """Interventions of `status` that `rule` is about, in the protocol's order."""
        edits = dict(rule.edits)
        return [item for item in self.interventions if item.edit in edits and item.status == status]


def protocol_folders(folder: str | Path) -> list[Path]:
    """Return the protocol folders (NNNN-name) under `folder`, sorted. Raises `UserError` where there is none."""
    folders = sorted(path for path in Path(folder).glob("[0-9][0-9][0-9][0-9]-*") if path.is_dir())
    if not folders:
        raise refuse("holds no protocol", file=folder, remedy="is the key `preregistration` of the config right?")
    return folders


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
    data = load_yaml(file)
    check_schema(data, "protocol", file)
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


def rule_arms(rule: Rule) -> tuple[str, ...]:
    """Arms that `rule` compares, without those of interventions and without those only shown beside."""
    match rule:
        case LowerEverySeed():
            return (*rule.left, *(item.arm for item in rule.right))
        case LowerAnyOf():
            return (*rule.left, rule.right.arm)
        case AtMostEverySeed():
            return tuple(arm for arm, _ in rule.bounds)
        case FallingEverySeed():
            return rule.arms
        case DirectionEveryCheckpoint():
            return ()


def rule_runs(rule: Rule, protocol: Protocol) -> list[Run]:
    """Runs that must be there for `rule` to be evaluated, each once."""
    if isinstance(rule, DirectionEveryCheckpoint):
        runs = [item.run for item in protocol.interventions_of(rule, REGISTERED)]
    else:
        runs = [
            Run(group.size, arm, group.multiple, seed)
            for group in rule.groups
            for arm in rule_arms(rule)
            for seed in group.seeds
        ]
    return list(dict.fromkeys(runs))


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
