"""A snapshot of a finished study to look at without running it: `results/reference/{scale}/`, kept in the repository.

No rule of the pipeline reads or writes it, so a fresh clone's file times cannot make anything rerun.
"""

from pathlib import Path

from causal_priors.artifacts import read_json, write_bytes, write_json, write_text
from causal_priors.errors import refuse
from causal_priors.exploratory import PAGE, TABLES
from causal_priors.report.timings import timing_table

# Rows of every head at every length or step: the page has what they come to.
_LARGE = {"exponents", "far-mass"}
FILES = (
    *(f"verdicts.{kind}" for kind in ("json", "parquet", "csv", "md")),
    *(f"tables/{name}.{kind}" for name in ("summary", "source") for kind in ("csv", "md")),
    f"tables/exploratory/{PAGE}",
    *(f"tables/exploratory/{name}.csv" for name in TABLES if name not in _LARGE),
    "theory/margins.json",
    *(f"theory/theory.{kind}" for kind in ("parquet", "csv")),
    "data/shards/card.json",
)


def snapshot(folder: str | Path, target: str | Path) -> list[str]:
    """Copy the tables of the study in `folder` to `target`, with all run cards in `runs.json` and the times; list them.

    Raises `UserError` where the study is not finished.
    """
    source, out = Path(folder), Path(target)
    if missing := [name for name in FILES if not (source / name).is_file()]:
        remedy = f"finish the study first: snakemake --cores all --config scale={source.name}"
        raise refuse("is not there", file=source / missing[0], remedy=remedy)
    for name in FILES:
        write_bytes(out / name, (source / name).read_bytes())
    cards = sorted(source.glob("runs/*/run.json"))
    write_json(out / "runs.json", {card.parent.name: read_json(card) for card in cards})
    write_text(out / "timings.md", timing_table(source))
    return [*FILES, "runs.json", "timings.md"]
