"""A small training loop for experiment 0006, over any batches: the study's model, optimiser and schedule, nothing kept.

The study's own loop (train/loop.py) reads shards and survives interruptions; a model here takes seconds and is used at
once, by the process that trained it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from causal_priors.model import Transformer
from causal_priors.scale import Size
from causal_priors.train.optimizer import FlatAdamW, learning_rate

# Rows of the training log over a run.
_LOGS = 20


@dataclass
class Lesson:
    """How training went: mean loss in nats since the row before, by the number of steps done; the step it diverged at."""

    losses: list[tuple[int, float]] = field(default_factory=list)
    diverged_at: int | None = None


def teach(model: Transformer, budget: Size, position_lr: float, loss_of: Callable[[int], Tensor]) -> Lesson:
    """Train `model` for `budget.steps` steps on the scalar loss that `loss_of(step)` returns.

    A loss or gradient that is not finite ends it with the weights before that step.
    """
    others = [parameter for _, parameter in model.other_parameters()]
    positional = [parameter for _, parameter in model.positional_parameters()]
    optimizer = FlatAdamW(others, positional, position_lr)
    lesson, every, recent = Lesson(), max(1, budget.steps // _LOGS), []
    for step in range(budget.steps):
        loss = loss_of(step)
        torch.autograd.backward(loss)
        value, norm = torch.stack((loss.detach(), optimizer.gradient_norm())).tolist()
        if not (math.isfinite(value) and math.isfinite(norm)):
            lesson.diverged_at = step
            break
        optimizer.update(learning_rate(budget, step), norm)
        recent.append(value)
        if len(recent) == every or step == budget.steps - 1:
            lesson.losses.append((step + 1, sum(recent) / len(recent)))
            recent = []
    model.eval().requires_grad_(False)
    return lesson
