"""Arithmetic settings shared by every stage that computes with torch.

One thread: the bits of a CPU matrix product depend on how it is split, and at micro scale two jobs of one thread each
beat one job of two. Call `settle` once, at the start of a stage.
"""

import torch
import torch.utils.deterministic


def settle(device: str) -> None:
    """Fix threads and algorithms so that the same inputs give the same bits on a CPU.

    On a GPU, deterministic kernels are asked for where torch has them; those it lacks only warn.
    """
    if device == "cpu":
        torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=device != "cpu")
    # torch would otherwise fill every fresh buffer with NaN, which finds bugs (the tests do it) but costs time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
