"""One driver at a time, and no job without one: with real processes, but without Snakemake."""

import os
import signal
import time

import pytest
from processes import Child

from causal_priors import driver
from causal_priors.errors import UserError
from causal_priors.place import place

WAITING = "waiting for jobs of a stopped snakemake"


def drive(folder, ready):
    driver.claim(folder)
    ready.touch()
    time.sleep(60)


def work(folder, ready, said, environment=()):
    """A job of the driver that holds `folder`. Asked to stop, it saves for as long as `said` does not say who waits."""
    os.environ.update(environment)

    def save(number, frame):
        while said and not (said.exists() and WAITING in said.read_text()):
            time.sleep(0.01)
        (folder / "saved").touch()
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, save)
    os.environ[driver.VARIABLE] = str((folder / driver.LOCK).resolve())
    driver.follow()
    ready.touch()
    time.sleep(60)


def wait_for(path):
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until, path
        time.sleep(0.01)


def started(tmp_path, name, target, *arguments):
    child = Child(tmp_path / f"{name}.stderr", target, tmp_path / "results", tmp_path / name, *arguments)
    wait_for(tmp_path / name)
    return child


def test_a_second_driver_is_refused_while_the_first_lives(tmp_path):
    first = started(tmp_path, "first", drive)
    with pytest.raises(UserError, match="results: another snakemake is at work here; wait for it, or stop it first"):
        driver.claim(tmp_path / "results")
    first.send(signal.SIGKILL)
    first.end()
    started(tmp_path, "second", drive).process.kill()


def test_jobs_of_a_killed_driver_save_and_end_before_the_next_one_begins(tmp_path):
    first = started(tmp_path, "first", drive)
    job = started(tmp_path, "job", work, tmp_path / "second.stderr")
    first.send(signal.SIGKILL)
    first.end()
    second = started(tmp_path, "second", drive)
    assert (tmp_path / "results" / "saved").exists()
    assert job.end()[0] == 128 + signal.SIGTERM
    second.process.kill()
    assert WAITING in second.end()[1]


def test_a_job_of_a_living_driver_is_left_alone(tmp_path):
    first = started(tmp_path, "first", drive)
    job = started(tmp_path, "job", work, None)
    time.sleep(0.2)
    assert job.process.is_alive()
    first.process.kill()
    assert job.end()[0] == 128 + signal.SIGTERM


def test_a_job_of_a_batch_system_goes_on_without_its_driver(tmp_path):
    first = started(tmp_path, "first", drive)
    here = started(tmp_path, "here", work, None, {driver.PLACE: place()})
    elsewhere = started(tmp_path, "elsewhere", work, None, {driver.PLACE: place(), "SLURM_JOB_ID": "7"})
    first.process.kill()
    assert here.end()[0] == 128 + signal.SIGTERM
    assert elsewhere.process.is_alive()
    elsewhere.process.kill()


def test_without_a_driver_there_is_nothing_to_follow(monkeypatch):
    monkeypatch.delenv(driver.VARIABLE, raising=False)
    driver.follow()
    monkeypatch.setenv(driver.VARIABLE, "no/such/file")
    driver.follow()
