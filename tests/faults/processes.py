"""Real processes to kill: forked from a server that has imported torch once and computed nothing."""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from causal_priors.cli import main

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [f"causal_priors.{name}" for name in ("train.loop", "intervene", "data.index", "data.tokenise", "prereg.scoring")]
)


def _run(errors: Path, work: Callable[..., None], arguments: tuple) -> None:
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    work(*arguments)


def cli(*arguments: object) -> None:
    """End the process as `python -m causal_priors arguments...` does."""
    raise SystemExit(main([str(argument) for argument in arguments]))


class Child:
    """`work(*arguments)` in a process of its own; its stderr goes to the file `errors`."""

    def __init__(self, errors: Path, work: Callable[..., None], *arguments: object) -> None:
        self.errors = errors
        # It may be killed before it opens the file.
        errors.write_text("")
        self.process = SERVER.Process(target=_run, args=(errors, work, arguments))
        self.process.start()

    def send(self, number: int) -> None:
        """Send a signal; a process that has ended is left alone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def kill_when(self, seen: Callable[[], bool]) -> bool:
        """Kill the process at once when `seen()` holds; say whether it was still at work."""
        while self.process.is_alive():
            if seen():
                self.send(signal.SIGKILL)
                break
        return self.end()[0] == -signal.SIGKILL

    def end(self) -> tuple[int, str]:
        """Wait for the process; return its exit code and what it wrote to stderr."""
        self.process.join(timeout=300)
        assert self.process.exitcode is not None, "the process did not end"
        return self.process.exitcode, self.errors.read_text()


def after(seconds: float) -> Callable[[], bool]:
    """True from `seconds` from now on."""
    until = time.monotonic() + seconds

    def seen() -> bool:
        time.sleep(0.0005)
        return time.monotonic() >= until

    return seen


def appears(folder: Path, pattern: str) -> Callable[[], bool]:
    """True as soon as a file of this pattern is in `folder`."""
    return lambda: any(folder.glob(pattern))
