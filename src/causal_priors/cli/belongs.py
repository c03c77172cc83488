"""Do the files that a command is given belong together? Asked before a stage begins; damage is the stage's to find."""

from pathlib import Path

from causal_priors.artifacts import read_json, sha256_file
from causal_priors.errors import refuse
from causal_priors.remedies import rebuild
from causal_priors.scale import Scale


def check_corpus_of_run(folder: Path, shards: Path) -> None:
    """Raise `UserError` where the checkpoint in `folder` was trained on other shards than those in `shards`."""
    run, corpus = folder / "run.json", shards / "card.json"
    if not (run.is_file() and corpus.is_file()):
        return
    card = read_json(run)
    inputs = card.get("inputs") if isinstance(card, dict) else None
    trained = inputs.get("shards") if isinstance(inputs, dict) else None
    if trained is not None and trained != sha256_file(corpus):
        problem = f"was trained on other shards than {corpus}"
        raise refuse(problem, file=run, remedy=f"name its own, or train it on these: {rebuild(run)}")


def check_scale_of_margins(margins: Path, scale: Scale) -> None:
    """Raise `UserError` where the margins in the file were selected for other lengths than the scale's."""
    length = scale.sizes["S"].train_length
    card = read_json(margins, rebuild(margins))
    inputs = card.get("inputs") if isinstance(card, dict) else None
    found = inputs.get("n0") if isinstance(inputs, dict) else None
    if found is not None and found != length:
        problem = f"were selected for L = {found}, and scale {scale.name} trains at {length}"
        raise refuse(problem, file=margins, key="n0", value=found, remedy=f"use the margins of scale {scale.name}")
