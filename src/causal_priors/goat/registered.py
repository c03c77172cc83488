"""The design of experiment 0006 from its sealed protocol.

Apart from the design itself, so that how a register is read is no part of what trained models depend on.
"""

from pathlib import Path
from typing import Any

from causal_priors.arms import ARMS, Arm
from causal_priors.errors import refuse
from causal_priors.goat import EXPERIMENT
from causal_priors.goat.design import CopyTest, Design, RetrievalTest, SinkTest
from causal_priors.goat.mixture import Mixture
from causal_priors.prereg.exploratory import load_exploratory
from causal_priors.scale import Scale


def load_design(preregistration: str | Path, scale: Scale) -> Design:
    """Return the design at `scale`, after checking the protocol's seal.

    Raises `UserError` where the protocol is missing, changed, names no arm of the table or has no sizes for `scale`.
    """
    protocol = load_exploratory(preregistration, EXPERIMENT)
    file, data = protocol.folder / "protocol.yaml", protocol.data
    if unknown := [key for key in data["arms"] if key not in ARMS]:
        raise refuse("is not an arm", file=file, key="arms", value=unknown[0])
    if scale.name not in data["scales"]:
        known = ", ".join(data["scales"])
        raise refuse(f"has no sizes for scale {scale.name}", file=file, key="scales", remedy=f"use {known}")
    sizes = data["scales"][scale.name]
    copy, retrieval, sinks = (_tuples(sizes[key]) for key in ("copy", "retrieval", "sinks"))
    mixture = Mixture(*(copy.pop(key) for key in ("vocabulary", "first", "previous")))
    return Design(
        scale=scale,
        arms=tuple(data["arms"]),
        seed=data["seed"],
        copy=CopyTest(mixture=mixture, **copy),
        retrieval=RetrievalTest(**retrieval),
        sinks=SinkTest(**sinks),
        predictions=tuple(data["predictions"]),
        seal=protocol.seal,
    )


def probed_arm(key: str, design: Design) -> Arm:
    """Return the row of an arm of this experiment. Raises `UserError` for another."""
    if key not in design.arms:
        raise refuse("is not an arm of experiment 0006", value=key, remedy=f"its arms are {', '.join(design.arms)}")
    return ARMS[key]


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
