"""A preregistered reproduction of a study of positional priors in causal attention."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from causal_priors.loading import load_run as load_run

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # On first use: loading a run needs torch, and most of what imports this package does not.
    if name != "load_run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from causal_priors.loading import load_run

    return load_run
