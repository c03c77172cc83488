"""What a study costs before anything is spent: runs, tokens, FLOPs, disk, and hours of one device at some speed.

FLOPs of training a token are 6 per parameter, and 12 x depth x width x L for the scores and sums of attention (the whole
square, forward and backward); of a forward pass a third of both. A pass at 8L also serves half of the windows of every
shorter length, and so on down. The parameters of positions are left out: they are a handful. Speeds are measured ones
(timing sidecars of the same scale), or one number that a reader gives.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from causal_priors.artifacts import read_json
from causal_priors.errors import UserError
from causal_priors.prereg.ledger import load_published
from causal_priors.report.schedule import Job, chains, longest_chain, play
from causal_priors.report.text_cost import FINEWEB_EDU_SAMPLE, TextCost, text_cost
from causal_priors.runs import EVALUATION_FACTORS, Run
from causal_priors.scale import Scale, Size
from causal_priors.study import Study

WIDTH = 100
_HOUR = 3600.0
_FLOAT32 = 4
# Passes of an evaluation: all windows of the longest length, and of each shorter one those that begin no longer one.
PLAIN = tuple((1.0 if factor == EVALUATION_FACTORS[-1] else 0.5, factor) for factor in EVALUATION_FACTORS)
# A resume state holds the weights and two moments of them.
_STATE_COPIES = 3


@dataclass(frozen=True)
class Speed:
    """How long things take: sustained FLOP/s (with what an arm costs beside `rope`), or seconds measured per job.

    ratios: step time over that of `rope`, by arm. measured: seconds by (kind of job, size, arm, multiple).
    """

    words: str
    flops: float | None = None
    ratios: Mapping[str, float] | None = None
    measured: Mapping[tuple[str, str, str, int], float] | None = None

    def seconds(self, kind: str, run: Run, flops: float) -> float | None:
        """Seconds of one job of `flops`; None where nothing is known."""
        if self.measured is not None:
            alike = [self.measured.get((kind, run.size, run.arm, run.multiple))]
            near = [value for (what, size, _, _), value in self.measured.items() if (what, size) == (kind, run.size)]
            return next(filter(None, alike), median(near) if near else None)
        if self.flops is None:
            return None
        return flops / self.flops * (self.ratios or {}).get(run.arm, 1.0)


@dataclass(frozen=True)
class Line:
    """Jobs of one kind, size and training length. tokens, flops: of one job on average; seconds: of all together."""

    label: str
    jobs: int
    parameters: int
    tokens: float
    flops: float
    checkpoint: int
    seconds: float | None


def parameters(size: Size, scale: Scale) -> int:
    """Parameters of a model, without those of position. The embedding is tied."""
    return size.non_embedding_parameters() + scale.vocabulary * size.width


def training_flops(size: Size, scale: Scale, length: int) -> float:
    """FLOPs of one training token in windows of `length` tokens."""
    return 6.0 * parameters(size, scale) + 12.0 * size.depth * size.width * length


@dataclass(frozen=True)
class Passes:
    """Forward passes of one job over the evaluation tokens, or a share of them: pairs (share, window as multiple of L)."""

    kind: str
    run: Run
    passes: tuple[tuple[float, int], ...]

    def tokens(self, scale: Scale) -> float:
        """Tokens that go forward."""
        return sum(share for share, _ in self.passes) * scale.evaluation_tokens

    def flops(self, scale: Scale) -> float:
        """FLOPs of the job."""
        size, length = self.run.budget(scale), self.run.train_length(scale)
        costs = (share * training_flops(size, scale, factor * length) for share, factor in self.passes)
        return sum(costs) * scale.evaluation_tokens / 3


def forward_jobs(study: Study) -> list[Passes]:
    """Evaluations, bias swaps and controls, in this order."""
    longest = EVALUATION_FACTORS[-1]
    yarn = len(study.config.yarn_ramps) * tuple((1.0, factor) for factor in EVALUATION_FACTORS[1:])
    jobs = [Passes("evaluate", run, PLAIN + (yarn if study.arm(run).yarn else ())) for run in study.runs()]
    jobs += [Passes("intervene", item.run, ((2.0, longest),)) for item in study.interventions()]
    jobs += [Passes("control", run, ((4.0, longest),)) for run in study.control_runs()]
    return jobs


def plan_lines(study: Study, speed: Speed) -> list[Line]:
    """Return the lines of the plan: training by size and length, then evaluations, then bias swaps."""
    scale = study.scale
    groups: dict[tuple[str, int], list[Run]] = {}
    for run in study.runs():
        groups.setdefault((run.size, run.multiple), []).append(run)
    lines = []
    for runs in (groups[key] for key in sorted(groups, key=lambda key: ("SC".find(key[0]), key))):
        size, length = runs[0].budget(scale), runs[0].train_length(scale)
        tokens = size.steps * size.tokens_per_step
        flops = tokens * training_flops(size, scale, length)
        seconds = _sum(speed.seconds("train", run, flops) for run in runs)
        count = parameters(size, scale)
        label = f"train {runs[0].size}, L = {length:,}"
        lines.append(Line(label, len(runs), count, tokens, flops, count * _FLOAT32, seconds))
    for kind, jobs in groupby(forward_jobs(study), key=lambda job: job.kind):
        lines.append(_forward(kind, list(jobs), scale, speed))
    return lines


def _forward(kind: str, jobs: Sequence[Passes], scale: Scale, speed: Speed) -> Line:
    seconds = _sum(speed.seconds(kind, job.run, job.flops(scale)) for job in jobs)
    tokens, flops = (
        sum(values) / len(jobs) for values in zip(*((j.tokens(scale), j.flops(scale)) for j in jobs), strict=True)
    )
    return Line(kind, len(jobs), 0, tokens, flops, 0, seconds)


def device_jobs(study: Study, speed: Speed) -> list[Job] | None:
    """The jobs that take a device, and what each needs; None where the speed of one is unknown."""
    scale, jobs = study.scale, []
    for run in study.runs():
        size = run.budget(scale)
        flops = size.steps * size.tokens_per_step * training_flops(size, scale, run.train_length(scale))
        jobs.append(("train", run, speed.seconds("train", run, flops)))
    jobs += [(job.kind, job.run, speed.seconds(job.kind, job.run, job.flops(scale))) for job in forward_jobs(study)]
    if any(seconds is None for _, _, seconds in jobs):
        return None
    found: list[Job] = []
    for number, (kind, run, seconds) in enumerate(jobs):
        trained = f"train {run.name(scale)}"
        name = trained if kind == "train" else f"{kind} {run.name(scale)} {number}"
        found.append(Job(name, float(seconds or 0), () if kind == "train" else (trained,)))
    return found


def _sum(values: Iterable[float | None]) -> float | None:
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if len(known) == len(found) else None


def given_speed(study: Study, *, rate: float | None = None, flops: float | None = None) -> Speed:
    """Speed from what a reader says: `rate` tokens/s of training `rope` at size S, or sustained `flops` per second.

    A rate is carried to the other sizes and lengths by FLOPs a token. What an arm costs beside `rope` is what the source
    reports; an arm that it says nothing of is taken to cost the same.
    """
    words = f"{flops:.3g} FLOP/s" if flops else f"{rate:,.0f} tokens/s of rope at size S"
    if rate is not None:
        size = study.scale.sizes["S"]
        flops = rate * training_flops(size, study.scale, size.train_length)
    ratios = published_ratios(study)
    dear = ", ".join(f"{arm} x {ratio:.1f}" for arm, ratio in sorted(ratios.items()) if ratio >= 1.1)
    return Speed(f"at {words}; dearer by the source's step times: {dear}", flops=flops, ratios=ratios)


def published_ratios(study: Study) -> dict[str, float]:
    """Step time over that of `rope`, by arm, from the source's tables (published.yaml).

    Which transport arm has which strength is not said (A5): both are taken to be the slower one.
    """
    published: dict[str, Any] = load_published(study.config.preregistration)
    found: dict[str, float] = {}
    for table, key in (("step_time_0001", "seconds_per_step"), ("step_time_0002", "milliseconds_per_step")):
        rows = published[table]
        base = next(row[key] for row in rows if row["arm"] == "rope")
        unnamed = [row[key] / base for row in rows if row["arm"] is None]
        if unnamed:
            found.update({arm: max(unnamed) for arm in ("ot-50", "ot-75")})
        found.update({row["arm"]: row[key] / base for row in rows if row["arm"] is not None})
    return found


def measured_speed(study: Study) -> Speed | None:
    """Speed from the timing sidecars of the study's own finished runs; None where there is none."""
    found: dict[tuple[str, str, str, int], list[float]] = {}
    for run in study.runs():
        folder = study.run_folder(run)
        keys = [("train", "timing.json"), ("evaluate", "evaluation.timing.json"), ("control", "control.timing.json")]
        keys += [("intervene", f"{edit}.timing.json") for edit in ("cap", "repair")]
        for kind, name in keys:
            value = _sidecar(folder / name, run.budget(study.scale).steps if kind == "train" else None)
            if value is not None:
                found.setdefault((kind, run.size, run.arm, run.multiple), []).append(value)
    trained = sum(len(values) for key, values in found.items() if key[0] == "train")
    if not trained:
        return None
    measured = {key: median(values) for key, values in found.items()}
    return Speed(f"measured in {trained} runs of {study.folder}", measured=measured)


def _sidecar(path: Path, steps: int | None) -> float | None:
    try:
        content = read_json(path)
        return float(content["cpu_seconds"] if steps is None else steps * content["seconds_per_step"])
    except (UserError, KeyError, TypeError, ValueError):
        return None


def plan_text(study: Study, speed: Speed | None, devices: Sequence[int] = ()) -> str:
    """Return the plan as text, at most 100 columns wide. devices: numbers of them to play the study through on."""
    scale = study.scale
    lines = plan_lines(study, speed or Speed(""))
    text = [f"Scale {scale.name} ({scale.status}): what it costs. Nothing is run by this command.", ""]
    text.append(_row("jobs", "number", "parameters", "tokens", "FLOPs", "checkpoint", "hours", "all"))
    for line in lines:
        count = _si(line.parameters) if line.parameters else ""
        disk = _bytes(line.checkpoint) if line.checkpoint else ""
        each = None if line.seconds is None else line.seconds / line.jobs
        numbers = (count, _si(line.tokens), f"{line.flops:.1e}", disk, _hours(each), _hours(line.seconds))
        text.append(_row(line.label, str(line.jobs), *numbers))
    flops, tokens = (sum(line.jobs * getattr(line, key) for line in lines) for key in ("flops", "tokens"))
    seconds = _sum(line.seconds for line in lines)
    jobs = sum(line.jobs for line in lines)
    text += [_row("all", str(jobs), "", _si(tokens), f"{flops:.1e}", "", "", _hours(seconds)), ""]
    text.append(
        "Tokens, FLOPs, checkpoint and hours are those of one job; the last column is hours of one device for all."
    )
    if speed is None:
        text.append("No speed is known here: add --rate TOKENS_PER_S (of rope at size S) or --flops RATE (sustained).")
    else:
        text += textwrap.wrap(f"Hours {speed.words}.", WIDTH, subsequent_indent="  ")
    jobs_played = device_jobs(study, speed) if speed else None
    if jobs_played and devices:
        text += _courses(jobs_played, devices)
    return "\n".join([*text, *_disk(lines, study)]) + "\n"


def _courses(jobs: Sequence[Job], devices: Sequence[int]) -> list[str]:
    """Wall times on each number of devices, one job a device at a time."""
    behind = chains(jobs)
    lines = ["", f"{'devices':>9}{'hours':>10}{'busy':>8}{'hours, longest first':>24}"]
    for number in devices:
        listed, best = play(jobs, number), play(jobs, number, lambda job: -behind(job.name))
        cells = f"{_hours(listed.seconds):>10}{listed.busy:>8.0%}{_hours(best.seconds):>24}"
        lines.append(f"{number:>9,}{cells}")
    chain = _hours(longest_chain(jobs))
    lines.append(f"No number of devices is faster than the longest run and what waits for it: {chain} hours.")
    return [*lines, ""]


def _row(label: str, number: str, *cells: str) -> str:
    widths = (12, 12, 10, 12, 10, 10)
    return f"{label:<22}{number:>7}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _hours(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    hours = seconds / _HOUR
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"


def _disk(lines: Sequence[Line], study: Study) -> list[str]:
    scale = study.scale
    kept = sum(line.jobs * line.checkpoint for line in lines)
    largest = max(line.checkpoint for line in lines)
    longest = max(size.steps * size.tokens_per_step for size in scale.sizes.values())
    needed = longest / scale.max_corpus_repeats
    state = _bytes(_STATE_COPIES * largest)
    # Beside what is needed, the corpus that study.md names for GPT-2's vocabulary.
    corpora = (needed, FINEWEB_EDU_SAMPLE) if scale.tokenizer == "gpt2" else (needed,)
    return [
        f"Disk: {_bytes(kept)} of checkpoints, and up to {state} for the resume state of each run under way.",
        f"Text: at least {_si(needed)} training tokens, read at most {scale.max_corpus_repeats:g} times, and "
        f"{_si(scale.evaluation_tokens)} held-out ones.",
        *(_text_line(text_cost(tokens, scale)) for tokens in corpora),
    ]


def _text_line(cost: TextCost) -> str:
    return (
        f"  {_si(cost.tokens)} tokens: {_bytes(cost.text)} of text, {_hours(cost.core_seconds)} core hours to check and "
        f"tokenise, {_bytes(cost.shards)} of shards (twice while at it)"
    )


def _si(value: float) -> str:
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        # Rounded to three digits a value just below the next unit would read as a thousand of this one.
        if value >= 0.9995 * factor:
            return f"{value / factor:,.3g} {unit}"
    return f"{value:,.0f}"


def _bytes(value: float) -> str:
    return f"{_si(value)}B" if value >= 1e3 else f"{value:.0f} B"
