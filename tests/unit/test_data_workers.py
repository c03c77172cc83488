"""Forked processes: results in order, errors at once, a killed one told in a line, and nothing left running."""

import multiprocessing
import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

from causal_priors.data.workers import spread
from causal_priors.errors import UserError, refuse


def collected(work, tasks, workers):
    reports = []
    with closing(spread(work, tasks, workers, lambda *values: reports.append(values))) as done:
        return list(done), sorted(reports)


def square(task, report):
    # The first tasks take longest.
    time.sleep(0.02 / (task + 1))
    report(task, "begun")
    report(task, "done")
    return task * task


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_results_come_in_order_and_every_report_arrives(workers):
    done, reports = collected(square, iter(range(30)), workers)
    assert done == [(task, task * task) for task in range(30)]
    assert reports == sorted((task, word) for task in range(30) for word in ("begun", "done"))
    assert not multiprocessing.active_children()


def test_tasks_are_worked_on_at_the_same_time_in_other_processes():
    def meet(task, report):
        # Each writes its own end and waits for the other's: alone, neither would return.
        os.write(pipes[task][1], b"x")
        return os.read(pipes[1 - task][0], 1), os.getpid()

    pipes = [os.pipe(), os.pipe()]
    done, _ = collected(meet, range(2), 2)
    assert {result[0] for _, result in done} == {b"x"}
    assert len({result[1] for _, result in done} | {os.getpid()}) == 3


def test_no_tasks():
    assert collected(square, [], 3) == ([], [])


def sour(task, report):
    if task == 3:
        raise refuse("is sour", file="milk", remedy="buy some")
    time.sleep(0.001 if task < 3 else 60)


@pytest.mark.parametrize("workers", [1, 3])
def test_the_first_error_is_raised_at_once(workers):
    began = time.monotonic()
    with pytest.raises(UserError, match="milk: is sour; buy some"):
        collected(sour, range(100), workers)
    assert time.monotonic() - began < 30
    assert not multiprocessing.active_children()


def test_lack_of_memory_comes_through_as_what_it_is():
    def hungry(task, report):
        raise MemoryError("no more")

    with pytest.raises(MemoryError, match="no more"):
        collected(hungry, range(3), 2)


def test_a_bug_comes_with_its_trace():
    def broken(task, report):
        return {}[task]

    with pytest.raises(RuntimeError, match=r"in broken(.|\n)*KeyError: 0"):
        collected(broken, range(1), 2)


def test_a_killed_process_is_told_in_one_line():
    def shot(task, report):
        if task == 4:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(UserError, match=r"a worker process was killed by signal 9; if memory ran out.*goes on"):
        collected(shot, range(20), 2)
    assert not multiprocessing.active_children()


def test_a_reader_that_stops_early_leaves_no_process():
    with pytest.raises(ZeroDivisionError), closing(spread(square, range(1000), 3, lambda *_: None)) as done:
        next(done)
        raise ZeroDivisionError
    assert not multiprocessing.active_children()


def gone(pid):
    # Whoever is first in a container may leave the dead unburied.
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


def test_processes_end_with_the_one_that_forked_them(tmp_path):
    def busy(task, report):
        (tmp_path / f"{os.getpid()}.pid").touch()
        while True:
            pass

    context = multiprocessing.get_context("fork")
    parent = context.Process(target=collected, args=(busy, range(3), 3))
    parent.start()
    until = time.monotonic() + 60
    while len(found := list(tmp_path.glob("*.pid"))) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(parent.pid, signal.SIGKILL)
    parent.join()
    pids = [int(path.stem) for path in found]
    assert len(pids) == 3
    while not all(map(gone, pids)) and time.monotonic() < until:
        time.sleep(0.01)
    assert all(map(gone, pids))
