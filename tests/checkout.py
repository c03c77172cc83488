"""A copy of the repository in which Snakemake is started, killed and started again."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import helpers

from causal_priors.artifacts import digest_of, sha256_file
from causal_priors.config import ROOT

LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".snakemake", "results", "__pycache__", ".*_cache", ".hypothesis")
# What draws how long training steps took, which differs between any two studies.
TIMED = {f"figures/{name}" for name in ("step_times.svg", "step_times.png", "narrow/step_times.svg")} | {"report.html"}


class Checkout:
    """A copy of the repository; each Snakemake is a process group of its own."""

    def __init__(self, folder: Path) -> None:
        shutil.copytree(ROOT, folder, ignore=LEFT_OUT)
        self.folder = folder
        self.started: list[subprocess.Popen] = []

    def launch(
        self, arguments: Iterable[str], environment: Mapping[str, str] = os.environ, code: Iterable[Path] = ()
    ) -> subprocess.Popen:
        """Start Snakemake at nano on the default corpus. code: folders of modules beside the copy's own."""
        corpus = f"corpus_archives={helpers.default_corpus() / 'archives'}"
        command = [sys.executable, "-m", "snakemake", *arguments, "--config", "scale=nano", corpus]
        path = os.pathsep.join(map(str, (self.folder / "src", *code)))
        with open(self.folder / f"out-{len(self.started)}", "w") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**environment, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def said(self, process: subprocess.Popen) -> str:
        """What it has said."""
        return (self.folder / f"out-{self.started.index(process)}").read_text()

    def kill(self, process: subprocess.Popen, *, group: bool = True) -> None:
        """Kill the driver, with all jobs of its group or alone."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(process.pid, signal.SIGKILL)
        process.wait(60)

    def logged(self, run: str) -> str:
        """What the job that trains `run` has told its log so far; Snakemake removes logs of earlier jobs."""
        try:
            return (self.folder / "results/nano/logs/train" / f"{run}.log").read_text()
        except FileNotFoundError:
            return ""

    def digests(self) -> dict[str, str]:
        """{file: sha256} of every artefact, "timed" for what shows times; no logs, times, locks or links of kept runs."""
        root = self.folder / "results" / "nano"
        left_out = {"logs", "benchmarks", "work"}
        files = [path for path in root.rglob("*") if path.is_file() and not left_out & set(path.parts)]
        found = {
            path.relative_to(root).as_posix(): sha256_file(path)
            for path in files
            if "timing" not in path.name and not path.name.endswith("lock")
        }
        crate = "ro-crate-metadata.json"
        if crate in found:
            entities = json.loads((root / crate).read_text())["@graph"]
            found[crate] = digest_of([entity for entity in entities if entity["@id"] not in TIMED])
        return found | dict.fromkeys(TIMED & found.keys(), "timed")
