"""What a protocol is made of, as frozen dataclasses: runs, edits, metrics, rules, tests.

Lengths are multiples of a run's training length L; differences and thresholds are in the metric's unit. Each kind of
rule is a dataclass here, is read by `protocol.py`, and is interpreted by `rules.py`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from causal_priors.runs import Run

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
