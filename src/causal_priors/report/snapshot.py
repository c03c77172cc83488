"""A snapshot of a finished study to look at without running it: `results/reference/{scale}/`, kept in the repository.

No rule of the pipeline reads or writes it, so a fresh clone's file times cannot make anything rerun. It holds what an
audit needs to recompute the verdicts (`python -m causal_priors audit`), but neither texts, tokens nor weights.
"""

from pathlib import Path

from causal_priors.artifacts import read_json, write_bytes, write_json, write_text
from causal_priors.data.corpus import CARD, read_corpus_card
from causal_priors.errors import refuse
from causal_priors.exploratory import PAGE, TABLES
from causal_priors.prereg.verdict_tables import read_verdicts
from causal_priors.report.figures import FIGURES
from causal_priors.report.kept import keep_tables
from causal_priors.report.timings import timing_table
from causal_priors.tables import iter_table

# Rows of every head at every length or step: the page has what they come to.
_LARGE = {"exponents", "far-mass"}
FILES = (
    *(f"verdicts.{kind}" for kind in ("json", "parquet", "csv", "md")),
    *(f"tables/{name}.{kind}" for name in ("summary", "source") for kind in ("csv", "md")),
    f"tables/exploratory/{PAGE}",
    *(f"tables/exploratory/{name}.csv" for name in TABLES if name not in _LARGE),
    *(f"figures/{figure.name}.svg" for figure in FIGURES),
    "theory/margins.json",
    *(f"theory/theory.{kind}" for kind in ("parquet", "csv")),
    "data/index.parquet",
    "data/tokenizer.json",
    *(f"data/shards/{name}" for name in ("card.json", "documents.parquet")),
)
RUNS, CORPUS_CARD = "runs.json", "data/corpus-card.json"


def snapshot(folder: str | Path, target: str | Path) -> list[str]:
    """Copy the tables of the study in `folder` to `target`; list the files.

    All run cards lie in `runs.json`, the tables that verdicts name in `evaluations` (see kept.py), the default corpus's
    card beside the index that was made from it. Raises `UserError` where the study is not finished.
    """
    source, out = Path(folder), Path(target)
    if missing := [name for name in FILES if not (source / name).is_file()]:
        remedy = f"finish the study first: snakemake --cores all --config scale={source.name}"
        raise refuse("is not there", file=source / missing[0], remedy=remedy)
    for name in FILES:
        write_bytes(out / name, (source / name).read_bytes())
    cards = sorted(source.glob("runs/*/run.json"))
    write_json(out / RUNS, {card.parent.name: read_json(card) for card in cards})
    write_text(out / "timings.md", timing_table(source))
    named = sorted({name for record in read_verdicts(source / "verdicts.json") for name in record["inputs"]})
    kept = keep_tables([source / "runs" / name for name in named], out)
    if corpus := default_card(source):
        write_bytes(out / CORPUS_CARD, corpus.read_bytes())
    return [*FILES, RUNS, "timings.md", *kept, *([CORPUS_CARD] if corpus else [])]


def default_card(folder: Path) -> Path | None:
    """Return the default corpus's card if the study in `folder` was made from it and it is still there."""
    card = folder.parent / "corpus" / "default" / CARD
    if not card.is_file():
        return None
    names = {document for rows in iter_table(folder / "data/index.parquet", "corpus") for document in rows["document"]}
    return card if names == read_corpus_card(card)[0].keys() else None
