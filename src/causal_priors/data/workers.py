"""Work spread over forked processes: results in order, errors at once, and nothing left running.

What is unusual: a process that is killed (the kernel does that where memory runs out) is told in one line; processes
end when the one that forked them does, however that ended; and they keep its locks until then, so that no second writer
meets them. Tasks and results go through pipes and are small: texts and ids stay in files. One worker is this process.
"""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any, TypeVar

from causal_priors.errors import UserError, refuse

Task = TypeVar("Task")
Result = TypeVar("Result")
_SECONDS_TO_END = 5.0


def spread(
    work: Callable[[Task, Callable[..., None]], Result],
    tasks: Iterable[Task],
    workers: int,
    report: Callable[..., None],
) -> Generator[tuple[Task, Result], None, None]:
    """Yield (task, work(task, report)) in the order of `tasks`; what `work` reports is handed to `report` here.

    Close it where it is not read to its end (`contextlib.closing`). Raises the first error that a task meets, and
    `UserError` where a process was killed.
    """
    if workers == 1:
        for task in tasks:
            yield task, work(task, report)
        return
    with _Crew(work, workers) as crew:
        source = enumerate(tasks)
        waiting: dict[int, Task] = {}
        done: dict[int, Result] = {}
        turn = 0
        while True:
            while crew.idle and (given := next(source, None)) is not None:
                waiting[given[0]] = given[1]
                crew.give(*given)
            if turn not in waiting:
                return
            if turn in done:
                yield waiting.pop(turn), done.pop(turn)
                turn += 1
                continue
            for number, result in crew.listen(report):
                done[number] = result


class _Crew:
    """The processes. idle: those with nothing to do."""

    def __init__(self, work: Callable[..., Any], workers: int) -> None:
        # Forked, so that a tokenizer is there at once and a lock is kept; before any thread of this process exists.
        context = multiprocessing.get_context("fork")
        self._life, self._kept = os.pipe()
        self._members: dict[Connection, Any] = {}
        self._at_work: dict[Connection, int] = {}
        for _ in range(workers):
            ours, theirs = context.Pipe()
            others = (self._kept, ours, *self._members)
            process = context.Process(target=_serve, args=(work, theirs, self._life, others), daemon=True)
            process.start()
            theirs.close()
            self._members[ours] = process
        self.idle = list(self._members)

    def __enter__(self) -> "_Crew":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for connection, process in self._members.items():
            connection.close()
            if kind is not None:
                process.terminate()
        for process in self._members.values():
            process.join(_SECONDS_TO_END)
            process.kill()
            process.join()
        os.close(self._kept)
        os.close(self._life)

    def give(self, number: int, task: Any) -> None:
        """Give a task to an idle process."""
        connection = self.idle.pop(0)
        self._at_work[connection] = number
        try:
            connection.send(task)
        except OSError as error:
            raise self._lost(connection) from error

    def listen(self, report: Callable[..., None]) -> Iterator[tuple[int, Any]]:
        """Wait for messages; hand reports on and yield (number of the task, its result)."""
        for connection in wait(list(self._at_work)):
            assert isinstance(connection, Connection)
            try:
                kind, value = connection.recv()
            except (EOFError, OSError) as error:
                raise self._lost(connection) from error
            if kind == "report":
                report(*value)
            elif kind == "error":
                raise value
            elif kind == "bug":
                raise RuntimeError(value)
            else:
                self.idle.append(connection)
                yield self._at_work.pop(connection), value

    def _lost(self, connection: Connection) -> UserError:
        process = self._members[connection]
        process.join(_SECONDS_TO_END)
        code = process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with {code}"
        remedy = "if memory ran out, give it fewer threads; what is finished is kept, the same command goes on"
        return refuse(f"a worker process {how}", remedy=remedy)


def _serve(work: Callable[..., Any], connection: Connection, life: int, others: tuple[int | Connection, ...]) -> None:
    # Ctrl-C reaches all of a terminal's processes; the one that forked this one decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    for other in others:
        os.close(other if isinstance(other, int) else other.fileno())
    threading.Thread(target=_end_with, args=(life,), daemon=True).start()

    def report(*values: Any) -> None:
        connection.send(("report", values))

    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        try:
            connection.send(("result", work(task, report)))
        except (UserError, MemoryError) as error:
            connection.send(("error", error))
        except Exception:
            connection.send(("bug", traceback.format_exc()))


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _end_with(life: int) -> None:
    """End this process when the other end of the pipe `life` is closed, with the process that holds it."""
    os.read(life, 1)
    os._exit(1)
