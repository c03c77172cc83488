"""A log-prior folded into query and key beside the same prior as an explicit bias: core seconds and errors.

One thread. The two take turns on the same inputs and the ratio is the median over the turns; below one, folding is
faster. Errors are the largest differences of the output from float64 with an explicit bias.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from causal_priors.artifacts import write_text

TOKENS = 4096
LENGTHS = (64, 256, 1024, 4096)
SHAPES = ((4, 16), (12, 64))
PRIORS = ("alibi", "goat")


def main(arguments: Sequence[str]) -> None:
    """Measure, and print a markdown table."""
    parser = argparse.ArgumentParser(prog="python -m causal_priors bench fold")
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS), metavar="TOKENS")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the table here as well")
    options = parser.parse_args(arguments)
    # Inside the function, like the other benchmarks: `--help` imports no torch.
    from causal_priors.train.determinism import settle

    settle("cpu")
    lines = [
        "| prior | heads x dims | tokens | explicit, ms | folded / explicit | its error | folded error | bf16 lane, nats |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for key in PRIORS:
        for heads, dims in SHAPES:
            for length in options.lengths:
                lines.append(
                    f"| {key} | {heads} x {dims} | {length:,} | {_one(key, heads, dims, length, options.turns)} |"
                )
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if options.out:
        write_text(options.out, text)


def _one(key: str, heads: int, dims: int, length: int, turns: int) -> str:
    """Cells of one row."""
    import torch

    from causal_priors.arms import ARMS
    from causal_priors.attention.softmax import blocked, whole
    from causal_priors.goat.fold import folded_attention, lane_error, lanes
    from causal_priors.priors.base import BoundPrior, Geometry

    generator = torch.Generator().manual_seed(0)
    part = ARMS[key].log_prior
    assert part is not None
    module = part.load()(Geometry(heads * dims, heads, dims, 64), generator, **part.options)
    prior = BoundPrior(module.requires_grad_(False))
    shape = (max(1, TOKENS // length), heads, length, dims)
    q, k, v = (torch.randn(shape, generator=generator) for _ in range(3))
    with torch.inference_mode(), warnings.catch_warnings():
        works: list[Callable[[], Any]] = [lambda: blocked(q, k, v, prior), lambda: folded_attention(q, k, v, prior)]
        outputs = [work()[:1].double() for work in works]
        seconds = [[_core_seconds(work) for work in works] for _ in range(turns)]
        exact = whole(q[:1].double(), k[:1].double(), v[:1].double(), BoundPrior(module.double()))
        errors = [float((out - exact).abs().max()) for out in outputs]
        lane = lane_error(*lanes(BoundPrior(module.float()), length, q.device), torch.bfloat16)
    base = statistics.median(explicit for explicit, _ in seconds) * 1e3
    ratio = statistics.median(folded / explicit for explicit, folded in seconds)
    return f"{base:.1f} | {ratio:.2f} | {errors[0]:.1e} | {errors[1]:.1e} | {lane:.2g}"


def _core_seconds(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
