"""What each arm costs beside `rope` at the same shape: training step, peak memory, evaluation of a long window.

Every number is measured in a process of its own with one thread. Times are core seconds, which other load on the
machine moves little; the arm and `rope` take turns in one process, and the ratio is the median over the turns. Memory
is the process's peak above what importing and building took. The parent imports no torch, whose size a child would
inherit as its peak.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from causal_priors.arms import ARMS
from causal_priors.artifacts import write_text
from causal_priors.config import load_scale, scale_file
from causal_priors.errors import refuse
from causal_priors.scale import Size

BESIDE = "rope"
LONG, HEADS, HEAD_DIM = 16_384, 12, 64


@dataclass(frozen=True)
class Shape:
    """A model size, its vocabulary, and the windows of a batch."""

    size: Size
    vocabulary: int
    windows: int


def shape_of(part: str) -> Shape:
    """Return the shape of a part: `micro` and `paper` train size S of that scale, `evaluation` reads one long window.

    `paper` steps on two windows, not on its 128: a CPU would take minutes a step.
    """
    if part == "evaluation":
        length = LONG // 8
        return Shape(Size(HEADS * HEAD_DIM, 1, HEADS, length, 1, LONG, 1e-3, 0.1, 0.1), 1024, 1)
    scale = load_scale(scale_file(part))
    size = scale.sizes["S"]
    return Shape(size, scale.vocabulary, 2 if part == "paper" else size.tokens_per_step // size.train_length)


PARTS = {"micro": (100, 30), "paper": (5, 2), "evaluation": (1, 1)}
MEASURES = ("time", "memory")


def main(arguments: Sequence[str]) -> None:
    """Measure, and print a markdown table. Raises `UserError` for an unknown arm."""
    parser = argparse.ArgumentParser(prog="python -m causal_priors bench attention")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), metavar="ARM", help="default: all")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="fewer turns")
    parser.add_argument("--out", type=Path, help="write the table here as well")
    parser.add_argument("--one", nargs=3, metavar=("PART", "MEASURE", "ARM"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(_one(options.one[0], options.one[1], options.one[2], options.quick)))
        return
    for key in options.arms:
        if key not in ARMS:
            raise refuse("is not an arm", key="--arms", value=key, remedy=f"arms are {', '.join(ARMS)}")
    found = {
        (part, measure, key): _in_a_process(part, measure, key, options.quick)
        for part in options.parts
        for key in dict.fromkeys([BESIDE, *options.arms])
        for measure in MEASURES
    }
    text = table(options.parts, list(dict.fromkeys([BESIDE, *options.arms])), found)
    print(text, end="")
    if options.out:
        write_text(options.out, text)


def table(parts: Sequence[str], arms: Sequence[str], found: dict[tuple[str, str, str], dict[str, float]]) -> str:
    """Return the ratios as a markdown table; the first row holds what `rope` itself takes."""
    heads = {"micro": "step, micro S", "paper": "step, paper S", "evaluation": f"evaluation, T = {LONG:,}"}
    columns = [(part, measure) for part in parts for measure in MEASURES]
    titles = [heads[part] if measure == "time" else "its memory" for part, measure in columns]
    lines = [f"| arm | {' | '.join(titles)} |", f"|---|{'---|' * len(titles)}"]
    absolute = [found[(*column, BESIDE)]["beside" if column[1] == "time" else "value"] for column in columns]
    units = [f"{value * 1e3:.3g} ms" if measure == "time" else f"{value:.0f} MB"
             for value, (_, measure) in zip(absolute, columns, strict=True)]  # fmt: skip
    lines.append(f"| {BESIDE}, absolute | {' | '.join(units)} |")
    for key in arms:
        cells = []
        for column, base in zip(columns, absolute, strict=True):
            one = found[(*column, key)]
            cells.append(f"{one['ratio'] if 'ratio' in one else one['value'] / base:.2f}")
        lines.append(f"| {key} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _in_a_process(part: str, measure: str, key: str, quick: bool) -> dict[str, float]:
    command = [sys.executable, "-m", "causal_priors", "bench", "attention", "--one", part, measure, key]
    done = subprocess.run([*command, *(["--quick"] if quick else [])], capture_output=True, text=True, check=False)
    if done.returncode:
        raise refuse(f"failed: {done.stderr.strip().splitlines()[-1:]}", key=f"{part} {measure}", value=key)
    print(f"{part} {measure} {key}: {done.stdout.strip()}", file=sys.stderr, flush=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _one(part: str, measure: str, key: str, quick: bool) -> dict[str, float]:
    """Measure one thing in this process: core seconds and their ratio to `rope`'s, or MB."""
    import torch

    torch.set_num_threads(1)
    turns = PARTS[part][quick]
    shape = shape_of(part)
    if measure == "memory":
        work = _work(part, shape, key)
        before = _peak_mb()
        for _ in range(min(turns, 3)):
            work()
        return {"value": _peak_mb() - before}
    works = [_work(part, shape, BESIDE), _work(part, shape, key)]
    if part != "evaluation":
        for work in works:
            work()
    seconds = [[_core_seconds(work) for work in works] for _ in range(turns)]
    return {
        "beside": statistics.median(base for base, _ in seconds),
        "ratio": statistics.median(mine / base for base, mine in seconds),
    }


def _work(part: str, shape: Shape, key: str) -> Callable[[], Any]:
    """Return what is measured of an arm: one training step, or one forward pass with far mass."""
    if part != "evaluation":
        return training_step(shape, key)[1]
    import torch

    from causal_priors.evaluate import far_windows

    model = _model(shape, key).eval().requires_grad_(False)
    ids_BT = batch(shape, LONG)
    length = ids_BT.shape[1] - 1
    far = [(length, w) for w in far_windows(shape.size.train_length)]
    return torch.inference_mode()(lambda: model(ids_BT[:, :-1], ids_BT[:, 1:], far=far))


def training_step(shape: Shape, key: str) -> tuple[Any, Callable[[], float]]:
    """Build the model of an arm; return it and its training step on one batch, which returns the loss (nats)."""
    import torch

    from causal_priors.train.optimizer import FlatAdamW

    model, size, ids_BT = _model(shape, key), shape.size, batch(shape, shape.size.train_length)
    positional = [parameter for _, parameter in model.positional_parameters()]
    others = [parameter for _, parameter in model.other_parameters()]
    optimizer = FlatAdamW(others, positional, ARMS[key].position_lr)

    def step() -> float:
        loss = model(ids_BT[:, :-1], ids_BT[:, 1:]).mean()
        torch.autograd.backward(loss)
        optimizer.update(size.learning_rate, float(optimizer.gradient_norm()))
        return float(loss.detach())

    return model, step


def batch(shape: Shape, length: int) -> Any:
    """Return random ids [windows, length + 1]."""
    import torch

    generator = torch.Generator().manual_seed(0)
    return torch.randint(shape.vocabulary, (shape.windows, length + 1), generator=generator)


def _model(shape: Shape, key: str) -> Any:
    from causal_priors.model import Transformer

    # What a margin is does not matter to the time.
    return Transformer(shape.size, shape.vocabulary, ARMS[key], shape.size.train_length, 0, {key: 0.5})


def _core_seconds(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
