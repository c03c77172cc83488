"""One experiment of the register on a page: question, runs, tests with thresholds, seal, verdicts so far."""

import textwrap
from collections.abc import Mapping, Sequence

from causal_priors.prereg.chance import in_words
from causal_priors.prereg.ledger import Amendment
from causal_priors.prereg.terms import Protocol
from causal_priors.prereg.verdict_tables import Record
from causal_priors.report.jobs import DONE, STATES, Job
from causal_priors.scale import Scale

WIDTH = 100


def show_text(
    protocol: Protocol,
    seal: Mapping[str, str],
    amendments: Sequence[Amendment],
    scale: Scale,
    jobs: Mapping[str, Sequence[Job]],
    records: Sequence[Record],
) -> str:
    """Return the page, at most 100 columns wide.

    seal: "date" and "digest". jobs: the jobs of each run of the study, by its name. records: verdicts at `scale`, those
    of other experiments among them.
    """
    lines = [f"{protocol.id}  {protocol.title}, at scale {scale.name} ({scale.status})", ""]
    lines += _wrap(protocol.question, "")
    lines += ["", f"Sealed on {seal['date']}; digest {seal['digest']}; nothing sealed has changed.", ""]
    lines += [*_runs(protocol, scale, jobs), ""]
    found = {record["test_id"]: record for record in records}
    for test in protocol.tests:
        record = found.get(test.id)
        expected = test.expected[scale.name].outcome if scale.name in test.expected else "open"
        lines.append(
            f"{test.id}: {_verdict(record)}   (expected here: {expected}; in the source: {test.source.outcome})"
        )
        lines += _wrap(test.claim)
        lines += [*_wrap(f"Rule: {in_words(test)}."), *_wrap(f"Rests on {', '.join(test.assumptions)}."), ""]
    for amendment in amendments:
        lines += _wrap(f"Amended {amendment.date} ({', '.join(amendment.tests)}): {amendment.reason}", "")
    lines += (
        _wrap("Also recorded, in no verdict: " + " ".join(protocol.exploratory), "") if protocol.exploratory else []
    )
    first = protocol.tests[0].id
    lines += [
        "",
        f"Read {protocol.folder / 'plan.md'}; or: python -m causal_priors explain {first} --scale {scale.name}",
    ]
    return "\n".join(lines) + "\n"


def _runs(protocol: Protocol, scale: Scale, jobs: Mapping[str, Sequence[Job]]) -> list[str]:
    groups: dict[str, list[str]] = {}
    for run in protocol.runs:
        group, _, seed = run.name(scale).rpartition("-s")
        groups.setdefault(group, []).append(seed)
    lines = [f"Runs ({len(protocol.runs)}): {_progress(protocol, scale, jobs)}"] if protocol.runs else []
    lines += (
        _wrap("; ".join(f"{group} seeds {', '.join(seeds)}" for group, seeds in groups.items()) + ".") if groups else []
    )
    if protocol.interventions:
        edits: dict[str, list[str]] = {}
        for item in protocol.interventions:
            edits.setdefault(f"{item.edit}, {item.status}", []).append(item.run.name(scale))
        lines.append(f"Bias swaps ({len(protocol.interventions)}) of trained checkpoints:")
        lines += [line for edit, names in edits.items() for line in _wrap(f"{edit}: {', '.join(names)}.")]
    return lines


def _progress(protocol: Protocol, scale: Scale, jobs: Mapping[str, Sequence[Job]]) -> str:
    states = [jobs[run.name(scale)][0].state for run in protocol.runs if run.name(scale) in jobs]
    counts = ", ".join(f"{states.count(state)} {state}" for state in STATES if state in states)
    return "all trained" if states.count(DONE) == len(protocol.runs) else f"training {counts or 'waiting'}"


def _verdict(record: Record | None) -> str:
    if record is None:
        return "no verdict yet"
    margin = "" if record["margin"] is None else f", margin {record['margin']:+.4g}, n = {record['n']}"
    reason = f" ({record['reason']})" if record["reason"] else ""
    return f"{record['verdict']}{margin}{reason}"


def _wrap(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
