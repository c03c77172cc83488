"""Whether an evaluation table is whole: every place that its stage measures, once, and no other.

Who leaves out the blocks, windows or heads that speak against a claim keeps every number that is left true to its copies.
What a table has to hold follows from the scale, the held-out documents and the table's own card: blocks x windows x bins
of losses, blocks x windows and layers x heads of far mass, layers x heads of exponents. `count`, by which means are
weighed, follows too. A table of a run that diverged holds nothing.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from causal_priors.arms import ARMS
from causal_priors.artifacts import read_json
from causal_priors.audit.data_chain import SHARDS
from causal_priors.audit.divergence import FINISHED
from causal_priors.audit.evidence import EVALUATION, Evidence, Table, dict_of
from causal_priors.audit.findings import Link
from causal_priors.audit.run_chain import rebuild
from causal_priors.data.shards import CARD, DOCUMENTS, DTYPE, FILES, HELDOUT, Span
from causal_priors.data.windows import plan_blocks
from causal_priors.errors import UserError
from causal_priors.runs import EVALUATION_FACTORS, Run, parse_run
from causal_priors.scale import Scale
from causal_priors.tables import iter_table

QUANTITIES = ("exponent", "loss", "far_mass", "far_mass_head")
_PLACE = ["length", "block", "window", "bin", "far_window", "layer", "head", "count"]
# Variants by YaRN ramp. "paper" is the registered one, which no card of a registered arm can do without.
_YARN = {"paper": "yarn", "code": "yarn-code"}
_FULL = EVALUATION_FACTORS[-1]


def check_complete(link: Link, evidence: Evidence, scale: Scale) -> None:
    """Compare the places of every table's rows with those that its stage measures."""
    whole = _Whole(link, evidence, scale)
    for table in evidence.tables:
        with link.reading():
            whole.check(table)


class _Whole:
    def __init__(self, link: Link, evidence: Evidence, scale: Scale) -> None:
        self.link, self.evidence, self.scale = link, evidence, scale

    def check(self, table: Table) -> None:
        again = rebuild(self.evidence, table.run, table.name)
        if table.status != FINISHED:
            problem = f"has {len(table.frame)} rows of a run that {table.status}"
            self.link.expect(table.frame.empty, table.file, problem, again)
            return
        try:
            run = parse_run(table.run, self.scale)
        except UserError:
            # Said by the link of rows.
            return
        blocks = self._blocks(run, table)
        variants, factors = _asked(table, run)
        wanted = pd.concat(
            [_measured(run, self.scale, blocks, factors).assign(variant=name) for name in variants], ignore_index=True
        )
        budget = run.budget(self.scale)
        found = table.frame[["variant", "quantity", *_PLACE]]
        if table.name == EVALUATION and (found["quantity"] == "exponent").any():
            census = _places("exponent", 0, -1, 1, layer=budget.depth, head=budget.heads)
            wanted = pd.concat([wanted, census.assign(variant="plain")], ignore_index=True)
        problem = _difference(found, wanted, blocks)
        self.link.expect(not problem, table.file, problem, again)

    def _blocks(self, run: Run, table: Table) -> int:
        """How many blocks the scale and the held-out documents give; without these, as many as the table begins with."""
        if self._heldout is None:
            most = self.scale.evaluation_tokens // (_FULL * run.train_length(self.scale))
            named = table.frame["block"].nunique() - 1
            return min(most, max(self.scale.minimum_blocks, named))
        documents, ids, source = self._heldout
        packed = table.card["parameters"].get("packed") is True
        plan = plan_blocks(documents, ids, run.train_length(self.scale), self.scale, packed, source)
        return len(plan.starts)

    @cached_property
    def _heldout(self) -> tuple[list[Span], int, str] | None:
        """Held-out documents, how many ids their file has, and where that is written."""
        folder = self.evidence.file(SHARDS)
        if not (folder / CARD).is_file() or not (folder / DOCUMENTS).is_file():
            problem = "is not there: how many blocks a table has to hold cannot be told"
            self.link.absent(folder / DOCUMENTS, problem, self.evidence.rebuild(f"{SHARDS}/{CARD}"))
            return None
        with self.link.reading():
            files = dict_of(dict_of(read_json(folder / CARD), folder / CARD).get("files"), folder / CARD)
            size = dict_of(files.get(FILES[HELDOUT]), folder / CARD).get("bytes")
            spans = [
                Span(*row)
                for part in iter_table(folder / DOCUMENTS, "documents")
                for split, *row in zip(part["split"], part["document"], part["offset"], part["tokens"], strict=True)
                if split == HELDOUT
            ]
            return spans, size // DTYPE.itemsize if isinstance(size, int) else 0, str(folder)
        return None


def _asked(table: Table, run: Run) -> tuple[list[str], list[int]]:
    """Variants and multiples of L that a table's card asks for; what is registered it cannot leave out."""
    parameters = table.card["parameters"]
    if table.name != EVALUATION:
        told = parameters.get("factors")
        asked = [factor for factor in EVALUATION_FACTORS if factor == _FULL or factor in _list(told)]
        return ["plain", str(parameters.get("edit"))], asked
    # Cards do not name which arms of one's own are measured under YaRN.
    registered = run.arm in ARMS
    yarn = ARMS[run.arm].yarn if registered else bool((table.frame["variant"] != "plain").any())
    told = [*_list(parameters.get("yarn_ramps")), *(["paper"] if registered else [])]
    return ["plain", *(_YARN[ramp] for ramp in _YARN if yarn and ramp in told)], list(EVALUATION_FACTORS)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _measured(run: Run, scale: Scale, blocks: int, factors: Sequence[int]) -> pd.DataFrame:
    """Places of losses and far mass of one variant."""
    return pd.concat(list(_measurements(run, scale, blocks, factors)), ignore_index=True)


def _measurements(run: Run, scale: Scale, blocks: int, factors: Sequence[int]) -> Iterator[pd.DataFrame]:
    short, budget = run.train_length(scale), run.budget(scale)
    heads = {"layer": budget.depth, "head": budget.heads}
    for factor in factors:
        windows = {"block": blocks, "window": _FULL // factor}
        ends = [short * end for end in EVALUATION_FACTORS if end <= factor]
        losses = _places("loss", factor * short, -1, 0, **windows, bin=len(ends))
        yield losses.assign(count=np.diff([0, *ends])[losses["bin"]])
        for far in (short // 8, short):
            yield _places("far_mass", factor * short, far, budget.depth * budget.heads * far, **windows)
            yield _places("far_mass_head", factor * short, far, blocks * (_FULL // factor) * far, **heads)


def _places(quantity: str, length: int, far_window: int, count: int, **axes: int) -> pd.DataFrame:
    """One row for each place along `axes` (column: how many); columns that are no axis hold -1."""
    place = dict(zip(axes, np.indices(tuple(axes.values())).reshape(len(axes), -1), strict=True))
    told = {"length": length, "far_window": far_window, "count": count}
    rows = pd.DataFrame({**place, "quantity": quantity, **told})
    return rows.assign(**{key: -1 for key in _PLACE if key not in rows})


def _difference(found: pd.DataFrame, wanted: pd.DataFrame, blocks: int) -> str:
    """What is wrong with the rows found; empty where they are those wanted, in any order."""
    keys = ["variant", "quantity", *_PLACE]
    if np.array_equal(_sorted(found, wanted), _sorted(wanted, wanted)):
        return ""
    some, all_ = (Counter(frame[keys].itertuples(index=False, name=None)) for frame in (found, wanted))
    for rest, verb in ((all_ - some, "lacks"), (some - all_, "has besides what it should")):
        if rest:
            first = next(iter(rest))
            place = [f"{key} {value}" for key, value in zip(keys, first, strict=True) if value not in (-1, None)]
            return f"{verb} {rest.total()} rows of its {blocks} blocks, first: {', '.join(place)}"
    return ""


def _sorted(frame: pd.DataFrame, wanted: pd.DataFrame) -> np.ndarray:
    """Rows as numbers, sorted. A text that no wanted row has is -1, a number that is not there NaN, which equals none."""
    texts = [pd.Categorical(frame[key], wanted[key].unique()).codes for key in ("variant", "quantity")]
    numbers = [frame[key].to_numpy(np.float64, na_value=np.nan) for key in _PLACE]
    rows = np.column_stack([*texts, *numbers])
    return rows[np.lexsort(rows.T)]
