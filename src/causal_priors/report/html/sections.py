"""The parts of the page below the board: swaps, theory, runs, arms, seals, environment."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from causal_priors.arms import ARMS, Part
from causal_priors.artifacts import read_json
from causal_priors.prereg.ledger import Amendment
from causal_priors.prereg.seal import SEAL
from causal_priors.prereg.terms import REGISTERED, Protocol
from causal_priors.report.data import PREDICTED
from causal_priors.report.html.board import Table, cell, number
from causal_priors.runs import Run
from causal_priors.scale import Scale

# What a result of the theory table says, for its heading.
THEORY = {
    "amplitude": "Amplitude: transport of constant scores scales its rows by a factor that tends to a constant",
    "profile": "Profile: the plan at half of the row tends to the exact profile",
    "window mass": "Window mass: what the nearest keys keep under transport of constant scores",
    "bounded scores": "Bounded scores: how far random scores within ±M move the plan from that of constant scores",
    "dilution": "Dilution: window mass and far mass of power laws, with bounds and limits",
    "far mass": "Far mass of arms whose prior fixes it, at the source's lengths",
    "far mass at this scale": "Far mass of the same arms, at this scale's lengths",
    "margin": "Margin: the smallest distance from one that keeps growth within a tolerance, at the source's lengths",
    "margin at this scale": "Margins chosen at this scale",
}


def swap_table(swaps: pd.DataFrame, resolutions: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """One row a bias swap, with what the page says of it."""
    found = []
    order = swaps.sort_values(["edit", "size", "status", "arm", "seed"], ascending=[True, False, False, True, True])
    for row in order.to_dict("records"):
        item = {str(name): value for name, value in row.items()} | {
            "apart": "" if row["status"] == REGISTERED else "exploratory"
        }
        for name in ("loss", "far"):
            change = row[f"{name}_after"] - row[f"{name}_before"]
            resolved = abs(change) >= resolutions[name].get(row["dtype"], 0.0)
            as_said = change * PREDICTED[row["edit"]] > 0
            item[f"{name}_change"] = number(change, 6 if name == "loss" else 4)
            item[f"{name}_word"] = "unresolved" if not resolved else "as predicted" if as_said else "the other way"
            item[f"{name}_kind"] = "open" if not resolved else "yes" if as_said else "no"
        found.append(item)
    return found


def theory_tables(theory: pd.DataFrame) -> list[Table]:
    """The theory table, one part a result."""
    found = []
    for result, rows in theory[theory["result"] != "classification"].groupby("result", sort=False):
        cells = [
            [
                row["quantity"],
                _length(row["n"]),
                cell(row["value"]),
                cell(row["limit"]),
                _percent(row["relative_error"]),
            ]
            for row in rows.to_dict("records")
        ]
        head = ("quantity", "n", "value", "limit or bound", "off it by")
        found.append(Table(THEORY.get(str(result), str(result)), head, cells))
    return found


def _length(n: float) -> str:
    return "–" if pd.isna(n) else f"{int(n):,}"


def _percent(error: float) -> str:
    return "–" if pd.isna(error) else f"{error:.2%}".replace("-", "−")


def classification(theory: pd.DataFrame) -> list[dict[str, str]]:
    """Does far mass stay bounded: one row an arm, as it is and under each edit."""
    found: dict[str, dict[str, str]] = {}
    for quantity in theory.loc[theory["result"] == "classification", "quantity"]:
        subject, _, answer = str(quantity).partition(": far mass bounded? ")
        arm, _, edit = subject.partition(" + ")
        found.setdefault(arm, {"arm": arm, "plain": "–", "cap": "–", "repair": "–"})[edit or "plain"] = answer
    return list(found.values())


@dataclass(frozen=True)
class RunRow:
    """Runs of one arm, size and training length. seeds: (seed, link to the card or "", status, title)."""

    size: str
    arm: str
    length: int
    apart: str
    experiments: str
    seeds: Sequence[tuple[int, str, str, str]]
    losses: Sequence[str]


def run_matrix(
    registered: Mapping[Run, Sequence[str]], lengths: pd.DataFrame, cards: Mapping[str, Mapping[str, Any]], scale: Scale
) -> list[RunRow]:
    """One row per arm, size and training length, registered ones first; means over seeds at L, 2L, 4L, 8L."""
    plain = lengths[lengths["variant"] == "plain"]
    users = {run.name(scale): ", ".join(names) for run, names in registered.items()}
    known = {(run.size, run.arm, run.train_length(scale), run.seed): (run.name(scale), "") for run in registered}
    for row in plain.drop_duplicates("run").to_dict("records"):
        key = (row["size"], row["arm"], int(row["train_length"]), int(row["seed"]))
        known.setdefault(key, (row["run"], row["status"]))
    found: dict[tuple[str, str, str, int], list[tuple[int, str]]] = {}
    for (size, arm, length, seed), (name, apart) in known.items():
        found.setdefault((apart, size, arm, length), []).append((seed, name))
    order = list(ARMS)
    return [
        RunRow(
            size,
            arm,
            length,
            apart,
            users.get(seeds[0][1], "none"),
            [_seed(seed, name, cards) for seed, name in sorted(seeds)],
            [_mean(plain, size, arm, length, factor) for factor in (1, 2, 4, 8)],
        )
        for (apart, size, arm, length), seeds in sorted(
            found.items(), key=lambda item: (item[0][0], item[0][1] == "C", _place(order, item[0][2]), item[0][3])
        )
    ]


def _place(order: Sequence[str], arm: str) -> int:
    return order.index(arm) if arm in order else len(order)


def _seed(seed: int, name: str, cards: Mapping[str, Mapping[str, Any]]) -> tuple[int, str, str, str]:
    if name not in cards:
        return seed, "", "missing", f"{name}: no run card"
    card = cards[name]
    size = f"{card['steps']} steps, {card['parameter_counts']['total']:,} parameters"
    title = f"{name}: {card['status']}, {size}, code {card['code'][:12]}"
    return seed, f"runs/{name}/run.json", card["status"], title


def _mean(plain: pd.DataFrame, size: str, arm: str, length: int, factor: int) -> str:
    chosen = plain[(plain["size"] == size) & (plain["arm"] == arm) & (plain["train_length"] == length)]
    losses = chosen.loc[chosen["length"] == factor * length, "loss"]
    return "–" if losses.empty or losses.isna().any() else f"{losses.mean():.3f}"


def arm_rows(lengths: pd.DataFrame) -> list[tuple[str, str, str]]:
    """(key, the source's name, what it is made of), registered arms first, then those of one's own that were run."""
    rows = []
    for arm in ARMS.values():
        parts = [_part(arm.rotation), "log-n score scale" if arm.log_n else "", _part(arm.log_prior)]
        parts.append(f"transport at strength {arm.transport.strength:g}" if arm.transport else "")
        rows.append((arm.key, arm.source_name, " + ".join(part for part in parts if part) or "no position at all"))
    own = sorted(set(lengths["arm"]) - set(ARMS))
    return rows + [(key, "–", "an arm of your own (exploratory)") for key in own]


def _part(part: Part | None) -> str:
    if part is None:
        return ""
    options = ", ".join(f"{name} {value}" for name, value in part.options.items())
    name = part.ref.partition(":")[2]
    return f"{name} ({options})" if options else name


def seal_rows(
    protocols: Iterable[Protocol], digests: Mapping[str, str], amendments: Mapping[str, Sequence[Amendment]]
) -> list[dict[str, Any]]:
    """One row a protocol: date and digest of its seal, and what was added since."""
    rows = []
    for protocol in protocols:
        seal = read_json(protocol.folder / SEAL)
        rows.append(
            {
                "id": protocol.id,
                "title": protocol.title,
                "date": seal["date"],
                "statement": seal["statement"],
                "digest": digests[protocol.id],
                "amendments": amendments.get(protocol.id, ()),
            }
        )
    return rows


def environment(cards: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(what, version or versions) over all run cards."""
    found: dict[str, set[str]] = {}
    for card in cards:
        for name, version in card["versions"].items():
            found.setdefault(name, set()).add(str(version))
    return [(name, ", ".join(sorted(versions))) for name, versions in sorted(found.items())]


def scale_rows(scale: Scale) -> list[tuple[str, str]]:
    """The scale as the page shows it: what, value."""
    rows = [(name, f"{value:,}" if isinstance(value, int) else str(value)) for name, value in scale.resolved().items()]
    rows = [row for row in rows if row[0] != "sizes"]
    for name, size in scale.sizes.items():
        words = (
            f"{size.width} wide, {size.depth} layers, {size.heads} heads, L = {size.train_length}, {size.steps:,} steps of "
            f"{size.tokens_per_step:,} tokens, learning rate {size.learning_rate:g}"
        )
        rows.append((f"size {name}", words))
    return rows
