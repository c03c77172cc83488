"""What makes a training run the run it is: the part of its card that is known before training, and its fingerprint.

Where and how fast it is computed (processes, micro-batches) is no part of either; the kind of device is one of the
fingerprint, since a resume state continues on the kind it was made on.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from causal_priors import runcard
from causal_priors.arms import Arm
from causal_priors.artifacts import digest_of
from causal_priors.runs import Run
from causal_priors.scale import Scale


def request_of(run: Run, scale: Scale, arm: Arm, shards: Path, code: str, margins: Path | None) -> dict[str, Any]:
    """Build the part of the run's card that is known before training."""
    inputs = {"shards": shards / "card.json", **({"margins": margins} if margins else {})}
    parameters = {
        "run": run.name(scale),
        "scale": scale.digest(),
        "arm": arm.resolved(),
        "init_seed": run.init_seed,
        "data_seed": run.data_seed,
        "margins": _margins(margins) if margins else None,
    }
    card = runcard.card("train", inputs=inputs, outputs={}, parameters=parameters, code=code)
    return {key: card[key] for key in ("inputs", "parameters", "code", "versions")}


def _margins(path: Path) -> dict[str, float]:
    # Inside the function: the margins are data here, and theory's code has a stage of its own.
    from causal_priors.theory.margin import read_margins

    return read_margins(path)


def fingerprint_of(request: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Return what a resume state must agree on to be taken up."""
    parts = {
        **request["inputs"],
        **request["parameters"],
        **request["versions"],
        "code": request["code"],
        "device": device,
    }
    return {key: value if isinstance(value, str) else digest_of(value) for key, value in parts.items()}
