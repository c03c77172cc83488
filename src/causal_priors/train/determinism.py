"""Process settings shared by every stage that computes with torch. Call `settle` once, at the start of a stage."""

import ctypes
import gc
import time

import torch

# glibc's numbers for mallopt, and the sizes in bytes up to which freed memory stays with the process.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT, _LARGEST_KEPT = 1 << 29, 1 << 26


def settle(device: str) -> float:
    """Make the same inputs give the same bits on a CPU, and as nearly as torch can on a GPU.

    On a CPU that takes one thread and nothing else: the bits of a sum depend on how it is split over threads. (At
    micro scale two jobs of one thread each also beat one job of two.) On a GPU torch picks deterministic kernels where
    it has them and warns where it has none; asking for that imports the compiler, two seconds that a CPU job is spared.

    Called after the imports, it also takes what they made out of the garbage collector's sight, at exit too, and returns
    the CPU seconds that starting up took.
    """
    startup = time.process_time()
    gc.freeze()
    if device == "cpu":
        torch.set_num_threads(1)
        _keep_freed_memory()
    else:
        torch.use_deterministic_algorithms(True, warn_only=True)
        # It would also fill all memory that is about to be written.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return startup


def _keep_freed_memory() -> None:
    """Let malloc reuse the tensors of one step for the next, where the C library is glibc.

    By default it gives large ones back to the kernel, which must clear the pages again: up to a sixth of a step.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_TRIM_THRESHOLD, _KEPT)
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)
