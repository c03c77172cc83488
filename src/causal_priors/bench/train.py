"""Training throughput beside a plain GPT-2 of the same shape: `python -m causal_priors bench train`.

A step is forward, backward, clipping to norm 1 and AdamW, in float32, on one thread and one batch of random ids. Ours is
`rope` as the study trains it, process settings included. Theirs are GPT-2 from `transformers` and from `x-transformers`
as they come, each with its own loss, without dropout, under torch's AdamW; and the former once more with all that can be
had by asking: PyTorch's kernels for GELU and AdamW in place of single operations, and our process settings.

Each model lives in a process of its own; they take turns at a word from the parent, which imports no torch. Times are core
seconds, medians over the turns; ratios are medians over the turns of theirs to ours.

The models are one in width, depth, heads, MLP and tied embedding. In parameters they differ by a position embedding, which
GPT-2 has (ours turns queries and keys, which costs time and no parameters), and by biases, which x-transformers leaves
out in norms and attention. Their losses leave out the last of a window's L targets; all compute L rows of logits.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from causal_priors.artifacts import write_text
from causal_priors.bench.attention import Shape, batch, shape_of, training_step
from causal_priors.errors import refuse

# Turns, without the first, which warms up.
TURNS = {"micro": 60, "paper": 3}
OURS = "this project, `rope`"
PACKAGES = ("transformers", "x_transformers")
Step = Callable[[], float]


@dataclass(frozen=True)
class Row:
    """What was measured of a model: its parameters, the loss of its first step (nats), core seconds of the others."""

    parameters: int
    first_loss: float
    seconds: list[float]


def main(arguments: Sequence[str]) -> None:
    """Measure, and print a markdown table a shape. Raises `UserError` where a package to compare with is missing."""
    parser = argparse.ArgumentParser(prog="python -m causal_priors bench train")
    parser.add_argument("--parts", nargs="+", default=list(TURNS), choices=list(TURNS))
    parser.add_argument("--turns", type=int, help="turns to take (default: micro 60, paper 3)")
    parser.add_argument("--windows", type=int, help="windows of a batch (default: micro 16, paper 2)")
    parser.add_argument("--out", type=Path, help="write the tables here as well")
    parser.add_argument("--one", choices=list(CONTENDERS), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        _serve(options.one, _shape(options.parts[0], options.windows))
        return
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            remedy = "run `make setup-dev`, or pip install -r envs/dev.txt"
            raise refuse("is not installed", key="package", value=package.replace("_", "-"), remedy=remedy)
    texts = []
    for part in options.parts:
        shape = _shape(part, options.windows)
        texts.append(table(part, shape, measure(part, shape, options.turns or TURNS[part])))
        print(texts[-1], end="" if part == options.parts[-1] else "\n", flush=True)
    if options.out:
        write_text(options.out, "\n".join(texts))


def _shape(part: str, windows: int | None) -> Shape:
    shape = shape_of(part)
    return Shape(shape.size, shape.vocabulary, windows or shape.windows)


def measure(part: str, shape: Shape, turns: int) -> dict[str, Row]:
    """Let all models take `turns` turns, beginning with another one each time, after one to warm up."""
    with ExitStack() as stack:
        children = {name: stack.enter_context(_Child(name, part, shape.windows)) for name in CONTENDERS}
        first = {name: child.says() for name, child in children.items()}
        seconds: dict[str, list[float]] = {name: [] for name in children}
        names = list(children)
        for turn in range(turns):
            shift = turn % len(names)
            for name in names[shift:] + names[:shift]:
                seconds[name].append(children[name].step())
    return {name: Row(**first[name], seconds=seconds[name]) for name in names}


def table(part: str, shape: Shape, rows: dict[str, Row]) -> str:
    """Return a markdown table: parameters, milliseconds a step, tokens a core second, how many times faster ours is."""
    size, tokens = shape.size, shape.windows * shape.size.train_length
    lines = [
        f"S shape of `{part}`: width {size.width}, depth {size.depth}, {size.heads} heads, vocabulary "
        f"{shape.vocabulary:,}; {shape.windows} windows of {size.train_length} tokens a step, "
        f"{len(rows[OURS].seconds)} turns, one thread.",
        "",
        "| model | parameters | step | tokens/s | ours is faster by |",
        "|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        median = statistics.median(row.seconds)
        ratio = statistics.median(one / ours for one, ours in zip(row.seconds, rows[OURS].seconds, strict=True))
        lines.append(f"| {name} | {row.parameters:,} | {1e3 * median:,.1f} ms | {tokens / median:,.0f} | {ratio:.2f} |")
    return "\n".join(lines) + "\n"


class _Child:
    """A process that trains one model: a context manager that ends it."""

    def __init__(self, name: str, part: str, windows: int) -> None:
        self.name = name
        arguments = ["--one", name, "--parts", part, "--windows", str(windows)]
        command = [sys.executable, "-m", "causal_priors", "bench", "train", *arguments]
        quiet = {**os.environ, "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=quiet
        )

    def __enter__(self) -> "_Child":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def says(self) -> Any:
        """Return the next line as JSON. Raises `UserError` where the process ended instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            last = (self._process.communicate()[1].strip().splitlines() or ["no message"])[-1]
            raise refuse(f"failed: {last}", key="model", value=self.name)
        return json.loads(line)

    def step(self) -> float:
        """Let the model take a step; return its core seconds."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        return float(self.says())


def _serve(name: str, shape: Shape) -> None:
    """Build a model, take a step, and one more per line of input."""
    import torch

    torch.set_num_threads(1)
    model, step = CONTENDERS[name](shape)
    first = {"parameters": sum(parameter.numel() for parameter in model.parameters()), "first_loss": step()}
    print(json.dumps(first), flush=True)
    for _ in sys.stdin:
        began = time.process_time()
        step()
        print(time.process_time() - began, flush=True)


def _ours(shape: Shape) -> tuple[Any, Step]:
    from causal_priors.train.determinism import settle

    settle("cpu")
    return training_step(shape, "rope")


def _gpt2(shape: Shape, activation: str = "gelu_new", fused: bool | None = None) -> tuple[Any, Step]:
    import transformers

    size = shape.size
    config = transformers.GPT2Config(
        vocab_size=shape.vocabulary,
        n_positions=size.train_length,
        n_embd=size.width,
        n_layer=size.depth,
        n_head=size.heads,
        activation_function=activation,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    model, inputs_BT = transformers.GPT2LMHeadModel(config), _inputs(shape)
    return model, _step(shape, model, lambda: model(inputs_BT, labels=inputs_BT).loss, fused)


def _tuned(shape: Shape) -> tuple[Any, Step]:
    from causal_priors.train.determinism import settle

    settle("cpu")
    return _gpt2(shape, "gelu_pytorch_tanh", fused=True)


def _decoder(shape: Shape) -> tuple[Any, Step]:
    import x_transformers

    size = shape.size
    layers = x_transformers.Decoder(
        dim=size.width, depth=size.depth, heads=size.heads, attn_dim_head=size.head_dim, attn_flash=True
    )
    net = x_transformers.TransformerWrapper(
        num_tokens=shape.vocabulary, max_seq_len=size.train_length, attn_layers=layers, tie_embedding=True
    )
    model, inputs_BT = x_transformers.AutoregressiveWrapper(net), _inputs(shape)
    return model, _step(shape, model, lambda: model(inputs_BT))


CONTENDERS: dict[str, Callable[[Shape], tuple[Any, Step]]] = {
    OURS: _ours,
    "GPT-2, `transformers`": _gpt2,
    "the same, tuned": _tuned,
    "GPT-2, `x-transformers`": _decoder,
}


def _inputs(shape: Shape) -> Any:
    return batch(shape, shape.size.train_length)[:, :-1].contiguous()


def _step(shape: Shape, model: Any, loss_of: Callable[[], Any], fused: bool | None = None) -> Step:
    """Return the usual training step of a model, with the study's optimiser settings."""
    import torch

    from causal_priors.train.optimizer import BETA1, BETA2, CLIP_NORM, EPS, WEIGHT_DECAY

    parameters = list(model.train().parameters())
    groups = [
        {"params": [parameter for parameter in parameters if parameter.ndim >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [parameter for parameter in parameters if parameter.ndim < 2], "weight_decay": 0.0},
    ]
    rate = shape.size.learning_rate
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(BETA1, BETA2), eps=EPS, fused=fused)

    def step() -> float:
        loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step
