"""One registered test in plain words: what was claimed, on which windows, and why it holds or fails.

The claim, its windows and its threshold are read from the sealed protocol, the outcome and every number from the record
that scoring wrote: nothing about a test is written here. Each kind of rule has its sentences.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from causal_priors.prereg.chance import in_words
from causal_priors.prereg.ledger import Assumption
from causal_priors.prereg.rules import FAILS, HOLDS, NOT_EVALUATED, NOT_TRIGGERED, TRIGGERED
from causal_priors.prereg.terms import (
    AtMostEverySeed,
    DirectionEveryCheckpoint,
    FallingEverySeed,
    LowerAnyOf,
    LowerEverySeed,
    Metric,
    Protocol,
    RegisteredTest,
)
from causal_priors.prereg.verdict_tables import DIRECTION, NOTHING, Record
from causal_priors.scale import Scale

WIDTH = 100
_WORDS = {
    HOLDS: "It holds",
    FAILS: "It fails",
    TRIGGERED: "It is triggered",
    NOT_TRIGGERED: "It is not triggered",
    NOT_EVALUATED: "It was not evaluated: nothing is said either way",
}


def explain_text(
    test: RegisteredTest,
    protocol: Protocol,
    seal: Mapping[str, str],
    scale: Scale,
    record: Record | None,
    ledger: Mapping[str, Assumption],
) -> str:
    """Return the explanation, at most 100 columns wide.

    seal: "date" and "digest". record: the verdict at `scale`, None where there is none yet. ledger: assumptions by id.
    """
    text = [f"{test.id}, of experiment {protocol.id} ({protocol.title})", ""]
    text += _part(f"Claimed, and sealed on {seal['date']} (seal {seal['digest'][:12]})", [test.claim])
    text += _part("Rule, as scoring reads it", [in_words(test)])
    text += _part(f"Measured, at scale {scale.name}", _windows(test, protocol, scale))
    if record is None:
        call = f"snakemake --cores all --config scale={scale.name} -- experiment_{protocol.id}"
        return "\n".join([*text, f"There is no verdict at scale {scale.name} yet. To get one:", f"  {call}"]) + "\n"
    text += _part(f"What came out at scale {scale.name}", _outcome(test, record))
    text += _table(test, record["observed"])
    text += _part("How to take it", _context(test, record, scale))
    if record["seal_digest"] != seal["digest"]:
        text += _wrap(f"Take care: this verdict was scored against another seal ({record['seal_digest'][:12]}).")
    rests = [f"{item}: {ledger[item].text}" for item in test.assumptions if item in ledger]
    return "\n".join([*text, *_part("It rests on assumptions", rests)]).rstrip() + "\n"


def _part(title: str, paragraphs: Sequence[str]) -> list[str]:
    return [f"{title}:", *(line for text in paragraphs for line in _wrap(text, "  ")), ""]


def _wrap(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )


def _windows(test: RegisteredTest, protocol: Protocol, scale: Scale) -> list[str]:
    """Which quantity, of which checkpoints, on which windows and targets."""
    rule, metric = test.rule, protocol.metrics[test.rule.metric]
    found = [f"{metric.name} ({metric.unit}). {metric.meaning}"]
    if isinstance(rule, DirectionEveryCheckpoint):
        edits = {edit for edit, _ in rule.edits}
        runs = [item.run for item in protocol.interventions if item.edit in edits]
        lengths = sorted({run.train_length(scale) for run in runs})
        found.append(f"On {rule.checkpoints} registered checkpoints, before and after the edit.")
    else:
        lengths = []
        for group in rule.groups:
            length = group.multiple * scale.sizes[group.size].train_length
            lengths.append(length)
            seeds = ", ".join(map(str, group.seeds))
            found.append(f"Size {group.size} trained at L = {length} tokens, seeds {seeds}.")
    for length in sorted(set(lengths)):
        found.append(_window(rule.length, length, rule.blocks, metric))
    return found


def _window(multiple: int, length: int, blocks: str, metric: Metric) -> str:
    which = "all held-out blocks" if blocks == "all" else f"{blocks}-numbered held-out blocks"
    words = f"L = {length}: windows of {multiple * length} tokens ({multiple} L), "
    words += f"cut from {which} of {8 * length + 1} tokens"
    if metric.positions == "beyond":
        words += f"; targets whose input stands at position {length + 1} to {multiple * length}"
    if metric.far_window is not None:
        words += f"; far means {int(metric.far_window * length)} tokens or more away"
    return words + "."


def _outcome(test: RegisteredTest, record: Record) -> list[str]:
    head = _WORDS.get(record["verdict"], record["verdict"])
    if not record["observed"]:
        return [f"{head}. {_sentence(record['reason'])}"]
    found = [f"{head}: {_why(test, record)}"]
    if record["selection"]:
        chosen = record["selection"]
        means = ", ".join(f"{arm} {value:.4f}" for arm, value in chosen["means"].items())
        found.append(
            f"The scored arm is {chosen['arm']}: lowest {chosen['metric']} at {chosen['length']} L on "
            f"{chosen['blocks']} blocks, averaged over seeds ({means})."
        )
    if record["reason"]:
        found.append(_sentence(record["reason"]))
    return found


def _why(test: RegisteredTest, record: Record) -> str:
    """The sentence that a rule's outcome rests on."""
    rows, rule = record["observed"], test.rule
    match rule:
        case LowerEverySeed() | FallingEverySeed():
            strict = isinstance(rule, FallingEverySeed)
            enough = [row for row in rows if _reaches(row["difference"], rule.threshold, strict)]
            deciding = min(rows, key=lambda row: float(row["difference"]))
            least = f"more than {rule.threshold:g}" if strict else f"at least {rule.threshold:g}"
            signs = sum(row["difference"] > 0 for row in rows)
            return (
                f"{len(enough)} of {len(rows)} differences (comparator minus arm) are {least}, and all must be; "
                f"{signs} of {len(rows)} have the claimed sign. The one that decides is {_place(deciding)}: "
                f"{_number(deciding['difference'])}, {_room(record['margin'])}."
            )
        case LowerAnyOf():
            arms = list(dict.fromkeys(row["arm"] for row in rows))
            worst = {arm: min((row for row in rows if row["arm"] == arm), key=_difference) for arm in arms}
            parts = "; ".join(f"{arm} {_number(worst[arm]['difference'])}" for arm in arms)
            return (
                f"one arm must be below {rule.right} by at least {rule.threshold:g} on every seed. The smallest "
                f"difference of each arm: {parts}. The closest is {_room(record['margin'])}."
            )
        case DirectionEveryCheckpoint():
            right = sum(row["as_predicted"] for row in rows)
            unresolved = sum(not row["resolved"] for row in rows)
            against = len(rows) - right - unresolved
            return (
                f"{right} of {len(rows)} checkpoints moved as claimed, {against} moved the other way, and {unresolved} "
                "moved by too little to resolve; all must move as claimed."
            )
        case AtMostEverySeed():
            within = sum(row["difference"] >= 0 for row in rows)
            deciding = min(rows, key=_difference)
            return (
                f"{within} of {len(rows)} values are at most their bound, and all must be. The one that decides is "
                f"{_place(deciding)}: {_number(deciding['value'])} against {deciding['threshold']:g}, "
                f"{_room(record['margin'])}."
            )


def _difference(row: Mapping[str, Any]) -> float:
    return float(row["difference"])


def _reaches(difference: float, threshold: float, strict: bool) -> bool:
    return difference > threshold if strict else difference >= threshold


def _place(row: Mapping[str, Any]) -> str:
    against = f" against {row['comparator']}" if "comparator" in row else ""
    return f"{row['arm']}{against}, size {row['size']}, L = {row['train_length']}, seed {row['seed']}"


def _room(margin: float) -> str:
    size = _number(abs(margin)).lstrip("+")
    return f"{size} more than needed" if margin >= 0 else f"{size} short of what is needed"


def _context(test: RegisteredTest, record: Record, scale: Scale) -> list[str]:
    found = []
    if record["chance_level"] is None:
        found.append(f"Chance level: {record['chance_note']}.")
    else:
        words = TRIGGERED if isinstance(test.rule, LowerAnyOf) else HOLDS
        chance = f"{record['chance_level']:.2g} ({record['chance_note']})"
        found.append(f"If the compared did not differ at all, {words!r} would come out with probability {chance}.")
    found.append(f"Expected at this scale: {record['expected']['outcome']}. {record['expected']['note']}")
    found.append(f"In the source: {record['source']['outcome']}. {record['source']['note']}")
    for row in record["beside"]:
        found.append(f"Beside it, not scored: against {row['comparator']} the same rule {_beside(row)}.")
    found += [f"Note: {note}" for note in record["notes"]]
    found += [f"Amended {item['date']}: {item['reason']}" for item in record["amendments"]]
    status = {"test": NOTHING, "exploratory": DIRECTION}.get(scale.status)
    return [*found, status.format(scale=scale.name)] if status else found


def _beside(row: Mapping[str, Any]) -> str:
    return f"was not evaluated ({row['reason']})" if row["outcome"] == NOT_EVALUATED else str(row["outcome"])


def _table(test: RegisteredTest, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every observed value, in columns: what it is of, the two values or value and bound, the difference, a remark."""
    if not rows:
        return []
    edits = "edit" in rows[0]
    low, high = ("before", "after") if edits else ("comparator_value", "value")
    labels = ("before", "after", "change") if edits else ("comparator", "arm", "difference")
    if not edits and "comparator" not in rows[0]:
        high, low, labels = "value", "threshold", ("bound", "value", "room")
    names = [f"{row['edit']} of {row['run']}" if edits else _short(row) for row in rows]
    width = max(map(len, names))
    lines = [f"  {'':<{width}}" + "".join(f"{label:>12}" for label in labels)]
    for name, row in zip(names, rows, strict=True):
        numbers = (f"{row[low]:.5f}", f"{row[high]:.5f}", _number(row["difference"]))
        cells = "".join(f"{number:>12}" for number in numbers)
        lines.append(f"  {name:<{width}}{cells}  {_remark(test, row)}".rstrip())
    return [*lines, ""]


def _remark(test: RegisteredTest, row: Mapping[str, Any]) -> str:
    """What keeps a row from being as the test demands; nothing where it is."""
    rule = test.rule
    match rule:
        case DirectionEveryCheckpoint():
            return "" if row["as_predicted"] else "other way" if row["resolved"] else "unresolved"
        case AtMostEverySeed():
            return "" if row["difference"] >= 0 else "above"
        case _:
            strict = isinstance(rule, FallingEverySeed)
            return "" if _reaches(row["difference"], rule.threshold, strict) else "short"


def _short(row: Mapping[str, Any]) -> str:
    against = f" / {row['comparator']}" if "comparator" in row else ""
    return f"{row['size']}, L = {row['train_length']}, seed {row['seed']}: {row['arm']}{against}"


def _number(value: float) -> str:
    return f"{value:+.5f}" if value == 0 or abs(value) >= 1e-4 else f"{value:+.1e}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""
