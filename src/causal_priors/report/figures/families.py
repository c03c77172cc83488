"""Which arms stand together in a panel, and the colour and marker that an arm keeps in every figure.

Two dozen lines cannot share one panel: each family gets its own, with all others as grey context. The arms of the
larger size fit into one, so their colours differ from one another across families.
"""

from dataclasses import dataclass

from causal_priors.report.figures.theme import COLOURS, INK, MARKERS

BASELINE = "rope"
OWN = "Exploratory arms"


@dataclass(frozen=True)
class Family:
    """A group of arms with a title for readers."""

    title: str
    arms: tuple[str, ...]


FAMILIES = (
    Family("Rotations and no position", ("rope", "rope-logn", "grape-m", "nope")),
    Family("Power laws of distance", ("log", "log-fixed", "kerple", "log-norope", "log-logn")),
    Family(
        "Power laws with bounded exponents",
        ("log-gt1", "log-lt1", "log-margin-t050", "log-margin-t020", "log-margin-t005"),
    ),
    Family("Linear and Fourier", ("alibi", "goat")),
    Family("Bias from the tokens", ("fox", "cable", "cable-lr", "grape-a", "grape-ap")),
    Family("Transport", ("ot-50", "ot-75", "alibi-ot")),
)

_SLOTS = {
    "rope-logn": 0,
    "grape-m": 1,
    "nope": 2,
    "log": 0,
    "log-fixed": 1,
    "kerple": 2,
    "log-norope": 3,
    "log-logn": 4,
    "log-gt1": 1,
    "log-lt1": 2,
    "log-margin-t050": 0,
    "log-margin-t020": 3,
    "log-margin-t005": 4,
    "alibi": 5,
    "goat": 1,
    "fox": 0,
    "cable": 3,
    "cable-lr": 4,
    "grape-a": 2,
    "grape-ap": 1,
    "ot-50": 0,
    "ot-75": 1,
    "alibi-ot": 2,
}
# In order, after rope: the arms of a size that trains few of them.
TOGETHER = ("rope", "cable", "cable-lr", "alibi", "log", "log-gt1", "log-lt1")


@dataclass(frozen=True)
class Look:
    """How an arm is drawn."""

    colour: str
    marker: str


def look(arm: str, number: int = 0) -> Look:
    """Colour and marker of an arm; `number` is the place of an arm of one's own among its like."""
    if arm == BASELINE:
        return Look(INK, "o")
    slot = _SLOTS.get(arm, number % len(COLOURS))
    return Look(COLOURS[slot], MARKERS[slot])


def families(known: set[str]) -> list[Family]:
    """Families with the arms that are in `known`, arms of one's own last; families without any are left out."""
    placed = {arm for family in FAMILIES for arm in family.arms}
    own = Family(OWN, tuple(sorted(known - placed)))
    kept = [Family(family.title, tuple(arm for arm in family.arms if arm in known)) for family in (*FAMILIES, own)]
    return [family for family in kept if family.arms]
