"""THE table of arms: every arm is one point in rotation x score scale x log-prior x transport.

Parts are named by reference ("module:Class"), so that reading this table imports no torch and the code digest of an arm
covers just the modules that the arm uses. A new arm is one `Arm` row and, at most, one small LogPrior class.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any

DISTANCE = "causal_priors.priors.distance"
PATH = "causal_priors.priors.path"
GRAPE = "causal_priors.priors.grape"
FOURIER = "causal_priors.priors.fourier"
ROTARY = "causal_priors.attention.rotary"


@dataclass(frozen=True)
class Part:
    """A positional component: the class that builds it and its options."""

    ref: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, part: type, **options: Any) -> "Part":
        """Name a class that stands in the same file as the row (see README, "Add your own arm")."""
        return cls(f"{part.__module__}:{part.__qualname__}", options)

    @property
    def module(self) -> str:
        """The module that defines the class."""
        return self.ref.partition(":")[0]

    def load(self) -> Any:
        """Import and return the class."""
        module, _, name = self.ref.partition(":")
        return getattr(import_module(module), name)


@dataclass(frozen=True)
class Transport:
    """The causal optimal-transport operator in place of softmax (operator.md)."""

    strength: float
    solver: str = "exact"
    iterations: int | None = None


@dataclass(frozen=True)
class Arm:
    """One row. `position_lr` multiplies the model's learning rate for the positional parameters (A7).

    yarn: also evaluate the checkpoint under YaRN, which needs RoPE. exploratory: no arm of the registered study.
    """

    key: str
    source_name: str
    rotation: Part | None = None
    log_n: bool = False
    log_prior: Part | None = None
    transport: Transport | None = None
    position_lr: float = 1 / 3
    yarn: bool = False
    exploratory: bool = False

    def modules(self) -> list[str]:
        """Modules that only some arms reach: what this row adds to the code digest of a stage."""
        parts = [part.module for part in (self.rotation, self.log_prior) if part is not None]
        if self.transport is not None:
            parts.append("causal_priors.attention.transport")
        return sorted(set(parts))

    def resolved(self) -> dict[str, Any]:
        """What a checkpoint of the row depends on, as plain data, for digests and run cards."""
        return {name: value for name, value in asdict(self).items() if name not in _OUTSIDE_THE_CHECKPOINT}


_OUTSIDE_THE_CHECKPOINT = {"source_name", "yarn", "exploratory"}


ROPE = Part(f"{ROTARY}:RoPE", {"base": 10_000.0})


def _prior(name: str, module: str = DISTANCE, **options: Any) -> Part:
    return Part(f"{module}:{name}", options)


FREE_LOG = _prior("LogDistance", exponents="free")


def _margin(tolerance: float) -> Part:
    """Exponents above 1 + delta, where delta is what the theory stage finds for this tolerance of far-mass growth."""
    return _prior("LogDistance", exponents="margin", tolerance=tolerance)


_ROWS = (
    Arm("rope", "B0, softmax", rotation=ROPE, yarn=True),
    Arm("rope-logn", "log-n softmax", rotation=ROPE, log_n=True),
    Arm("nope", "no position; control"),
    Arm("grape-m", "GRAPE-M", rotation=Part(f"{ROTARY}:LearnedFrequencies", {"base": 10_000.0})),
    Arm("log", "P1, log bias", rotation=ROPE, log_prior=FREE_LOG),
    Arm("log-fixed", "P2", rotation=ROPE, log_prior=_prior("LogDistance", exponents="fixed")),
    Arm("kerple", "P3, KERPLE", rotation=ROPE, log_prior=_prior("Kerple")),
    Arm("alibi", "P4, ALiBi", rotation=ROPE, log_prior=_prior("ALiBi")),
    Arm("log-norope", "P5", log_prior=FREE_LOG),
    Arm("log-logn", "P6", rotation=ROPE, log_n=True, log_prior=FREE_LOG),
    Arm("log-gt1", "LC, exponent > 1", rotation=ROPE, log_prior=_prior("LogDistance", exponents="above-one")),
    Arm("log-lt1", "LC, exponent < 1", rotation=ROPE, log_prior=_prior("LogDistance", exponents="below-one")),
    Arm("log-margin-t050", "P1, exponent >= 1 + delta(.05)", rotation=ROPE, log_prior=_margin(0.05)),
    Arm("log-margin-t020", "P1, exponent >= 1 + delta(.02)", rotation=ROPE, log_prior=_margin(0.02)),
    Arm("log-margin-t005", "P1, exponent >= 1 + delta(.005)", rotation=ROPE, log_prior=_margin(0.005)),
    Arm("fox", "FoX", log_prior=_prior("ForgetGate", PATH)),
    Arm("cable", "CABLE", log_prior=_prior("Cable", PATH)),
    Arm("cable-lr", "CABLE, default lr", log_prior=_prior("Cable", PATH), position_lr=1.0),
    Arm("grape-a", "GRAPE-A", log_prior=_prior("GrapeA", GRAPE)),
    Arm("grape-ap", "GRAPE-AP", log_prior=_prior("GrapeAP", GRAPE)),
    Arm("goat", "Goat", log_prior=_prior("Goat", FOURIER)),
    Arm("ot-50", "O1 at .5", rotation=ROPE, transport=Transport(0.5)),
    Arm("ot-75", "O1", rotation=ROPE, transport=Transport(0.75)),
    Arm("alibi-ot", "O2", rotation=ROPE, log_prior=_prior("ALiBi"), transport=Transport(0.75)),
)  # fmt: skip

ARMS: Mapping[str, Arm] = MappingProxyType({arm.key: arm for arm in _ROWS})
