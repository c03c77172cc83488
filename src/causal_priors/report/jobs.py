"""What the pipeline's jobs are doing, read from files alone: outputs, logs, resume states. Nothing is written.

A stage that is called with `--log` holds a lock on its log while it lives (cli/__init__.py), which the kernel lets go
however the process ends. So the same look works while Snakemake runs, after it was killed, and from another machine
that shares the file system where that supports locks.
"""

import fcntl
import json
import os
import re
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from causal_priors.artifacts import read_json
from causal_priors.errors import UserError
from causal_priors.progress import read_line
from causal_priors.report.crate import DRAWN, EXPLORED, METADATA, REPORT
from causal_priors.runs import Run
from causal_priors.study import Study

DONE, RUNNING, STOPPED, FAILED, WAITING = STATES = ("done", "running", "stopped", "failed", "waiting")
TRAIN, EVALUATE, INTERVENE, CONTROL = "train", "evaluate", "intervene", "control"
_TAIL = 8192
_STOPPED = re.compile(r"stopped by SIG\w+( after step (?P<step>\d+) of (?P<total>\d+))?")


@dataclass(frozen=True)
class Job:
    """One job of the pipeline. name: a run, a run with its edit, or the rule itself.

    step, total: of a training job, where known. seconds_left: of a running job, where its log says so. text: what a reader
    should know, such as loss and rate, or the reason of a failure.
    """

    rule: str
    name: str
    state: str
    step: int | None = None
    total: int | None = None
    seconds_left: float | None = None
    text: str = ""


def rule_jobs(study: Study) -> tuple[list[Job], list[Job]]:
    """Return the jobs that come before and after those of runs, in the order of the pipeline."""
    out, cache = study.folder, Path(study.config.results) / "corpus"
    before = [job("corpus", "corpus", cache / "default" / "card.json", cache / "default.log")]
    if study.config.corpus != "default":
        before = []
    for rule, file in (
        ("index", "data/index.parquet"),
        ("tokenizer", "data/tokenizer.json"),
        ("shards", "data/shards/card.json"),
        ("margins", "theory/margins.json"),
        ("theory", "theory/theory.parquet"),
    ):
        before.append(job(rule, rule, out / file, out / "logs" / f"{rule}.log"))
    after = [
        job(rule, rule, out / file, out / "logs" / f"{rule}.log")
        for rule, file in (
            ("verdicts", "verdicts.json"),
            ("summary", "tables/summary.csv"),
            ("exploratory", EXPLORED[0]),
            ("source", "tables/source.csv"),
            ("figures", DRAWN[0]),
            ("page", REPORT),
            ("crate", METADATA),
        )
    ]
    return before, after


def run_jobs(study: Study) -> Iterator[tuple[str, list[Job]]]:
    """Yield each run's name with its jobs: train, evaluate, its edits, its control. Registered runs come first."""
    edits: dict[Run, list[str]] = {}
    for item in study.interventions():
        edits.setdefault(item.run, []).append(item.edit)
    names = [(run.name(study.scale), edits.get(run, [])) for run in study.runs()]
    known = {name for name, _ in names}
    controls = {path.parent.name for path in study.control_files()}
    runs = study.folder / "runs"
    others = sorted(path.name for path in runs.iterdir() if path.is_dir()) if runs.is_dir() else []
    for name in others:
        if name not in known:
            names.append((name, [edit for edit in ("cap", "repair") if (runs / name / f"{edit}.parquet").is_file()]))
    for name, edited in names:
        folder, logs = runs / name, study.folder / "logs"
        jobs = [train_job(name, folder, logs / TRAIN / f"{name}.log")]
        jobs.append(job(EVALUATE, name, folder / "evaluation.parquet", logs / EVALUATE / f"{name}.log"))
        for edit in edited:
            label = f"{name}-{edit}"
            jobs.append(job(INTERVENE, label, folder / f"{edit}.parquet", logs / INTERVENE / f"{label}.log"))
        if name in controls:
            jobs.append(job(CONTROL, name, folder / "control.parquet", logs / CONTROL / f"{name}.log"))
        yield name, jobs


def train_job(name: str, folder: Path, log: Path) -> Job:
    """The state of a training run: a running one with its step, a stopped one with the step it was saved at."""
    found = job(TRAIN, name, folder / "run.json", log)
    if found.state == DONE:
        return Job(TRAIN, name, DONE, text=_diverged(folder / "run.json"))
    saved = saved_step(folder / "work" / "state.safetensors")
    if saved is not None and found.state in (WAITING, STOPPED):
        return Job(TRAIN, name, STOPPED, saved, text=f"{found.text or 'stopped'}; saved at step {saved}")
    return found


def job(rule: str, name: str, output: Path, log: Path) -> Job:
    """The state of one job, from its output and its log."""
    if is_held(log):
        return _running(rule, name, log)
    if output.is_file():
        return Job(rule, name, DONE)
    lines = tail(log)
    if lines is None:
        return Job(rule, name, WAITING)
    last = next((line for line in reversed(lines) if line.strip()), "")
    if last.startswith("error: "):
        return Job(rule, name, FAILED, text=last.removeprefix("error: "))
    if any(line.startswith("Traceback ") for line in lines):
        return Job(rule, name, FAILED, text=f"{last} (a bug: the trace is in {log})")
    stopped = _STOPPED.search(last)
    if stopped is not None:
        return Job(rule, name, STOPPED, text=last[stopped.start() :])
    return Job(rule, name, STOPPED, text="killed")


def _running(rule: str, name: str, log: Path) -> Job:
    try:
        age = max(0.0, time.time() - log.stat().st_mtime)
    except OSError:
        age = 0.0
    for line in reversed(tail(log) or []):
        seen = read_line(line)
        if seen is not None:
            left = None if seen.seconds_left is None else max(0.0, seen.seconds_left - age)
            return Job(rule, name, RUNNING, seen.done, seen.total, left, seen.rest)
    return Job(rule, name, RUNNING)


def is_held(log: Path) -> bool:
    """Does a living process hold the lock of `log`? Looking takes a shared lock for a moment, which it waits for."""
    try:
        handle = os.open(log, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


def tail(path: Path) -> list[str] | None:
    """Return the last lines of a text file, None where there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            return file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return None


def saved_step(state: Path) -> int | None:
    """Return the step of a resume state, read from its header; None where there is none that can be read."""
    try:
        with open(state, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, 1 << 24)))
        return int(json.loads(header["__metadata__"]["state"])["step"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, struct.error):
        return None


def _diverged(card: Path) -> str:
    try:
        status = str(read_json(card)["status"])
    except (UserError, KeyError, TypeError):
        return "its card cannot be read"
    return "" if status == "finished" else status
