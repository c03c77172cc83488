"""The device of a job: a GPU where the scale is one for a GPU and there is one, else the CPU.

One process, one GPU. Jobs beside each other on a machine, and the processes of one run, take the first GPU that no other
process of this project holds there: the hold is a lock of the kernel's, which goes with its process however that ends.
"""

import ctypes
import fcntl
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from causal_priors.errors import refuse
from causal_priors.progress import note
from causal_priors.scale import Scale

# Linux's number of the request to get a signal when the parent ends.
_PR_SET_PDEATHSIG = 1
# Locks last as long as they are open.
_held: list[int] = []


def pick(asked: str, scale: Scale) -> str:
    """Return "cpu", or "cuda" after making a GPU of its own the current one. asked: "auto", "cpu" or "cuda".

    Raises `UserError` where a GPU is asked for and there is none.
    """
    if asked == "cpu" or (asked == "auto" and not scale.wants_gpu):
        return "cpu"
    import torch

    if not torch.cuda.is_available():
        if asked == "cuda":
            raise refuse("finds no GPU", key="device", value=asked, remedy="torch.cuda.is_available() must be True")
        if os.environ.get("RANK", "0") == "0":
            note(f"scale {scale.name} is one for a GPU and there is none: on the CPU")
        return "cpu"
    names = [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]
    index = hold(names, Path(tempfile.gettempdir()) / f"causal-priors-gpus-{os.getuid()}")
    if index is None:
        if "RANK" in os.environ:
            raise refuse("are more than there are free GPUs", key="processes", remedy=f"{len(names)} GPUs are visible")
        note("every GPU is held by another job: shares the first (limit jobs with `snakemake --resources gpu=N`)")
    torch.cuda.set_device(index or 0)
    return "cuda"


def hold(names: Sequence[str], folder: Path) -> int | None:
    """Take the first of `names` that no process holds, for as long as this one lives; return its index, None: none."""
    folder.mkdir(mode=0o700, exist_ok=True)
    for index, name in enumerate(names):
        handle = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            continue
        _held.append(handle)
        return index
    return None


def become_team(processes: int, arguments: Sequence[str]) -> NoReturn:
    """Become `torchrun`, which starts this command line in so many processes on this machine.

    They inherit the log, which this process has opened; `torchrun` would take `--log` for one of its own options.
    """
    without = list(arguments)
    if "--log" in without:
        at = without.index("--log")
        del without[at : at + 2]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    os.execv(sys.executable, [sys.executable, *launcher, "-m", "causal_priors", *without])


def end_with_launcher() -> None:
    """Stop this process, as SIGTERM would, when the `torchrun` that started it is gone. Linux only."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
