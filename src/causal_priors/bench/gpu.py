"""What a GPU makes of size S of `paper`: `python -m causal_priors bench gpu`, which `tests/gpu/check.sh` calls.

Shape legend: W windows of a step, T tokens of a window. An arm takes training steps as a run does: the compiled pieces, the
fused kernels, matrix products in bfloat16, AdamW on float32. Its batches are random ids, which cost what text costs. Then
one window goes through the same weights in float64 by row blocks, operation by operation, and the losses and the gradient
of the GPU's way are held against it; `rope`, whose attention is PyTorch's own kernel, says what is to be expected.

Without a GPU, or with `--tiny`, a toy of two layers goes the same way on a CPU, where nothing is compiled: that shows
that the script runs, and no more.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from causal_priors.arms import ARMS
from causal_priors.artifacts import write_text
from causal_priors.config import load_scale, scale_file
from causal_priors.errors import refuse
from causal_priors.report.plan import training_flops
from causal_priors.scale import Scale

ARMS_SHOWN = ("rope", "log", "alibi", "cable", "fox", "ot-75")
# Steps before times count: the first ones compile.
WARM_UP = 5
# Dense bfloat16 FLOP/s that makers state, by a part of the name that torch reports; the first that fits.
PEAKS = {
    "B200": 2.25e15,
    "H200": 9.89e14,
    "H100 PCIe": 7.56e14,
    "H100": 9.89e14,
    "A100": 3.12e14,
    "L40S": 3.62e14,
    "L4": 1.21e14,
    "A10": 1.25e14,
    "RTX 4090": 1.65e14,
}


@dataclass(frozen=True)
class Row:
    """What was measured of an arm. seconds: of the median step. peak_mb: None on a CPU. Errors are against float64.

    loss_error: mean over tokens, in nats. gradient_error: as a share of the gradient's size.
    """

    arm: str
    steps: int
    seconds: float
    peak_mb: int | None
    loss_error: float
    gradient_error: float


def main(arguments: Sequence[str]) -> None:
    """Measure, and print a markdown table, a row as soon as it is known. Raises `UserError` for an unknown arm."""
    parser = argparse.ArgumentParser(prog="python -m causal_priors bench gpu")
    parser.add_argument("--arms", nargs="+", default=list(ARMS_SHOWN), metavar="ARM")
    parser.add_argument("--steps", type=int, default=300, help="most steps of an arm (default: 300)")
    parser.add_argument(
        "--seconds", type=float, default=25.0, help="most seconds of an arm's steps, without the first ones"
    )
    parser.add_argument(
        "--micro-batch", type=int, default=0, help="most tokens of a forward pass (default: 0, a whole step)"
    )
    parser.add_argument("--tiny", action="store_true", help="a toy on the CPU")
    parser.add_argument("--out", type=Path, help="write the table here as well")
    options = parser.parse_args(arguments)
    for key in options.arms:
        if key not in ARMS:
            raise refuse("is not an arm", key="--arms", value=key, remedy=f"arms are {', '.join(ARMS)}")
    import torch

    from causal_priors.train.determinism import settle

    device = "cuda" if torch.cuda.is_available() and not options.tiny else "cpu"
    settle(device)
    scale = load_scale(scale_file("paper"))
    if device == "cpu":
        options.steps = min(options.steps, WARM_UP + 2)
        scale = toy(scale)
    lines = [_say(line) for line in head(scale, device)]
    base: Row | None = None
    for key in dict.fromkeys(["rope", *options.arms]):
        row = measure(key, scale, device, options.steps, options.seconds, options.micro_batch or None)
        base = base or row
        lines.append(_say(table_line(row, base, scale, device)))
    if options.out:
        write_text(options.out, "\n".join(lines) + "\n")


def toy(scale: Scale) -> Scale:
    """The scale with a size S that a CPU steps through in no time."""
    size = replace(scale.sizes["S"], width=32, depth=2, heads=2, train_length=32, tokens_per_step=128)
    return replace(scale, vocabulary=300, sizes={**scale.sizes, "S": size})


def head(scale: Scale, device: str) -> list[str]:
    """Lines above the table: where and what."""
    import torch

    size = scale.sizes["S"]
    where = torch.cuda.get_device_name() if device == "cuda" else "a CPU, which says nothing about a GPU"
    versions = f"torch {torch.__version__}"
    if device == "cuda":
        import triton

        versions += f", CUDA {torch.version.cuda}, triton {triton.__version__}"
    return [
        f"On {where} ({versions}): width {size.width}, depth {size.depth}, {size.heads} heads, vocabulary "
        f"{scale.vocabulary:,}, {size.tokens_per_step // size.train_length} windows of {size.train_length} tokens a step.",
        "",
        "| arm | steps | step | beside `rope` | tokens/s | MFU | peak memory | loss error | gradient error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]


def table_line(row: Row, base: Row, scale: Scale, device: str) -> str:
    """One row as markdown."""
    size = scale.sizes["S"]
    rate = size.tokens_per_step / row.seconds
    used = share_of_peak(rate * training_flops(size, scale, size.train_length), device)
    cells = (
        row.arm,
        str(row.steps),
        f"{1e3 * row.seconds:.1f} ms",
        f"{row.seconds / base.seconds:.2f}",
        f"{rate:,.0f}",
        "-" if used is None else f"{used:.3f}",
        "-" if row.peak_mb is None else f"{row.peak_mb:,} MB",
        f"{row.loss_error:.1e}",
        f"{row.gradient_error:.1e}",
    )
    return f"| {' | '.join(cells)} |"


def share_of_peak(flops: float, device: str) -> float | None:
    """MFU: sustained `flops` a second as a share of what the GPU's maker states; None for a GPU that is not listed."""
    if device == "cpu":
        return None
    import torch

    name = torch.cuda.get_device_name()
    return next((flops / peak for part, peak in PEAKS.items() if part in name), None)


def measure(key: str, scale: Scale, device: str, steps: int, seconds: float, micro_batch: int | None = None) -> Row:
    """Take training steps of an arm; then measure its errors at the weights that they led to."""
    import torch

    from causal_priors.train.gradient import Cut
    from causal_priors.train.optimizer import FlatAdamW
    from causal_priors.train.parallel import Team

    size = scale.sizes["S"]
    length, windows = size.train_length, size.tokens_per_step // size.train_length
    model = _model(key, scale, device)
    optimizer = FlatAdamW(
        [parameter for _, parameter in model.other_parameters()],
        [parameter for _, parameter in model.positional_parameters()],
        ARMS[key].position_lr,
    )
    generator = torch.Generator().manual_seed(0)
    batches_WT = [torch.randint(scale.vocabulary, (windows, length + 1), generator=generator).numpy() for _ in range(4)]
    cut = Cut.of(windows, length, micro_batch, True, Team(device=device))
    if device == "cuda":
        model.compile_blocks()
        torch.cuda.reset_peak_memory_stats()
    times: list[float] = []
    for step in range(steps):
        began = time.perf_counter()
        cut.add_gradient(model, batches_WT[step % len(batches_WT)])
        # Reading the norm waits for the GPU, here as in training.
        optimizer.update(size.learning_rate / 10, float(optimizer.gradient_norm()))
        times.append(time.perf_counter() - began)
        if sum(times[WARM_UP:]) > seconds:
            break
    peak_mb = torch.cuda.max_memory_allocated() >> 20 if device == "cuda" else None
    errors = errors_of(key, scale, device, model, batches_WT[0][:1], cut.together)
    return Row(key, len(times), statistics.median(times[WARM_UP:] or times), peak_mb, *errors)


def errors_of(key: str, scale: Scale, device: str, model: Any, ids_1T: Any, copies: int) -> tuple[float, float]:
    """Errors of a model's losses (nats a token) and gradient (share of its size) on one window against float64.

    The model reads it in `copies`: the shape that it has been compiled for.
    """
    import torch

    truth = _model(key, scale, device)
    truth.load_state_dict(model.state_dict())
    losses, gradient = _outcome(model, ids_1T.repeat(copies, axis=0), half=True)
    exact_losses, exact_gradient = _outcome(truth.double(), ids_1T, half=False)
    share = torch.linalg.vector_norm(gradient - exact_gradient) / torch.linalg.vector_norm(exact_gradient)
    return float((losses - exact_losses).abs().mean()), float(share)


def _outcome(model: Any, ids_BT: Any, half: bool) -> tuple[Any, Any]:
    """Losses of the first window, and the whole gradient, in float64."""
    import torch

    device = model.embedding.weight.device
    ids = torch.from_numpy(ids_BT).to(device)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with torch.autocast(device.type, torch.bfloat16, enabled=half):
        losses = model(ids[:, :-1], ids[:, 1:])
    found = torch.autograd.grad(losses.mean(), parameters)
    return losses[0].detach().double(), torch.cat([gradient.flatten().double() for gradient in found])


def _model(key: str, scale: Scale, device: str) -> Any:
    from causal_priors.model import Transformer

    size = scale.sizes["S"]
    # What a margin is does not matter here.
    return Transformer(size, scale.vocabulary, ARMS[key], size.train_length, 0, {key: 0.5}).to(device)


def _say(line: str) -> str:
    print(line, flush=True)
    return line
