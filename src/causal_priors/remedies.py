"""The command that makes a file of the pipeline anew, for the end of an error message."""

from pathlib import Path


def rebuild_command(path: str | Path) -> str:
    """Return the command that makes `path` anew, at the scale whose folder it lies in, in the results where that lies."""
    # Inside the function: errors are rare, and the module behind it is slow to import.
    from causal_priors.config import SCALES

    path = Path(path)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    parts = path.parts
    place = next((place for place, part in enumerate(parts) if (SCALES / f"{part}.yaml").is_file()), None)
    if place is None:
        return f"snakemake --cores all --force {path}"
    results = Path(*parts[:place])
    elsewhere = "" if results in (Path("results"), Path()) else f" results={results}"
    return f"snakemake --cores all --force {path} --config scale={parts[place]}{elsewhere}"


def rebuild(path: str | Path) -> str:
    """Return the advice to make `path` anew."""
    return f"rebuild it: {rebuild_command(path)}"
