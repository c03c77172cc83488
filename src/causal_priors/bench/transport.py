"""Benchmarks of the transport operator: `python -m causal_priors bench transport`.

Times are medians over rounds in which every contender runs once, and ratios are medians of the ratios within a round: a
busy machine slows all of a round alike. Peak memory is measured in a process of its own for each contender. Shapes are
[B, H, T, D] in float32; a run is forward and backward.
"""

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from causal_priors.attention.transport import sweeps, transport_attention
from causal_priors.attention.transport.reference import plan

Contender = Callable[[Tensor, Tensor, Tensor], Tensor]

STRENGTH = 0.5
# B, H, T, D, rounds; the last is what a layer of the micro scale trains on.
SHAPES = [(4, 8, 64, 64, 41), (4, 8, 512, 64, 9), (4, 8, 2048, 64, 3), (16, 4, 64, 16, 41)]
LENGTHS = (1024, 2048, 4096, 8192, 16384)


def softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal softmax attention in plain PyTorch, mask and weights materialised."""
    mask = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    return torch.softmax(scores.masked_fill(mask, -math.inf), -1) @ v


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """PyTorch's own fused softmax attention."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def three_sweeps(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Three whole-matrix sweeps, unrolled by autograd."""
    return sweeps.attention(q, k, v, None, STRENGTH, 3)[0]


def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The operator as `impl="auto"` runs it."""
    out = transport_attention(q, k, v, strength=STRENGTH)
    assert isinstance(out, Tensor)
    return out


CONTENDERS: dict[str, Contender] = {"softmax": softmax, "sdpa": fused, "sweeps3": three_sweeps, "exact": exact}


def _inputs(shape: Sequence[int], device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator).to(device).requires_grad_() for _ in range(3)]


def _once(contender: Contender, inputs: list[Tensor], dout: Tensor) -> tuple[float, float]:
    def now() -> float:
        if dout.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    begin = now()
    out = contender(inputs[0], inputs[1], inputs[2])
    middle = now()
    torch.autograd.grad(out, inputs, dout)
    return middle - begin, now() - middle


def speed(shapes: Sequence[Sequence[int]], device: str) -> list[dict[str, object]]:
    """Milliseconds and ratios for every shape and contender."""
    rows: list[dict[str, object]] = []
    for *shape, rounds in shapes:
        inputs = _inputs(shape, device)
        dout = torch.ones(*shape, device=device)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTENDERS}
        for turn in range(rounds + 1):
            for name, contender in CONTENDERS.items():
                taken = _once(contender, inputs, dout)
                if turn:
                    times[name].append(taken)
        total = {name: [sum(taken) for taken in every] for name, every in times.items()}
        for name, every in times.items():
            rows.append(
                {
                    "shape": shape,
                    "contender": name,
                    "forward_ms": 1e3 * statistics.median(taken[0] for taken in every),
                    "backward_ms": 1e3 * statistics.median(taken[1] for taken in every),
                    "to_softmax": _ratio(total[name], total["softmax"]),
                    "to_sweeps3": _ratio(total[name], total["sweeps3"]),
                }
            )
    return rows


def _ratio(mine: list[float], theirs: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(mine, theirs, strict=True))


def measure_peak(name: str, shape: Sequence[int]) -> int:
    """Bytes by which one forward and backward raises this process's peak memory. Only in a fresh process."""
    small = _inputs((1, 1, 64, shape[-1]), "cpu")
    _once(CONTENDERS[name], small, torch.ones_like(small[0]))
    inputs = _inputs(shape, "cpu")
    dout = torch.ones(*shape)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _once(CONTENDERS[name], inputs, dout)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


def peak(name: str, shape: Sequence[int], threads: int) -> int:
    """`measure_peak` in a process of its own."""
    arguments = ["--measure", name, *map(str, shape), "--threads", str(threads)]
    done = subprocess.run(
        [sys.executable, "-m", "causal_priors.bench.transport", *arguments], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def sweep_distances(length: int = 512, deviation: float = 1.5) -> list[dict[str, object]]:
    """How far K sweeps are from the exact operator: greatest error of a potential, mean mass on wrong keys per row."""
    generator = torch.Generator().manual_seed(0)
    scores = deviation * torch.randn(1, 2, length, length, dtype=torch.float64, generator=generator)
    rows: list[dict[str, object]] = []
    for strength in (0.5, 0.75, 0.95):
        true_plan, true_a = plan(scores, strength)
        for iterations in (1, 2, 3, 5, 8, 12):
            found, a = sweeps.plan(scores, strength, iterations)
            moved = (found - true_plan).abs().sum(-1).mean() / 2
            error = (a - true_a).abs().max()
            rows.append(
                {"strength": strength, "sweeps": iterations, "potential": float(error), "moved_mass": float(moved)}
            )
    return rows


def _table(rows: Sequence[dict[str, object]], formats: dict[str, str]) -> str:
    lines = ["| " + " | ".join(formats) + " |", "|" + " --- |" * len(formats)]
    for row in rows:
        lines.append(
            "| " + " | ".join(format(row[key], code) if code else str(row[key]) for key, code in formats.items()) + " |"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmarks and print their tables."""
    parser = argparse.ArgumentParser(prog="causal_priors bench transport", description=__doc__)
    parser.add_argument(
        "--what", nargs="+", choices=["speed", "memory", "sweeps"], default=["speed", "memory", "sweeps"]
    )
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda, for speed")
    parser.add_argument("--longest", type=int, default=2048, help="leave out shapes with longer windows")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--measure", nargs=5, metavar=("NAME", "B", "H", "T", "D"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    if options.measure:
        print(measure_peak(options.measure[0], [int(extent) for extent in options.measure[1:]]))
        return 0
    results: dict[str, object] = {}
    if "speed" in options.what:
        rows = speed([shape for shape in SHAPES if shape[2] <= options.longest], options.device)
        results["speed"] = rows
        formats = {"shape": "", "contender": "", "forward_ms": ".1f", "backward_ms": ".1f"}
        print(_table(rows, formats | {"to_softmax": ".2f", "to_sweeps3": ".2f"}) + "\n")
    if "memory" in options.what:
        shape = (4, 8, min(2048, options.longest), 64)
        rows = [
            {"shape": list(shape), "contender": name, "peak_MiB": peak(name, shape, options.threads) / 2**20}
            for name in CONTENDERS
        ]
        for length in LENGTHS:
            if length <= 8 * options.longest:
                grown = peak("exact", (1, 4, length, 64), options.threads) / 2**20
                rows.append({"shape": [1, 4, length, 64], "contender": "exact", "peak_MiB": grown})
        results["memory"] = rows
        print(_table(rows, {"shape": "", "contender": "", "peak_MiB": ".1f"}) + "\n")
    if "sweeps" in options.what:
        rows = sweep_distances()
        results["sweeps"] = rows
        print(_table(rows, {"strength": "", "sweeps": "", "potential": ".2g", "moved_mass": ".2g"}) + "\n")
    if options.json is not None:
        part = options.json.with_name(options.json.name + ".part")
        part.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        part.replace(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
