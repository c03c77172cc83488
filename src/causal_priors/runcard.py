"""A run card: which bytes and which code made an artefact. It lies beside the artefact and holds digests only.

Cards hold no time, host name or absolute path, so that a rerun writes the same card; times go into sidecars.
"""

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from causal_priors import __version__
from causal_priors.artifacts import sha256_file

CARD_VERSION = "1"
_RECORDED = ("numpy", "pandas", "pyarrow", "safetensors", "tiktoken", "tokenizers", "torch")


def card(
    stage: str,
    *,
    inputs: Mapping[str, str | Path],
    outputs: Mapping[str, str | Path],
    parameters: Mapping[str, Any],
    code: str,
) -> dict[str, Any]:
    """Return the card of an artefact: sha256 of each input and output, parameters, code digest, versions.

    Keys of `inputs` and `outputs` are names for readers; values are the files. Raises `UserError` where one is missing.
    """
    return {
        "card_version": CARD_VERSION,
        "stage": stage,
        "inputs": {name: sha256_file(path) for name, path in inputs.items()},
        "outputs": {name: sha256_file(path) for name, path in outputs.items()},
        "parameters": dict(parameters),
        "code": code,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions that numbers may depend on."""
    found = {"causal-priors": __version__, "python": platform.python_version(), "machine": platform.machine()}
    for name in _RECORDED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
