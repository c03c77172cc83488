"""One arm of experiment 0006 in one process: train on the mixture and on retrieval, measure, write one table.

Shape legend: N windows, T inputs, V symbols, L layers, H heads. Everything is a pure function of the sealed design, the
arm and the corpus: training batches and test windows are drawn from keys that hold the seed, the same for every arm.
"""

import dataclasses
import resource
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from causal_priors import runcard
from causal_priors.arms import Arm
from causal_priors.artifacts import canonical_json, write_json
from causal_priors.data.batches import training_batch
from causal_priors.data.shards import Shards, check_vocabulary, open_shards
from causal_priors.data.tokenizer import Tokenizer, load_tokenizer
from causal_priors.errors import refuse
from causal_priors.goat import LONGER, LONGER_ARMS, LONGER_TIMES, MIXTURE, RETRIEVAL, TWO_BACK, TWO_BACK_ARMS
from causal_priors.goat.design import NEEDLE, PASSKEY, Design
from causal_priors.goat.draws import Draws
from causal_priors.goat.look import bound_slack, folded, log_probabilities, look, margin
from causal_priors.goat.mixture import Mixture
from causal_priors.goat.retrieval import Haystack, Tasks, Windows
from causal_priors.goat.teach import Lesson, teach
from causal_priors.model import Transformer
from causal_priors.priors.fourier import Goat
from causal_priors.progress import note
from causal_priors.remedies import rebuild
from causal_priors.tables import SCHEMAS, write_table
from causal_priors.train.determinism import settle

KIND = "probes"
FINISHED = "finished"
# Tokens of one forward pass.
PASS_TOKENS = 4096
# Keys of the streams; training streams also hold the seed and the step.
_MIXTURE, _TASKS, _MIXTURE_TEST, _TASKS_TEST, _TEXT_TEST = (number << 32 for number in range(1, 6))


def probe_stage(arm: Arm, design: Design, shards: Path, tokenizer: Path, out: Path, code: str) -> None:
    """Train and measure one arm, and write the table `out` (kind "probes") with its card in the metadata.

    A model whose training diverges leaves its training log alone, and the table's status names the step. Raises
    `UserError` where shards or tokenizer are missing, damaged, or not of one making.
    """
    startup = settle("cpu")
    store, letters = open_shards(shards), load_tokenizer(tokenizer)
    check_vocabulary(store, design.scale.vocabulary)
    if store.card["tokenizer"] != letters.digest:
        raise refuse("is not the tokenizer of the shards", file=tokenizer, remedy=rebuild(shards / "card.json"))
    table, seconds = _Table(arm.key, design.seed), {"startup": startup}
    statuses = []
    for name, part in _parts(arm, design, store, letters, table).items():
        began = time.process_time()
        status = part()
        statuses += [] if status == FINISHED else [f"{name} {status}"]
        seconds[name] = time.process_time() - began
    card = runcard.card(
        "goat",
        inputs={"shards": shards / "card.json", "tokenizer": tokenizer},
        outputs={},
        parameters={"arm": arm.resolved(), "scale": design.scale.digest(), "seal": design.seal},
        code=code,
    )
    said = {"status": "; ".join(statuses) or FINISHED, "folded": " ".join(map(str, sorted(table.folded)))}
    write_table(table.columns(), out, KIND, {**said, "card": canonical_json(card).decode()})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    write_json(out.with_suffix(".timing.json"), {"cpu_seconds": seconds, "peak_memory_mb": peak})


def _parts(
    arm: Arm, design: Design, store: Shards, letters: Tokenizer, table: "_Table"
) -> dict[str, Callable[[], str]]:
    """What is done with this arm, by name: each part trains a model, adds its rows and returns how training ended."""
    mixture, retrieval = design.copy.mixture, design.retrieval
    parts: dict[str, Callable[[], str]] = {MIXTURE: partial(_copies, arm, design, MIXTURE, mixture, table)}
    if arm.key in TWO_BACK_ARMS:
        parts[TWO_BACK] = partial(_copies, arm, design, TWO_BACK, dataclasses.replace(mixture, back=2), table)
    parts[RETRIEVAL] = partial(_retrieves, arm, design, RETRIEVAL, store, letters, table)
    if arm.key in LONGER_ARMS:
        steps = LONGER_TIMES * retrieval.steps
        longer = dataclasses.replace(design, retrieval=dataclasses.replace(retrieval, steps=steps))
        parts[LONGER] = partial(_retrieves, arm, longer, LONGER, store, letters, table)
    return parts


class _Table:
    """Rows of kind "probes" for one arm, and the window lengths at which its log-prior was folded."""

    folded: set[int]

    def __init__(self, arm: str, seed: int) -> None:
        self.folded = set()
        self._same = {"arm": arm, "seed": seed, "depth": -1.0, "layer": -1, "head": -1, "index": -1}
        self.rows: list[dict[str, Any]] = []

    def add(self, test: str, task: str, quantity: str, length: int, value: float, count: int, **places: Any) -> None:
        row = {"test": test, "task": task, "quantity": quantity, "length": length, "value": value, "count": count}
        self.rows.append({**self._same, **row, **places})

    def lesson(self, test: str, task: str, length: int, lesson: Lesson) -> str:
        """Add a training log; return how it ended."""
        done = 0
        for step, loss in lesson.losses:
            self.add(test, task, "training_loss", length, loss, step - done, index=step)
            done = step
        return FINISHED if lesson.diverged_at is None else f"diverged at step {lesson.diverged_at}"

    def say_if_folded(self, model: Transformer, length: int) -> None:
        if length not in self.folded and folded(model, length):
            self.folded.add(length)
            note(f"{model.arm.key}: at {length} tokens the log-prior is folded into query and key, without a bias")

    def columns(self) -> dict[str, list[Any]]:
        return {name: [row[name] for row in self.rows] for name in SCHEMAS[KIND].names}


def _copies(arm: Arm, design: Design, task: str, mixture: Mixture, table: _Table) -> str:
    """Train on one mixture and measure what is left to gain; return how training ended."""
    test, length = design.copy, design.train_length
    budget = design.budget(test.steps, test.windows)
    model = Transformer(budget, mixture.vocabulary, arm, length, design.seed)

    def loss_of(step: int) -> Tensor:
        draws = Draws(_MIXTURE + design.seed, step)
        ids = torch.from_numpy(mixture.sequences(draws, test.windows, length + 1))
        loss: Tensor = model(ids[:, :-1], ids[:, 1:]).mean()
        return loss

    status = table.lesson("copy", task, length, teach(model, budget, test.position_lr, loss_of))
    if status != FINISHED:
        return status
    for multiple in test.lengths:
        n = multiple * length
        table.say_if_folded(model, n)
        ids = mixture.sequences(Draws(_MIXTURE_TEST, n), test.sequences, n + 1)
        pairs = []
        for some in _passes(ids):
            final, _ = look(model, torch.from_numpy(some[:, :-1]), 1, wide=True)
            pairs.append(mixture.expected_losses(some, log_probabilities(model, final).numpy()))
        loss, best = (np.concatenate(part) for part in zip(*pairs, strict=True))
        table.add("copy", task, "loss", n, float(loss.mean()), loss.size)
        table.add("copy", task, "regret", n, float((loss - best).mean()), loss.size)
    _learned_priors(model, length, task, table)
    return status


def _learned_priors(model: Transformer, length: int, task: str, table: _Table) -> None:
    """Goat's log-prior in its parts, at the last row of a window of L tokens."""
    from causal_priors.priors.base import PriorContext

    j_T = torch.arange(length)
    for layer, block in enumerate(model.layers):
        prior = block.log_prior
        if not isinstance(prior, Goat):
            return
        # K at lag d is what row L - 1 sees at key L - 1 - d.
        relative = prior.relative(PriorContext(j_T[-1:], j_T))[:, 0]
        total = prior(PriorContext(j_T[-1:], j_T))[0, :, 0].double()
        parts = {
            "prior_key": prior.key_lane(j_T),
            "prior_lag": relative.flip(-1),
            "prior_total": total,
            "prior_probability": total.softmax(-1),
        }
        for quantity, value_HT in parts.items():
            for head, values in enumerate(value_HT.tolist()):
                for index, value in enumerate(values):
                    table.add("copy", task, quantity, length, value, 1, layer=layer, head=head, index=index)


def _retrieves(arm: Arm, design: Design, name: str, store: Shards, letters: Tokenizer, table: _Table) -> str:
    """Train on text with tasks, measure retrieval and, where that is as registered, sinks; return how training ended."""
    test, length = design.retrieval, design.train_length
    budget, tasks = design.budget(test.steps, test.windows), Tasks(test, letters)
    model = Transformer(budget, design.scale.vocabulary, arm, length, design.seed)
    hay = Haystack(np.asarray(store.train), letters)

    def loss_of(step: int) -> Tensor:
        draws = Draws(_TASKS + design.seed, step)
        text = training_batch(store, 1000 + design.seed, step, test.text_windows, length)
        passkeys = tasks.windows(PASSKEY, hay, draws, test.passkey_windows, length, None)
        needles = tasks.windows(NEEDLE, hay, draws, test.needle_windows, length, None)
        ids = torch.from_numpy(np.concatenate([text, passkeys.ids, needles.ids]))
        losses_NT = model(ids[:, :-1], ids[:, 1:])
        first, last = len(text), len(text) + len(passkeys.ids)
        answers = (losses_NT[first:last, -passkeys.answer :], losses_NT[last:, -needles.answer :])
        loss: Tensor = losses_NT.mean() + torch.cat([part.flatten() for part in answers]).mean()
        return loss

    status = table.lesson(name, "both", length, teach(model, budget, arm.position_lr, loss_of))
    if status != FINISHED:
        return status
    hay = Haystack(np.asarray(store.heldout), letters)
    for multiple in test.lengths:
        n = multiple * length
        table.say_if_folded(model, n)
        for number, depth in enumerate(test.depths):
            for task in (PASSKEY, NEEDLE):
                draws = Draws(_TASKS_TEST + n, 2 * number + (task == NEEDLE))
                windows = tasks.windows(task, hay, draws, test.examples, n, depth)
                for example, (log_p, correct, far) in enumerate(_answers(model, windows)):
                    found = {"log_probability": log_p, "correct": correct, "far_mass": far}
                    for quantity, value in found.items():
                        table.add(name, task, quantity, n, value, 1, depth=depth, index=example)
    if name == RETRIEVAL:
        _sinks(model, design, hay, table)
    return status


def _answers(model: Transformer, windows: Windows) -> Iterator[tuple[float, float, float]]:
    """Per window: log-probability of the answer, whether greedy decoding gives exactly it, and far mass.

    It does iff each of the answer's tokens is the likeliest.
    """
    w = max(1, model.train_length // 8)
    for some in _passes(windows.ids):
        final, layers = look(model, torch.from_numpy(some[:, :-1]), w)
        log_p = log_probabilities(model, final[:, -windows.answer :])
        right = torch.from_numpy(some[:, -windows.answer :])
        chosen = log_p.gather(-1, right[..., None])[..., 0].sum(-1)
        correct = (log_p.argmax(-1) == right).all(-1)
        far = torch.stack([rows.far_mass(w) for rows in layers]).mean((0, 2))
        yield from zip(chosen.tolist(), correct.double().tolist(), far.tolist(), strict=True)


def _sinks(model: Transformer, design: Design, hay: Haystack, table: _Table) -> None:
    """Attention to key 0 on running text, per layer and head."""
    w = max(1, design.train_length // 8)
    for multiple in design.sinks.lengths:
        n = multiple * design.train_length
        ids = hay.cut(Draws(_TEXT_TEST, n), design.sinks.windows, n)
        parts: dict[tuple[str, int], list[Tensor]] = {}
        for some in _passes(ids):
            for layer, rows in enumerate(look(model, torch.from_numpy(some), w)[1]):
                found = {"mass": rows.log_weights[..., 0].exp(), "margin": margin(rows.log_weights)}
                if rows.prior is not None:
                    found |= {"prior_margin": margin(rows.prior), "bound_slack": bound_slack(rows)}
                for quantity, value in found.items():
                    parts.setdefault((quantity, layer), []).append(value)
        for (quantity, layer), values in parts.items():
            value_BHR = torch.cat(values)
            over = value_BHR.amin((0, 2)) if quantity == "bound_slack" else value_BHR.mean((0, 2))
            for head, number in enumerate(over.tolist()):
                table.add("sink", "text", quantity, n, number, value_BHR[:, 0].numel(), layer=layer, head=head)


def _passes(ids: np.ndarray) -> Iterator[np.ndarray]:
    together = max(1, PASS_TOKENS // ids.shape[1])
    for first in range(0, len(ids), together):
        yield ids[first : first + together]
