"""Numbers that evaluation tables hold twice, and whether their copies agree.

In a causal model what follows cannot matter, so the first L positions of a window of 8L score as the same positions of a
window of L; the far mass of all heads is the mean of the heads' own; an intervention measures the unchanged checkpoint
again, and leaves positions up to L as they were; training logged the exponents that evaluation reads. Who changes one
number and all digests above it must change its copies too.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from causal_priors.audit.divergence import FINISHED
from causal_priors.audit.evidence import EVALUATION, Evidence, Table
from causal_priors.audit.findings import Link
from causal_priors.audit.run_chain import POSITIONS, rebuild
from causal_priors.runs import EVALUATION_FACTORS
from causal_priors.tables import read_table

# How far copies may differ: float32 against float64, and other shapes of a product. Seen at micro: 2.5e-7.
AGREE = 1e-4
_NUMBERS = ["length", "block", "window", "bin", "far_window", "layer", "head", "value"]
_PLACE = ["quantity", "length", "block", "window", "bin", "far_window"]


def check_copies(link: Link, evidence: Evidence) -> None:
    """Compare every number that stands twice. One comparison of the link is one kind of copy in one table."""
    tables = [table for table in evidence.tables if table.status == FINISHED]
    if tables:
        found = _Copies(link, evidence, tables)
        found.shorter_windows()
        found.heads()
        found.exponents()
        found.interventions()


class _Copies:
    """All rows of all tables in one frame. `table` and `run` are numbers, `factor` is length / L, texts are codes."""

    def __init__(self, link: Link, evidence: Evidence, tables: Sequence[Table]) -> None:
        self.link, self.evidence, self.tables = link, evidence, tables
        names = sorted({table.run for table in tables})
        parts = []
        for number, table in enumerate(tables):
            part = table.frame[[*_NUMBERS, "variant", "quantity"]]
            factor = table.frame["length"] // table.frame["train_length"].clip(lower=1)
            parts.append(part.assign(table=number, run=names.index(table.run), factor=factor))
        self.rows = pd.concat(parts, ignore_index=True)
        for text in ("variant", "quantity"):
            self.rows[text] = self.rows[text].astype("category")
        self.first = [table.name == EVALUATION for table in tables]

    def _of(self, *quantities: str) -> pd.DataFrame:
        return self.rows[self.rows["quantity"].isin(quantities)]

    def _compare(self, left: pd.DataFrame, right: pd.DataFrame, keys: list[str], problem: str) -> None:
        """Compare `value` of rows with equal `keys`; tables of `left` whose rows differ, or have no copy, are broken."""
        both = left.merge(right, on=keys, how="left", suffixes=("", "_again"))
        apart = (both["value"] - both["value_again"]).abs()
        # NaN agrees with nothing.
        both["apart"] = np.where(apart.isna(), np.inf, apart)
        for _, place in both.groupby("table")["apart"].idxmax().items():
            row = both.loc[place]
            table = self.tables[int(row["table"])]
            where = ", ".join(f"{key} {row[key]}" for key in keys if key not in ("table", "run"))
            text = f"{problem} ({where}: {row['value']:.6g} and {row['value_again']:.6g})"
            again = rebuild(self.evidence, table.run, table.name)
            self.link.expect(bool(row["apart"] <= AGREE), table.file, text, again)

    def shorter_windows(self) -> None:
        """The same positions after the same text in windows of other lengths. YaRN is set anew for each length."""
        losses = self._of("loss")
        losses = losses[~losses["variant"].astype(str).str.startswith("yarn")]
        for number, base in enumerate(EVALUATION_FACTORS[:-1]):
            rows = losses[losses["bin"] == number]
            short = rows[rows["factor"] == base]
            for factor in EVALUATION_FACTORS[number + 1 :]:
                # An intervention is measured at 8 L alone.
                long = rows[(rows["factor"] == factor) & rows["table"].isin(short["table"])]
                # Window w of the longer ones begins where window w * factor / base of the shorter ones does.
                long = long.assign(window=long["window"] * (factor // base))
                problem = f"scores bin {number} at {factor} L unlike the same positions at {base} L"
                self._compare(long, short, ["table", "variant", "block", "window"], problem)

    def heads(self) -> None:
        """Far mass per window and far mass per head: the same mean."""
        keys = ["table", "variant", "length", "far_window"]
        means = [
            pd.DataFrame(self._of(quantity).groupby(keys, observed=True, as_index=False)["value"].mean())
            for quantity in ("far_mass", "far_mass_head")
        ]
        for one, other in (means, reversed(means)):
            self._compare(one, other, keys, "has a far mass that is not the mean of its heads")

    def exponents(self) -> None:
        """Exponents of the checkpoint, and those that training logged after its last step."""
        found, logged, there = self._of("exponent"), [], []
        for number, table in enumerate(self.tables):
            path = self.evidence.output(table.run, POSITIONS) if self.first[number] else None
            if path is not None and path.is_file():
                with self.link.reading():
                    log = read_table(path, "positions")
                    last = log[(log["quantity"] == "exponent") & (log["step"] == log["step"].max())]
                    logged.append(last[["layer", "head", "value"]].assign(table=number))
                    there.append(number)
        if logged:
            problem = f"has other exponents than {POSITIONS} logged last"
            known, keys = pd.concat(logged), ["table", "layer", "head"]
            self._compare(found[found["table"].isin(there)], known, keys, problem)
            self._compare(known, found, keys, problem)

    def interventions(self) -> None:
        """An intervention before its edit and the evaluation; and after it, up to L, and before it."""
        rows = self._of("loss", "far_mass")
        evaluated = rows["table"].map(dict(enumerate(self.first))).to_numpy(bool)
        plain = (rows["variant"].astype(str) == "plain").to_numpy()
        # A snapshot has the tables that verdicts name: of some runs the intervention alone.
        known = rows["run"].isin(rows.loc[evaluated, "run"])
        before = rows[~evaluated & plain]
        problem = f"measured its checkpoint unlike {EVALUATION} did"
        self._compare(rows[~evaluated & plain & known], rows[evaluated & plain], ["run", *_PLACE], problem)
        untouched = rows[~evaluated & ~plain & (rows["bin"] == 0)]
        self._compare(untouched, before, ["table", *_PLACE], "has an edit that moved positions up to L")
