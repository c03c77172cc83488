"""The run matrix: read from outputs, logs and locks while jobs run, after they ended well or badly, and after a kill."""

import argparse
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from causal_priors import cli, driver
from causal_priors.cli import main
from causal_priors.cli.options import study_of
from causal_priors.progress import Progress
from causal_priors.report import jobs, status
from causal_priors.train.resume import TrainingState, save_state

ROOT = Path(__file__).resolve().parents[2]
RUN = "S-rope-L16-s0"
SCALE = ["--scale", "nano", "--preregistration", str(ROOT / "preregistration")]


@pytest.fixture
def results(tmp_path):
    (tmp_path / "nano").mkdir()
    return tmp_path


def log_of(results, rule, name=RUN):
    path = results / "nano/logs" / rule / f"{name}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def alive(log):
    """A job that holds the lock of its log, as every stage called with --log does; yields the log to write to."""
    with open(log, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def told(results, capsys, *options):
    assert main(["status", *SCALE, "--results", str(results), *options]) == 0
    return capsys.readouterr().out


def line_of(text, group="S-rope-L16 "):
    return next(line for line in text.splitlines() if line.startswith(group))


def train_job(results):
    return jobs.train_job(RUN, results / "nano/runs" / RUN, log_of(results, "train"))


def test_an_empty_folder_waits_for_everything(results, capsys):
    text = told(results, capsys)
    counts = {
        line.split()[0]: line.split()[1:]
        for line in text.splitlines()
        if line.startswith(("train", "eval", "inter", "control"))
    }
    assert counts == {
        "train": ["–", "–", "–", "–", "82"],
        "evaluate": ["–", "–", "–", "–", "82"],
        "intervene": ["–", "–", "–", "–", "30"],
        "control": ["–", "–", "–", "–", "5"],
    }
    assert "Nothing is running. To go on: snakemake --cores all" in text
    assert line_of(text) == "S-rope-L16              s0 ...  s1 ...  s2 ..."
    assert max(map(len, text.splitlines())) <= status.WIDTH


def test_a_running_job_shows_its_step_loss_rate_and_time_left(results, capsys):
    now = 0.0
    with alive(log_of(results, "train")) as file:
        progress = Progress(300, RUN, stream=file, clock=lambda: now)
        now = 10.0
        progress.update(100, tokens=102_400, loss=4.523)
        file.flush()
        text = told(results, capsys)
    left = r"step 100 of 300 \(33%\), loss 4.523, 10,240 tokens/s, about 0:00:(20|19|18) left"
    assert re.search(rf"^  train {RUN}: {left}$", text, re.M)
    assert line_of(text).split()[1:3] == ["s0", ">.."]
    # The lock went with the job: nothing was saved, so nothing can be continued.
    assert train_job(results).state == jobs.STOPPED


def test_the_time_left_runs_on_between_two_lines(results):
    log = log_of(results, "train")
    with alive(log) as file:
        file.write(f"{RUN}: step 1/9 (11%), loss 5, 1 step/s, 0:10:00 left\n")
        file.flush()
        os.utime(log, (time.time() - 60,) * 2)
        assert train_job(results).seconds_left == pytest.approx(540, abs=5)


def test_a_killed_stage_lets_its_lock_go(results, tmp_path):
    log = log_of(results, "train")
    command = [sys.executable, "-m", "causal_priors", "--log", str(log), "status", *SCALE, "--results", str(tmp_path)]
    stage = subprocess.Popen([*command, "--watch"], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not jobs.is_held(log):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert train_job(results).state == jobs.RUNNING
    finally:
        stage.send_signal(signal.SIGKILL)
        stage.wait()
    assert (train_job(results).state, train_job(results).text) == (jobs.STOPPED, "killed")


def test_looking_never_keeps_a_stage_from_its_lock(results, monkeypatch):
    """A stage that starts in the very moment in which `status` looks takes its lock a moment later."""
    log = log_of(results, "train")
    with open(log, "w") as stage, open(log) as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        monkeypatch.setattr(cli.time, "sleep", lambda seconds: fcntl.flock(looking, fcntl.LOCK_UN))
        cli._hold(stage.fileno())
        assert jobs.is_held(log)
    assert not jobs.is_held(log)


@pytest.mark.parametrize(
    ("log", "state", "text"),
    [
        (
            "error: out: cannot be written (No space left on device); free some space\n",
            "failed",
            "out: cannot be written",
        ),
        (
            "Traceback (most recent call last):\n  ...\nValueError: odd\n",
            "failed",
            "ValueError: odd (a bug: the trace is in ",
        ),
        (
            f"{RUN}: stopped by SIGTERM after step 3 of 5; saved, ...\n",
            "stopped",
            "stopped by SIGTERM after step 3 of 5",
        ),
        ("stopped by SIGINT; what was finished is kept\n", "stopped", "stopped by SIGINT"),
        (f"{RUN}: step 3/5 (60%), loss 5, 1 step/s\n", "stopped", "killed"),
        ("", "stopped", "killed"),
    ],
)
def test_how_a_job_ended_is_read_from_its_log(results, capsys, log, state, text):
    log_of(results, "train").write_text(log)
    found = train_job(results)
    assert found.state == state
    assert found.text.startswith(text)
    printed = told(results, capsys)
    assert f"\n{state}:\n  train {RUN}: {text}" in printed


def test_a_stopped_run_says_where_it_goes_on_from(results):
    log_of(results, "train").write_text(f"{RUN}: step 3/5 (60%), loss 5, 1 step/s\n")
    work = results / "nano/runs" / RUN / "work"
    tensors = {name: torch.zeros(3) for name in ("values", "mean", "square")}
    save_state(TrainingState(step=2, optimizer=tensors, losses=[(5.0, 1.0, 1.0)] * 2), work, {"code": "c"})
    assert jobs.saved_step(work / "state.safetensors") == 2
    assert (train_job(results).step, train_job(results).text) == (2, "killed; saved at step 2")
    (work / "state.safetensors").write_bytes(b"torn")
    assert jobs.saved_step(work / "state.safetensors") is None


def test_a_finished_run_is_done_and_a_diverged_one_says_so(results, capsys):
    folder = results / "nano/runs" / RUN
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"status": "finished"}')
    (folder / "evaluation.parquet").touch()
    assert line_of(told(results, capsys)).split()[1:3] == ["s0", "##."]
    (folder / "run.json").write_text('{"status": "diverged at step 3"}')
    assert (train_job(results).state, train_job(results).text) == (jobs.DONE, "diverged at step 3")
    assert f"train {RUN}: diverged at step 3" in told(results, capsys)


def test_runs_that_are_not_registered_are_marked(results, capsys):
    (results / "nano/runs/S-mine-L16-s0").mkdir(parents=True)
    assert line_of(told(results, capsys), "S-mine").endswith("s0 ..  (exploratory)")


def test_the_rest_is_estimated_from_finished_jobs_of_the_rule(tmp_path):
    for rule, seconds in (("train", (10, 30, 20)), ("evaluate", (4,))):
        (tmp_path / rule).mkdir()
        for number, value in enumerate(seconds):
            (tmp_path / rule / f"{number}.tsv").write_text(f"s\th:m:s\n{value}\t0\n")
    found = [
        jobs.Job("train", "a", jobs.RUNNING, seconds_left=6.0),
        jobs.Job("evaluate", "b", jobs.RUNNING),
        jobs.Job("train", "c", jobs.WAITING),
        jobs.Job("train", "d", jobs.DONE),
    ]
    # 6 + half of 4 + the median of the three, by two at a time.
    assert status.remaining_seconds(found, tmp_path) == (6 + 2 + 20) / 2
    assert status.remaining_seconds([*found, jobs.Job("intervene", "e", jobs.WAITING)], tmp_path) is None
    assert status.remaining_seconds(found[2:], tmp_path) is None


def test_a_driver_between_two_jobs_is_seen(results, capsys):
    with open(results / "nano" / driver.LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "Snakemake is at work, between two jobs." in told(results, capsys)


def test_a_low_terminal_gets_no_matrix(results):
    study = study_of(argparse.Namespace(scale="nano", preregistration=ROOT / "preregistration", results=results))
    whole, _ = status.status_text(study)
    low, _ = status.status_text(study, height=24)
    assert len(low.splitlines()) < 24
    assert low.splitlines()[:7] == whole.splitlines()[:7]
    assert low.splitlines()[-1] == whole.splitlines()[-1]
    assert "S-rope-L16" not in low
    assert status.status_text(study, height=len(whole.splitlines()) + 1)[0] == whole
