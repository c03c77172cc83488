"""The command that makes a file of the pipeline anew, for the end of an error message."""

from pathlib import Path


def rebuild_command(path: str | Path) -> str:
    """Return the command that makes `path` anew, at the scale whose folder it lies in."""
    # Inside the function: errors are rare, and the module behind it is slow to import.
    from causal_priors.config import SCALES

    scale = next((part for part in Path(path).parts if (SCALES / f"{part}.yaml").is_file()), None)
    config = f" --config scale={scale}" if scale else ""
    return f"snakemake --cores all --force {path}{config}"


def rebuild(path: str | Path) -> str:
    """Return the advice to make `path` anew."""
    return f"rebuild it: {rebuild_command(path)}"
