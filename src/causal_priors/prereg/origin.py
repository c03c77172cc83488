"""Where tables come from, as their cards say: what is scored together is of one corpus, and a run's of one training."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from causal_priors.errors import UserError, refuse
from causal_priors.scale import Scale
from causal_priors.tables import read_metadata

Cards = Mapping[Path, dict[str, dict[str, Any]]]
_SHARDS, _RUN = "shards", "run.json"


def check_there(files: Iterable[Path]) -> None:
    """Raise `UserError` for a path that leads to no file: a misspelt one would be ignored like a run of one's own."""
    for path in files:
        if not path.is_file():
            raise refuse("is no file", file=path, remedy="give tables that are there: RESULTS/SCALE/runs/*/*.parquet")


def read_cards(files: Iterable[Path]) -> Cards:
    """Return the cards of tables of kind "evaluation", each read once. Raises `UserError` for one that is no card."""
    return {path: _card(path) for path in files}


def check_one_origin(cards: Cards) -> None:
    """Raise `UserError` where tables were measured on different shards, or where those of one run name several run cards.

    cards: those of tables in run folders. One without a card says nothing.
    """
    corpus: dict[str, Path] = {}
    trainings: dict[tuple[str, str], Path] = {}
    for path, card in cards.items():
        inputs = card["inputs"]
        if _SHARDS in inputs:
            corpus.setdefault(inputs[_SHARDS], path)
        if _RUN in inputs:
            trainings.setdefault((path.parent.name, inputs[_RUN]), path)
        if len(corpus) > 1:
            first = next(iter(corpus.values()))
            raise refuse(f"was measured on other shards than {first}", file=path, remedy="score tables of one corpus")
        of_run = [other for (run, _), other in trainings.items() if run == path.parent.name]
        if len(of_run) > 1:
            problem = f"was measured from another checkpoint of the run than {of_run[0]}"
            raise refuse(problem, file=path, remedy="measure both again: the run was trained anew between them")


def check_one_scale(cards: Cards, scale: Scale) -> None:
    """Raise `UserError` for a table that was measured at another scale, as its card says."""
    for path, card in cards.items():
        found = card["parameters"].get("scale")
        if found is not None and found != scale.digest():
            remedy = f"name its own scale, or measure it again: scale {scale.name} has digest {scale.digest()[:12]}"
            raise refuse("was measured at another scale", file=path, key="scale", value=found, remedy=remedy)


def _card(path: Path) -> dict[str, dict[str, Any]]:
    """Inputs (digests by name) and parameters of a table's card, both empty where it has none."""
    text = read_metadata(path, "evaluation").get("card")
    try:
        card: Any = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        raise _unreadable(path) from None
    if not isinstance(card, dict):
        raise _unreadable(path)
    parts: dict[str, Any] = {name: card.get(name, {}) for name in ("inputs", "parameters")}
    if not all(isinstance(part, dict) for part in parts.values()):
        raise _unreadable(path)
    if not all(isinstance(sha, str) for sha in parts["inputs"].values()):
        raise _unreadable(path)
    return parts


def _unreadable(path: Path) -> UserError:
    return refuse("has no readable card in its metadata", file=path, remedy="measure it again")
