"""The same command gives the same bits: in a fresh process, another folder, on one core or two, beside other jobs."""

import os

import pytest
from processes import Child
from test_kill_stages import STAGES, content, finish, fresh


def stages_on(cores, at):
    os.sched_setaffinity(0, cores)
    for stage in STAGES:
        stage(at)


def finish_on(cores, at):
    return Child(at.with_name(f"{at.name}.stderr"), stages_on, cores, fresh(at))


def spin():
    while True:
        pass


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """The bytes of every artefact, each stage in a process of its own, on all cores."""
    return finish(fresh(tmp_path_factory.mktemp("once") / "at"))


def test_another_folder_one_core_and_other_jobs_change_no_bit(once, tmp_path):
    cores = sorted(os.sched_getaffinity(0))
    other = Child(tmp_path / "spin", spin)
    runs = {
        "one core": finish_on(cores[:1], tmp_path / "a" / "much" / "deeper" / "folder"),
        "two cores": finish_on(cores[:2], tmp_path / "b"),
    }
    ended = {name: child.end() for name, child in runs.items()}
    other.process.kill()
    assert {name: code for name, (code, _) in ended.items()} == dict.fromkeys(runs, 0), ended
    assert content(tmp_path / "a" / "much" / "deeper" / "folder") == once
    assert content(tmp_path / "b") == once
