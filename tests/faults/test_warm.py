"""Jobs forked from a process that has the libraries loaded: for whoever started them, they are the job itself."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import scale, write_shards

from causal_priors import warm

OUTPUTS = ("model.safetensors", "losses.parquet", "positions.parquet", "run.json")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Of nano, for runs that end at once, and of micro, for runs of some seconds."""
    return {
        name: write_shards(tmp_path_factory.mktemp(name), scale(name), documents=documents)
        for name, documents in (("nano", 24), ("micro", 140))
    }


class Driver:
    """This process as the driver of one warm process."""

    def __init__(self, log: Path) -> None:
        self.log = log
        warm.start(log)
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.address = Path(os.environ.pop(warm.VARIABLE))
        until(self.address.exists, "the warm process listens")
        self.pid = next(pid for pid, parent in processes() if parent == os.getpid() and is_warm(pid))

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def jobs(self) -> list[int]:
        return [pid for pid, parent in processes() if parent == self.pid]


def processes() -> list[tuple[int, int]]:
    """(process, parent) of every process."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            found.append((int(stat.parent.name), int(parent)))
    return found


def is_warm(pid: int) -> bool:
    return b"causal_priors.warm" in Path(f"/proc/{pid}/cmdline").read_bytes()


def until(seen, what: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.01)


@pytest.fixture
def driver(tmp_path, monkeypatch):
    monkeypatch.delenv(warm.VARIABLE, raising=False)
    made = Driver(tmp_path / "logs" / "warm.log")
    yield made
    if warm._lifeline is not None:
        os.close(warm._lifeline)
        warm._lifeline = None
    until(lambda: made.pid not in dict(processes()), "the warm process ends with its driver")
    assert not made.address.parent.exists()


def command(shards: dict[str, Path], out: Path, of: str, run: str) -> list[str]:
    options = ["train", run, "--scale", of, "--shards", str(shards[of]), "--out", str(out)]
    return [sys.executable, "-m", "causal_priors", "--log", f"{out}.log", *options]


def start(driver: Driver, shards: dict[str, Path], out: Path) -> subprocess.Popen:
    """Start a training job of some seconds, and wait until its child is about to train."""
    job = subprocess.Popen(command(shards, out, "micro", "S-rope-L64-s0"), env=driver.environment)
    until(lambda: driver.jobs() and (out / ".lock").exists(), "the job begins")
    return job


def test_a_warm_job_is_the_job(driver, shards, tmp_path):
    """Same files bit for bit, same exit code and line of a mistake."""
    for name, environment in (("warm", driver.environment), ("cold", os.environ)):
        subprocess.run(command(shards, tmp_path / name, "nano", "S-rope-L16-s0"), env=environment, check=True)
    assert [(tmp_path / "warm" / name).read_bytes() for name in OUTPUTS] == [
        (tmp_path / "cold" / name).read_bytes() for name in OUTPUTS
    ]
    wrong = command(shards, tmp_path / "none", "nano", "S-rope-L16-s9")
    refused = [subprocess.run(wrong, env=env, capture_output=True) for env in (driver.environment, os.environ)]
    assert refused[0].returncode == refused[1].returncode == 2
    assert refused[0].stderr == refused[1].stderr
    assert b"is not a registered run" in refused[0].stderr
    assert [line.split(":")[0] for line in driver.lines()] == ["warm", "warm"]


def test_signals_reach_the_child_and_its_end_comes_back(driver, shards, tmp_path):
    out = tmp_path / "run"
    job = start(driver, shards, out)
    assert b"libtorch" not in Path(f"/proc/{job.pid}/maps").read_bytes()
    job.send_signal(signal.SIGTERM)
    assert job.wait(60) == 128 + signal.SIGTERM
    assert "stopped by SIGTERM" in Path(f"{out}.log").read_text()

    # Whoever stands for a job is killed: the job saves and stops by itself.
    job = start(driver, shards, out)
    (child,) = driver.jobs()
    job.kill()
    assert job.wait(60) == -signal.SIGKILL
    until(lambda: child not in dict(processes()), "the child stops")
    assert "stopped by SIGTERM" in Path(f"{out}.log").read_text()

    # The child is killed: so it looks from outside.
    job = start(driver, shards, out)
    os.kill(driver.jobs()[0], signal.SIGKILL)
    assert job.wait(60) == -signal.SIGKILL


def ask(driver: Driver, script: str) -> subprocess.CompletedProcess:
    """Run a script with the search path that `python -m` gives."""
    head = "import os, resource, sys, time; sys.path[0] = os.getcwd(); from causal_priors.warm import hand_over; "
    command = [sys.executable, "-c", head + script]
    return subprocess.run(command, env=driver.environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("os.nice(1)", "another priority"),
        ("os.umask(0o77)", "another umask"),
        ("os.environ['OMP_NUM_THREADS'] = '3'", "another environment"),
        ("resource.setrlimit(resource.RLIMIT_CORE, (0, 0))", "another limits"),
        ("sys.path.append('elsewhere')", "another python"),
        ("os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})", "another cores"),
    ],
)
def test_a_job_in_another_setting_starts_cold(driver, change, reason):
    if "affinity" in change and len(os.sched_getaffinity(0)) == 1:
        pytest.skip("this machine has one core")
    found = ask(driver, f"assert hand_over(['train', '--help']) == 0; {change}; print(hand_over(['train', '--help']))")
    assert found.stdout.endswith("None\n"), found.stderr
    assert driver.lines()[-1].startswith(f"cold: {reason}")


def test_a_process_of_another_driver_is_not_served(driver):
    """A process that does not descend from the driver, as a cluster's job on the same machine."""
    wait = "\nif os.fork(): os._exit(0)\nwhile os.getppid() != 1: time.sleep(.01)\n"
    found = ask(driver, f"{wait}print(hand_over(['train', '--help']), flush=True)")
    assert found.stdout == "None\n", found.stderr
    assert "driver" in driver.lines()[-1]


def test_without_a_warm_process_jobs_start_cold(monkeypatch, tmp_path):
    monkeypatch.setenv(warm.VARIABLE, str(tmp_path / "nobody"))
    assert warm.hand_over(["train", "--help"]) is None
    monkeypatch.delenv(warm.VARIABLE)
    assert warm.hand_over(["train", "--help"]) is None


def test_large_pages_are_asked_for_where_jobs_are_forked_and_a_users_own_choice_stays(driver):
    settings = Path(f"/proc/{driver.pid}/environ").read_bytes().split(b"\0")
    assert b"GLIBC_TUNABLES=glibc.malloc.hugetlb=1" in settings
    own = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}
    assert warm._with_large_pages(own) == own
    other = warm._with_large_pages({"GLIBC_TUNABLES": "glibc.malloc.perturb=1"})
    assert other["GLIBC_TUNABLES"] == "glibc.malloc.perturb=1:glibc.malloc.hugetlb=1"
