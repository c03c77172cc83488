"""Two runs side by side, or two studies: what differs in how they were made, and in what came out.

A study is a folder with verdicts.json: `results/{scale}`, or the committed snapshot in `results/reference/{scale}`. Where
both are of one scale, the digests in their verdicts say how many of the tables behind them are the same bytes.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from causal_priors.artifacts import read_signed_json
from causal_priors.errors import refuse
from causal_priors.prereg.verdict_tables import Record, read_verdicts
from causal_priors.report.sidecar import read_timing
from causal_priors.report.tables import summarise
from causal_priors.runs import EDITS
from causal_priors.tables import read_table

VERDICTS, CARD, SUMMARY = "verdicts.json", "run.json", "tables/summary.csv"
_NONE = "–"


def compare_text(a: str, b: str, results: Path, scale: str) -> str:
    """Return the comparison of `a` and `b`: two runs of `scale` (or run folders), or two scales (or study folders).

    Raises `UserError` where one is neither, where one is a run and the other a study, and for unreadable files.
    """
    folders = [_folder(name, results, scale) for name in (a, b)]
    kinds = [(folder / CARD).is_file() for folder in folders]
    if kinds[0] != kinds[1]:
        raise refuse("cannot be compared with a run", value=b if kinds[0] else a, remedy="give two runs or two studies")
    compare = compare_runs if kinds[0] else compare_studies
    return "\n".join(compare(*folders)) + "\n"


def _folder(name: str, results: Path, scale: str) -> Path:
    for folder in (Path(name), results / name, results / scale / "runs" / name):
        # Unlike `Path.is_file`, it also answers for a name that is too long for a file.
        if any(os.path.isfile(folder / file) for file in (CARD, VERDICTS)):  # noqa: PTH113
            return folder
    remedy = f"give a finished run of scale {scale}, a scale with verdicts, or the folder of one"
    raise refuse("is neither a finished run nor a finished study", value=name, remedy=remedy)


def compare_runs(a: Path, b: Path) -> list[str]:
    """Lines of the comparison of two run folders."""
    cards = [read_signed_json(folder / CARD) for folder in (a, b)]
    names = [str(card["parameters"]["run"]) for card in cards]
    lines = [_row("", *names, "b - a"), _row("status", *(str(card["status"]) for card in cards))]
    for key in ("total", "positional"):
        counts = [card["parameter_counts"][key] for card in cards]
        lines.append(_row(f"parameters, {key}", *(f"{count:,}" for count in counts), f"{counts[1] - counts[0]:+,}"))
    lines.append(_numbers("loss of the last step", *(card["final_loss"] for card in cards)))
    paces = [_pace(folder) for folder in (a, b)]
    lines.append(_numbers("seconds a step", *paces, ratio=True))
    lines += ["", *_measured(a, b), ""]
    differs = list(_differences(_made(cards[0]), _made(cards[1])))
    lines.append("Made alike." if not differs else "Made differently:")
    return lines + [f"  {line}" for line in differs]


def _measured(a: Path, b: Path) -> Iterator[str]:
    """Loss, loss beyond L and far mass by variant and window length, in multiples of each run's own L."""
    frames = [_summary(folder) for folder in (a, b)]
    keys = list(dict.fromkeys([*frames[0], *frames[1]]))
    for column, label in (
        ("loss", "loss"),
        ("loss_beyond", "loss beyond L"),
        ("far_mass_eighth", "far mass (w = L/8)"),
    ):
        for variant, multiple in keys:
            values = [frame.get((variant, multiple), {}).get(column) for frame in frames]
            if any(value is not None for value in values):
                what = f"{label} at {multiple} L" + ("" if variant == "plain" else f", {variant}")
                yield _numbers(what, *values)


def _summary(folder: Path) -> dict[tuple[str, int], dict[str, float]]:
    files = [folder / f"{name}.parquet" for name in ("evaluation", *EDITS)]
    tables = [read_table(file, "evaluation") for file in files if file.is_file()]
    if not tables:
        return {}
    rows = summarise(pd.concat(tables, ignore_index=True))
    columns = ["loss", "loss_beyond", "far_mass_eighth"]
    return {
        (str(row["variant"]), int(row["length"] // row["train_length"])): {
            column: float(row[column]) for column in columns if pd.notna(row[column])
        }
        for row in rows.to_dict("records")
    }


def _pace(folder: Path) -> float | None:
    return read_timing(folder / "timing.json").get("seconds_per_step")


def _made(card: Mapping[str, Any]) -> dict[str, Any]:
    """What went into a run, flat: parameters, inputs, code and versions."""
    return dict(_flat({key: card[key] for key in ("parameters", "inputs", "code", "versions")}))


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from _flat(part, f"{key}.{name}".lstrip("."))
    else:
        yield key, value


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted({*a, *b} - {"parameters.run"}):
        if a.get(key) != b.get(key):
            yield f"{key.removeprefix('parameters.')}: {_short(a.get(key))} | {_short(b.get(key))}"


def _short(value: Any) -> str:
    text = _NONE if value is None else str(value)
    return text[:12] if len(text) == 64 else text


def compare_studies(a: Path, b: Path) -> list[str]:
    """Lines of the comparison of two study folders: verdicts, and arms where both have their summary."""
    records = [read_verdicts(folder / VERDICTS) for folder in (a, b)]
    found = [{record["test_id"]: record for record in some} for some in records]
    lines = [_row("test", a.as_posix(), b.as_posix(), "")]
    for test in sorted({*found[0], *found[1]}):
        pair = [some.get(test) for some in found]
        outcomes = {None if record is None else record["verdict"] for record in pair}
        lines.append(_row(test, *map(_verdict, pair), "same" if len(outcomes) == 1 else "differs"))
    lines += ["", *_same_tables(*records)]
    if all((folder / SUMMARY).is_file() for folder in (a, b)):
        lines += ["", "Loss at 8 L minus that of rope of the same size and L, mean over seeds (nats per target):"]
        frames = [_arms(folder / SUMMARY) for folder in (a, b)]
        for key in dict.fromkeys([*frames[0], *frames[1]]):
            lines.append(_numbers(key, *(frame.get(key) for frame in frames)))
    return lines


def _verdict(record: Record | None) -> str:
    if record is None:
        return _NONE
    margin = record["margin"]
    if margin is None:
        return str(record["verdict"])
    digits = f"{margin:+.4f}" if margin == 0 or abs(margin) >= 1e-4 else f"{margin:+.1e}"
    return f"{record['verdict']} ({digits})"


def _same_tables(a: Sequence[Record], b: Sequence[Record]) -> list[str]:
    scales = [next((record["scale_digest"] for record in some), None) for some in (a, b)]
    if scales[0] != scales[1]:
        return ["They are of different scales: only outcomes and directions can be compared."]
    inputs = [{name: sha for record in some for name, sha in record["inputs"].items()} for some in (a, b)]
    both = inputs[0].keys() & inputs[1].keys()
    same = sum(inputs[0][name] == inputs[1][name] for name in both)
    return [f"One scale. Of the {len(both)} tables behind these verdicts that both have, {same} are the same bytes."]


def _arms(summary: Path) -> dict[str, float]:
    """Mean loss at 8 L of each size, arm and training length, minus that of rope."""
    frame = pd.read_csv(summary)
    frame = frame[(frame["variant"] == "plain") & (frame["length"] == 8 * frame["train_length"])]
    frame = frame.assign(multiple=frame["train_length"] // frame.groupby("size")["train_length"].transform("min"))
    means = frame.groupby(["size", "multiple", "arm"])["loss"].mean(skipna=False).reset_index().to_dict("records")
    base = {(row["size"], row["multiple"]): row["loss"] for row in means if row["arm"] == "rope"}
    return {
        f"{row['size']} {row['arm']}" + (f", {row['multiple']} x L" if row["multiple"] > 1 else ""): loss - against
        for row in means
        for loss, against in [(float(row["loss"]), base.get((row["size"], row["multiple"])))]
        if row["arm"] != "rope" and against is not None
    }


def _row(label: str, *cells: str) -> str:
    return f"{label:<32}" + "".join(f"{cell:>26}" for cell in cells[:2]) + "".join(f"{cell:>12}" for cell in cells[2:])


def _numbers(label: str, a: float | None, b: float | None, *, ratio: bool = False) -> str:
    cells = [_NONE if value is None else f"{value:.4f}" for value in (a, b)]
    last = _NONE
    if a is not None and b is not None:
        last = f"x {b / a:.2f}" if ratio and a else f"{b - a:+.4f}"
    return _row(label, *cells, last)
