"""Train one run: batches in, weights and logs out, through any number of interruptions.

Shape legend: B windows of a batch, T tokens of a window (the training length). Everything that must survive a restart
is one `TrainingState`; signal handlers only set a flag, and the loop saves at the next step boundary. A run that was
killed at any moment and called again ends with the same weights and logs, bit for bit on a CPU, as one left alone.
Several processes may train one run (parallel.py): they take every decision together, and one of them writes.
"""

import io
import math
import resource
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from causal_priors import runcard
from causal_priors.arms import Arm
from causal_priors.artifacts import write_json, write_signed_json, writer_lock
from causal_priors.data.batches import training_batch
from causal_priors.data.shards import Shards, check_vocabulary, open_shards
from causal_priors.model import Transformer
from causal_priors.progress import Progress, note
from causal_priors.runs import Run
from causal_priors.scale import Scale
from causal_priors.tables import write_table
from causal_priors.train import checkpoint
from causal_priors.train.determinism import settle
from causal_priors.train.gradient import Cut
from causal_priors.train.optimizer import FlatAdamW, learning_rate
from causal_priors.train.parallel import Team, joined
from causal_priors.train.request import fingerprint_of, request_of
from causal_priors.train.resume import TrainingState, load_state, remove_state, save_state
from causal_priors.train.signals import StopRequest

WORK = "work"
# Rows of the positions log over a run, beside the first and the last.
_POSITION_LOGS = 50
# A save may take at most this share of the time between saves.
_SAVE_SHARE = 0.02
# A loss this many times that of a uniform guess has diverged, though it is a number.
_RUNAWAY = 4.0


def train_stage(
    run: Run,
    scale: Scale,
    arm: Arm,
    shards: Path,
    out: Path,
    code: str,
    margins: Path | None = None,
    *,
    device: str = "cpu",
    save_seconds: float = 30.0,
    micro_batch: int | None = None,
) -> None:
    """Train `run` into the folder `out`, continuing from `out/work` where a state of the same run lies.

    `save_seconds` is the time between resume states (0: every step); it changes no result. `micro_batch` is the most
    tokens of one forward pass (None: all that a process has to do in a step); it changes results by rounding.

    A loss or gradient that is not finite, and a loss above four times that of a uniform guess, end the run with the
    weights before that step and the status "diverged at step k". Raises `UserError` where another process writes to `out`
    or a file cannot be written, `SystemExit(128 + signal)` after SIGTERM or SIGINT.
    """
    startup = settle(device)
    request = request_of(run, scale, arm, shards, code, margins)
    with ExitStack() as stack:
        team = stack.enter_context(joined(device))

        def is_to_train() -> bool:
            stack.enter_context(writer_lock(out))
            return _is_to_train(run.name(scale), out, request)

        if not team.asked(is_to_train):
            return
        model = checkpoint.build_model(run, scale, arm, request["parameters"]["margins"]).to(device)
        store = open_shards(shards)
        check_vocabulary(store, scale.vocabulary)
        length = run.train_length(scale)
        windows = run.budget(scale).tokens_per_step // length
        cut = Cut.of(windows, length, micro_batch, device != "cpu", team)
        fingerprint = fingerprint_of(request, device)
        trainer = _Trainer(run, scale, arm, model, store, out / WORK, fingerprint, save_seconds, cut)
        if device != "cpu":
            model.compile_blocks()
        trainer.resume()
        with StopRequest() as stop:
            trainer.train(stop)

        def commit() -> None:
            trainer.commit(out, request, startup)
            checkpoint.keep(out, out / WORK)
            remove_state(out / WORK)

        team.asked(commit)


def _is_to_train(name: str, out: Path, request: Mapping[str, Any]) -> bool:
    """Say whether the run is still to be trained; put back and tidy what lies in its folder."""
    whole = checkpoint.is_committed(out, request)
    if not whole:
        _sweep(out)
    if whole or checkpoint.take_back(out, out / WORK, request):
        checkpoint.keep(out, out / WORK)
        remove_state(out / WORK)
        note(f"{name}: is complete in {out}; {'nothing to do' if whole else 'its files are put back'}")
        return False
    checkpoint.drop(out / WORK)
    return True


def _sweep(out: Path) -> None:
    """Remove temporary files that a killed writer of this run left behind."""
    for name in (checkpoint.CARD, checkpoint.MODEL, checkpoint.LOSSES, checkpoint.POSITIONS, checkpoint.TIMING):
        for temporary in out.glob(f".{name}.*.tmp"):
            temporary.unlink(missing_ok=True)


@dataclass
class _Trainer:
    run: Run
    scale: Scale
    arm: Arm
    model: Transformer
    shards: Shards
    work: Path
    fingerprint: dict[str, Any]
    save_seconds: float
    cut: Cut
    state: TrainingState = field(default_factory=TrainingState)
    step_seconds: list[float] = field(default_factory=list)
    resumed_from: int = 0

    def __post_init__(self) -> None:
        self.size = self.run.budget(self.scale)
        self.length = self.run.train_length(self.scale)
        self.log_every = max(1, self.size.steps // _POSITION_LOGS)
        others = [parameter for _, parameter in self.model.other_parameters()]
        positional = [parameter for _, parameter in self.model.positional_parameters()]
        self.optimizer = FlatAdamW(others, positional, self.arm.position_lr)
        self.last_save, self.save_cost = time.monotonic(), 0.0

    @property
    def team(self) -> Team:
        return self.cut.team

    @property
    def label(self) -> str:
        return self.run.name(self.scale)

    @property
    def pause(self) -> float:
        """Seconds from one save to the next: no shorter than asked, and long enough for a save not to matter."""
        return max(self.save_seconds, self.save_cost / _SAVE_SHARE) if self.save_seconds else 0.0

    def resume(self) -> None:
        """Take the saved state, or say why not and start fresh; in a team all take what the leader has."""
        if self.team.leads:
            self._load()
        self.state.step, self.state.diverged_at, self.resumed_from = self.team.told(
            (self.state.step, self.state.diverged_at, self.resumed_from)
        )
        optimizer = self.optimizer
        self.team.copy((optimizer.values, optimizer.mean, optimizer.square, optimizer.updates))

    def _load(self) -> None:
        state, reason = load_state(self.work, self.fingerprint)
        if state is not None:
            try:
                self.optimizer.load(state.optimizer)
            except ValueError as error:
                state, reason = None, f"{self.work}: is of no use ({error})"
        if state is None:
            if reason:
                note(f"{self.label}: {reason}; starting fresh")
            return
        self.state, self.resumed_from = state, state.step
        note(f"{self.label}: continues after step {state.step} of {self.size.steps}")

    def save(self) -> None:
        began = time.monotonic()
        if self.team.leads:
            self.state.optimizer = self.optimizer.state()
            save_state(self.state, self.work, self.fingerprint)
        self.last_save = time.monotonic()
        self.save_cost = self.last_save - began

    def train(self, stop: StopRequest) -> None:
        """Run the remaining steps; save when due, when asked to stop, and at the end."""
        unsaved = False
        silent = None if self.team.leads else io.StringIO()
        with Progress(self.size.steps, self.label, done=self.state.step, stream=silent) as progress:
            while self.state.step < self.size.steps and self.state.diverged_at is None:
                stop.received = self.team.largest(stop.received)
                if stop.received:
                    self.save()
                    self._leave(stop)
                began = time.perf_counter()
                self._step()
                unsaved = True
                seconds = time.perf_counter() - began
                self.step_seconds.append(seconds)
                progress.update(1, loss=self.state.losses[-1][0], tokens=self.size.tokens_per_step)
                if time.monotonic() - self.last_save >= self.pause:
                    self.save()
                    unsaved = False
        if unsaved:
            self.save()

    def _step(self) -> None:
        step = self.state.step
        if step % self.log_every == 0:
            self._log_positions()
        batch = training_batch(self.shards, self.run.data_seed, step, self.cut.windows, self.length)
        loss = self.cut.add_gradient(self.model, batch)
        self.team.sum(loss)
        self.team.sum(self.optimizer.gradients)
        values: list[float] = torch.stack((loss, self.optimizer.gradient_norm())).tolist()
        rate = learning_rate(self.size, step)
        self.state.losses.append((values[0], rate, values[1]))
        if not all(map(math.isfinite, values)) or values[0] > _RUNAWAY * math.log(self.scale.vocabulary):
            self.state.diverged_at = step
            return
        self.optimizer.update(rate, values[1])
        self.state.step = step + 1
        if self.state.step == self.size.steps:
            self._log_positions()

    def _log_positions(self) -> None:
        self.state.positions.append([value for _, _, _, value in self.model.position_report()])

    def _leave(self, stop: StopRequest) -> None:
        if self.team.leads:
            note(
                f"{self.label}: stopped by {stop.name} after step {self.state.step} of {self.size.steps}; "
                "saved, the same command continues from here"
            )
        raise SystemExit(128 + stop.received)

    def commit(self, out: Path, request: Mapping[str, Any], startup: float) -> None:
        """Write weights and logs, then the card that makes them a run."""
        (out / checkpoint.CARD).unlink(missing_ok=True)
        checkpoint.save_weights(self.model, out / checkpoint.MODEL)
        write_table(self._losses_rows(), out / checkpoint.LOSSES, "losses")
        write_table(self._positions_rows(), out / checkpoint.POSITIONS, "positions")
        write_json(out / checkpoint.TIMING, self._timing(startup))
        outputs = {name: out / name for name in (checkpoint.MODEL, checkpoint.LOSSES, checkpoint.POSITIONS)}
        card = runcard.card("train", inputs={}, outputs=outputs, parameters={}, code="")
        finite = [row[0] for row in self.state.losses if math.isfinite(row[0])]
        diverged = self.state.diverged_at
        result = {
            "status": checkpoint.FINISHED if diverged is None else f"diverged at step {diverged}",
            "steps": self.state.step,
            "final_loss": finite[-1] if finite else None,
            "parameter_counts": checkpoint.parameter_counts(self.model),
        }
        write_signed_json(out / checkpoint.CARD, {**card, **request, **result})

    def _losses_rows(self) -> dict[str, Any]:
        loss, rate, norm = zip(*self.state.losses, strict=True)
        return {"step": range(len(loss)), "loss": loss, "lr": rate, "grad_norm": norm}

    def _positions_rows(self) -> dict[str, Any]:
        keys = [(layer, head, quantity) for layer, head, quantity, _ in self.model.position_report()]
        steps = sorted({*range(0, self.size.steps, self.log_every), self.size.steps})[: len(self.state.positions)]
        return {
            "step": [step for step in steps for _ in keys],
            "layer": [layer for _ in steps for layer, _, _ in keys],
            "head": [head for _ in steps for _, head, _ in keys],
            "quantity": [quantity for _ in steps for _, _, quantity in keys],
            "value": [value for values in self.state.positions for value in values],
        }

    def _timing(self, startup: float) -> dict[str, Any]:
        """Seconds and rates of this process alone; outside every digest."""
        seconds = sorted(self.step_seconds) or [0.0]
        median = seconds[len(seconds) // 2]
        return {
            "seconds_per_step": median,
            "tokens_per_second": self.size.tokens_per_step / median if median else None,
            "startup_cpu_seconds": startup,
            "cpu_seconds": time.process_time(),
            "steps_here": len(self.step_seconds),
            "resumed_from": self.resumed_from,
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "processes": self.team.size,
            **_gpu(self.team.device),
        }


def _gpu(device: str) -> dict[str, Any]:
    if device == "cpu":
        return {}
    peak = torch.cuda.max_memory_allocated() // (1 << 20)
    return {"gpu": torch.cuda.get_device_name(), "peak_gpu_memory_mb": peak}
