"""Several processes, one run: each takes its share of every batch, and their gradients are summed.

`torchrun --nproc-per-node N -m causal_priors train ...` starts N processes with the variables that are read here; they
talk by NCCL on GPUs and by gloo on CPUs. Rank 0 leads: it alone locks, reads and writes the run's folder and prints. The
others hold the same parameters, since they start from its and make the same updates. In a process alone, the usual
case, nothing here does anything.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class Team:
    """The processes of one run, seen from one of them. Every method but `leads` is called in all or in none."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def leads(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def sum(self, value: Tensor) -> None:
        """Replace `value` by its sum over the processes, which is the same to the last bit in all."""
        if self.size > 1:
            torch.distributed.all_reduce(value)

    def largest(self, number: int) -> int:
        """Return the largest of the processes' numbers."""
        if self.size == 1:
            return number
        value = torch.tensor(number, device=self.device)
        torch.distributed.all_reduce(value, torch.distributed.ReduceOp.MAX)
        return int(value)

    def copy(self, values: Iterable[Tensor]) -> None:
        """Overwrite tensors by those of the leader."""
        if self.size > 1:
            for value in values:
                torch.distributed.broadcast(value, 0)

    def told(self, value: T) -> T:
        """Return the leader's value."""
        if self.size == 1:
            return value
        held = [value]
        torch.distributed.broadcast_object_list(held, 0)
        return held[0]

    def asked(self, ask: Callable[[], T]) -> T:
        """Return what `ask` returns in the leader; where it raises there, the others end in silence."""
        if self.size == 1:
            return ask()
        answer: Any = None
        failure: BaseException | None = None
        if self.leads:
            try:
                answer = ask()
            except BaseException as error:
                failure = error
        answer, failed = self.told((answer, failure is not None))
        if failure is not None:
            raise failure
        if failed:
            raise SystemExit(2)
        found: T = answer
        return found


@contextmanager
def joined(device: str) -> Iterator[Team]:
    """Join the processes that `torchrun` started, and leave them at the end; a process alone is a team of one."""
    size = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
    if size == 1:
        yield Team(device=device)
        return
    import torch.distributed

    torch.distributed.init_process_group("gloo" if device == "cpu" else "nccl")
    try:
        yield Team(torch.distributed.get_rank(), size, device)
    finally:
        torch.distributed.destroy_process_group()
