"""A copy of the repository in a folder of its own, and Snakemake as a user calls it."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import helpers
import pytest

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".snakemake", "results", "__pycache__", ".*_cache", ".hypothesis")


@dataclass(frozen=True)
class Checkout:
    """A working copy: commands run in it, and its own `src/` is what they import."""

    folder: Path

    def call(self, *arguments):
        """Run a command of this interpreter's environment; return the finished process, its streams joined."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def snakemake(self, *targets, config=()):
        """Run `snakemake --cores all` at nano scale."""
        given = ["scale=nano", f"corpus_archives={helpers.default_corpus() / 'archives'}", *config]
        return self.call("snakemake", "--cores", "all", *targets, "--config", *given)

    def planned(self, *targets, config=()):
        """Return {rule: number of jobs} of a dry run."""
        done = self.snakemake(*targets, "--dry-run", "--quiet", "reason", config=config)
        assert done.returncode == 0, done.stdout
        rows = [line.split() for line in done.stdout.splitlines()]
        return {
            row[0]: int(row[1])
            for row in rows
            if len(row) == 2 and row[0].isidentifier() and row[1].isdigit() and row[0] != "total"
        }

    def edit(self, file, old, new):
        """Replace the first `old` in a file of the copy."""
        path = self.folder / file
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.fixture
def checkout(tmp_path):
    """A clean copy without results."""
    shutil.copytree(ROOT, tmp_path / "copy", ignore=LEFT_OUT)
    return Checkout(tmp_path / "copy")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A copy in which the nano study has run once; tests put back what they change."""
    folder = tmp_path_factory.mktemp("study") / "copy"
    shutil.copytree(ROOT, folder, ignore=LEFT_OUT)
    found = Checkout(folder)
    done = found.snakemake()
    assert done.returncode == 0, done.stdout
    return found, done.stdout


@pytest.fixture
def edited(study):
    """`edit(file, old, new)` on the finished study, undone after the test; times of files are put back as well."""
    found, _ = study
    saved = {}

    def edit(file, old, new):
        path = found.folder / file
        saved.setdefault(path, (path.read_bytes(), path.stat()))
        found.edit(file, old, new)

    yield edit
    for path, (content, status) in saved.items():
        path.write_bytes(content)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
