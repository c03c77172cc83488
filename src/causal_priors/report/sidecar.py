"""Timing sidecars: what a job wrote about its own times, beside its artefact and outside every digest."""

import math
from pathlib import Path

from causal_priors.artifacts import read_json
from causal_priors.errors import refuse

# What readers take from one; a sidecar may say more.
TIMES = ("seconds_per_step", "cpu_seconds", "startup_cpu_seconds", "steps_here", "peak_memory_mb")
_REMEDY = "remove the file: no result rests on it"


def read_timing(path: Path) -> dict[str, float]:
    """Return those of `TIMES` that a sidecar gives, by name; none where there is no file.

    CPU seconds may be given by part, of which "startup" is one; they are summed. Raises `UserError` for a file of another
    form.
    """
    if not path.is_file():
        return {}
    found = read_json(path, _REMEDY)
    if not isinstance(found, dict):
        raise refuse("is no timing sidecar: it holds no mapping", file=path, remedy=_REMEDY)
    if isinstance(parts := found.get("cpu_seconds"), dict):
        times = {f"cpu_seconds.{part}": _time(path, f"cpu_seconds.{part}", value) for part, value in parts.items()}
        startup = times.get("cpu_seconds.startup", 0.0)
        found = {**found, "cpu_seconds": sum(times.values()), "startup_cpu_seconds": startup}
    return {key: _time(path, key, found[key]) for key in TIMES if found.get(key) is not None}


def _time(path: Path, key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise refuse("is no time", file=path, key=key, value=value, remedy=_REMEDY)
    return float(value)
