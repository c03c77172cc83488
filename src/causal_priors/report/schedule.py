"""How long a study takes on some devices: its jobs and what each needs, played through without running any.

One job takes one device, and a device that becomes free takes a job whose needs are met. Snakemake knows no durations,
so which of them is chance; what is played through is the order in which the study lists its runs, and, as the best that
an order can do, the jobs with the longest chain behind them first.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Job:
    """A job of some `seconds` on one device, which waits for the jobs called `needs`."""

    name: str
    seconds: float
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Course:
    """One course of a study. seconds: from the first start to the last end; busy: share of the devices' time at work."""

    seconds: float
    busy: float


def longest_chain(jobs: Sequence[Job]) -> float:
    """Seconds of the longest chain of jobs that wait for each other: no number of devices is faster."""
    behind = chains(jobs)
    return max((behind(job.name) for job in jobs), default=0.0)


def chains(jobs: Sequence[Job]) -> Callable[[str], float]:
    """Return a function from a job's name to the seconds of it and the longest chain of jobs that wait for it."""
    waiting: dict[str, list[str]] = {job.name: [] for job in jobs}
    seconds = {job.name: job.seconds for job in jobs}
    for job in jobs:
        for need in job.needs:
            waiting[need].append(job.name)

    @cache
    def behind(name: str) -> float:
        return seconds[name] + max(map(behind, waiting[name]), default=0.0)

    return behind


def play(jobs: Sequence[Job], devices: int, order: Callable[[Job], float] = lambda job: 0.0) -> Course:
    """Play `jobs` through on `devices` devices. order: of two jobs that are ready the smaller goes first, else as listed.

    Raises `ValueError` for jobs that wait for each other or for none of these.
    """
    place = {job.name: number for number, job in enumerate(jobs)}
    missing = {job.name: set(job.needs) for job in jobs}
    ready = [(order(job), place[job.name]) for job in jobs if not job.needs]
    heapq.heapify(ready)
    running: list[tuple[float, int]] = []
    now, worked, done = 0.0, 0.0, 0
    while ready or running:
        while ready and len(running) < devices:
            number = heapq.heappop(ready)[1]
            worked += jobs[number].seconds
            heapq.heappush(running, (now + jobs[number].seconds, number))
        now, ended = heapq.heappop(running)
        done += 1
        for job in jobs:
            if jobs[ended].name in missing[job.name]:
                missing[job.name].discard(jobs[ended].name)
                if not missing[job.name]:
                    heapq.heappush(ready, (order(job), place[job.name]))
    if done < len(jobs):
        raise ValueError("some jobs wait for each other, or for jobs that are not listed")
    return Course(now, worked / (devices * now) if now else 1.0)
