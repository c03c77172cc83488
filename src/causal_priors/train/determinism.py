"""Arithmetic settings shared by every stage that computes with torch. Call `settle` once, at the start of a stage."""

import torch


def settle(device: str) -> None:
    """Make the same inputs give the same bits on a CPU, and as nearly as torch can on a GPU.

    On a CPU that takes one thread and nothing else: the bits of a sum depend on how it is split over threads. (At
    micro scale two jobs of one thread each also beat one job of two.) On a GPU torch picks deterministic kernels where
    it has them and warns where it has none; asking for that imports the compiler, two seconds that a CPU job is spared.
    """
    if device == "cpu":
        torch.set_num_threads(1)
    else:
        torch.use_deterministic_algorithms(True, warn_only=True)
