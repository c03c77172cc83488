"""`python -m causal_priors COMMAND`: one command per stage of the pipeline, and commands that only look.

Each group of commands is a module here that declares its options and imports what it runs only when it is called, so
`--help` and whatever needs no tensors never import torch. A mistake is told in one line with its remedy; the exit codes
are those of `EXIT_CODES`.
"""

import argparse
import errno
import fcntl
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TextIO

from causal_priors import driver
from causal_priors.cli import benches, data, goat, look, report, runs, share, verdicts
from causal_priors.cli.options import Command, OneLineParser
from causal_priors.errors import UserError

EXIT_CODES = """exit codes:
  0        done; a registered test that fails is a result, and exits 0 too
  1        audit: the study is broken; any other command: a bug of this program, with its trace
  2        a mistake or a fault that one line on stderr explains, with the remedy; audit: cannot tell
  128 + n  stopped by signal n, with the work saved; the same command continues"""
_STOPPED = "stopped by {}; what was finished is kept, the same command goes on"
_MEMORY_REMEDY = "run fewer jobs at a time (--cores), or raise the limit; earlier files are untouched"
# How torch says on a CPU and on a GPU, Python of a thread, and the loader of a library, that there is no memory left.
_MEMORY_TEXTS = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "can't start new thread",
    "failed to map segment",
    "annot allocate memory",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    terminal: TextIO | None = None
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        driver.follow()
        options = parser().parse_args(arguments)
        if options.log is not None:
            try:
                terminal = _redirect(options.log)
            except OSError as error:
                return _say(f"error: {options.log}: cannot be written ({error.strerror})", None, 2)
        command: Command = options.command
        command(options)
    except BrokenPipeError:
        # The reader of a pipe has seen enough (`... | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except UserError as error:
        return _say(f"error: {error}", terminal, 2)
    except _StopSignal:
        return _say(_STOPPED.format("SIGTERM"), terminal, 128 + signal.SIGTERM)
    except KeyboardInterrupt:
        return _say(_STOPPED.format("SIGINT"), terminal, 128 + signal.SIGINT)
    except SystemExit as stopped:
        # Training has told its log how far it came.
        if terminal and isinstance(stopped.code, int) and stopped.code > 128:
            print(_STOPPED.format(signal.Signals(stopped.code - 128).name), file=terminal, flush=True)
        raise
    except (MemoryError, RuntimeError, ImportError) as error:
        if not _lacks_memory(error):
            raise
        return _say(f"error: there is not enough memory ({_first_line(error)}); {_MEMORY_REMEDY}", terminal, 2)
    except OSError as error:
        # What is written whole says so itself; this is a log or a pipe.
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO):
            raise
        return _say(f"error: {error.filename or 'a log'}: cannot be written ({error.strerror})", terminal, 2)
    finally:
        signal.signal(signal.SIGTERM, before)
        if terminal:
            terminal.close()
    return 0


class _StopSignal(BaseException):
    """SIGTERM, where no training loop is there to note it."""


def _stop(number: int, frame: FrameType | None) -> None:
    raise _StopSignal


def _say(line: str, terminal: TextIO | None, code: int) -> int:
    """Print the one line of a failure to the log and to the terminal, and return the exit code."""
    for stream in filter(None, (sys.stderr, terminal)):
        # The log may be on the disk that is full.
        with suppress(OSError):
            print(line, file=stream, flush=True)
    return code


def _lacks_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(text in str(error) for text in _MEMORY_TEXTS)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def _redirect(log: Path) -> TextIO:
    """Send this process's stderr to a new file `log`; return what was the terminal, for the one line of a failure."""
    terminal = os.fdopen(os.dup(2), "w", encoding="utf-8")
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 2)
    _hold(2)
    return terminal


def _hold(descriptor: int) -> None:
    """Lock the log for as long as this process lives, however it ends: `status` sees from it what is running."""
    for _ in range(20):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            # `status` is looking, for a moment; or another process has the same log, which is not ours to judge.
            time.sleep(0.005)
        except OSError:
            # A file system without locks: the job runs all the same.
            return


def parser(prog: str = "python -m causal_priors") -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = OneLineParser(
        prog=prog,
        description="One command per stage of the pipeline, and commands that only look.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument(
        "--log", type=Path, help="file for messages and progress; the line of a failure is printed as well"
    )
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, command: Command, help_text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}.")
        sub.set_defaults(command=command)
        return sub

    for group in (data, runs, verdicts, report, goat, look, share, benches):
        group.register(add)
    return top
