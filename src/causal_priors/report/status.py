"""The run matrix as text: what is done, running, stopped, failed and waiting, and about how long the rest takes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from causal_priors.driver import LOCK
from causal_priors.progress import clock_text
from causal_priors.report.jobs import (
    CONTROL,
    DONE,
    EVALUATE,
    FAILED,
    INTERVENE,
    RUNNING,
    STATES,
    STOPPED,
    TRAIN,
    WAITING,
    Job,
    is_held,
    rule_jobs,
    run_jobs,
)
from causal_priors.study import Study

WIDTH = 100
GLYPHS = {DONE: "#", RUNNING: ">", STOPPED: "/", FAILED: "!", WAITING: "."}


def status_text(study: Study, height: int | None = None) -> tuple[str, bool]:
    """Return the state of the study in words, at most 100 columns wide, and whether all of it is done.

    The matrix of runs is left out where all of it would not fit into `height` lines.
    """
    before, after = rule_jobs(study)
    runs = dict(run_jobs(study))
    per_run = [job for jobs in runs.values() for job in jobs]
    every = [*before, *per_run, *after]
    lines = [f"Scale {study.scale.name} in {study.folder}: {len(runs)} runs", ""]
    lines += [*_counts(per_run), ""]
    lines += [_series("before", before), _series("after", after), ""]
    matrix, rest = [*_matrix(runs, study), ""], []
    for state in (RUNNING, STOPPED, FAILED):
        rest += _list(state, [job for job in every if job.state == state])
    rest += _list("diverged", [job for job in every if job.state == DONE and job.text])
    rest.append(_closing(every, study))
    fits = height is None or len(lines) + len(matrix) + len(rest) < height
    lines += [*(matrix if fits else []), *rest]
    return "\n".join(lines) + "\n", all(job.state == DONE for job in every)


def _counts(jobs: Sequence[Job]) -> list[str]:
    lines = [f"{'':<10}" + "".join(f"{state:>9}" for state in STATES)]
    for rule in (TRAIN, EVALUATE, INTERVENE, CONTROL):
        found = Counter(job.state for job in jobs if job.rule == rule)
        lines.append(f"{rule:<10}" + "".join(f"{found[state] or '–':>9}" for state in STATES))
    return lines


def _series(label: str, jobs: Iterable[Job]) -> str:
    return f"{label + ':':<10}" + "  ".join(f"{job.name} {GLYPHS[job.state]}" for job in jobs)


def _matrix(runs: dict[str, list[Job]], study: Study) -> list[str]:
    """One line per size, arm and length; a group of marks per seed."""
    meaning = "  ".join(f"{GLYPHS[state]} {state}" for state in STATES)
    lines = [f"{meaning}; per seed: train, evaluate, swaps or control"]
    groups: dict[str, list[str]] = {}
    for name, jobs in runs.items():
        group, _, seed = name.rpartition("-s")
        groups.setdefault(group, []).append(f"s{seed} {''.join(GLYPHS[job.state] for job in jobs):<4}")
    registered = {run.name(study.scale).rpartition("-s")[0] for run in study.registered}
    for group, cells in groups.items():
        note = "" if group in registered else "  (exploratory)"
        lines.append(f"{group:<24}{' '.join(cells)}".rstrip() + note)
    return lines


def _list(state: str, jobs: Sequence[Job]) -> list[str]:
    if not jobs:
        return []
    lines = [f"{state}:"]
    for job in jobs:
        what = job.rule if job.name == job.rule else f"{job.rule} {job.name}"
        parts = [f"step {job.step:,} of {job.total:,} ({job.step / job.total:.0%})"] if job.step and job.total else []
        parts += [job.text] if job.text else []
        parts += [f"about {clock_text(job.seconds_left)} left"] if job.seconds_left is not None else []
        lines.append(f"  {what}" + (f": {', '.join(parts)}" if parts else ""))
    return [*lines, ""]


def _closing(jobs: Sequence[Job], study: Study) -> str:
    scale = study.scale.name
    states = Counter(job.state for job in jobs)
    if states[DONE] == len(jobs):
        return f"All done. The verdicts: python -m causal_priors verdicts --scale {scale}"
    if not states[RUNNING]:
        if is_held(study.folder / LOCK):
            return "Snakemake is at work, between two jobs."
        return f"Nothing is running. To go on: snakemake --cores all --config scale={scale}"
    seconds = remaining_seconds(jobs, study.folder / "benchmarks")
    if seconds is None:
        return f"{states[RUNNING]} running. How long the rest takes is known when one job of each rule is done."
    return f"{states[RUNNING]} running. About {clock_text(seconds)} left at {states[RUNNING]} jobs at a time."


def remaining_seconds(jobs: Sequence[Job], benchmarks: Path) -> float | None:
    """Estimate the seconds to the end, at as many jobs at a time as run now, from what earlier jobs of a rule took.

    None where a rule with jobs to do has no finished job yet, or nothing is running.
    """
    running = sum(job.state == RUNNING for job in jobs)
    total, known = 0.0, {rule: _median_seconds(benchmarks, rule) for rule in {job.rule for job in jobs}}
    for job in jobs:
        if job.state == DONE:
            continue
        if job.state == RUNNING and job.seconds_left is not None:
            total += job.seconds_left
            continue
        seconds = known[job.rule]
        if seconds is None and job.name != job.rule:
            return None
        # A job that runs and says no more is taken to be half done.
        total += (seconds or 0.0) * (0.5 if job.state == RUNNING else 1.0)
    return total / running if running else None


def _median_seconds(benchmarks: Path, rule: str) -> float | None:
    """Median wall seconds of a rule's finished jobs, from Snakemake's benchmark files."""
    seconds = []
    for file in [benchmarks / f"{rule}.tsv", *sorted((benchmarks / rule).glob("*.tsv"))]:
        try:
            seconds.append(float(file.read_text(encoding="utf-8").splitlines()[1].split("\t")[0]))
        except (OSError, ValueError, IndexError):
            continue
    return median(seconds) if seconds else None
