"""Evaluation blocks: the same targets for every window length.

Shape legend: K blocks, W windows of a block, n window length, L training length. A block has 8 L + 1 tokens of one
held-out document. At length n it is read as 8 L / n windows one after another, each of n inputs and the n targets that
follow them, so that lengths differ in what the model sees and never in what it is asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from causal_priors.data.shards import HELDOUT, Span, check_vocabulary, open_shards, spans
from causal_priors.errors import UserError, refuse
from causal_priors.scale import Scale


@dataclass(frozen=True)
class BlockPlan:
    """Where blocks lie in the held-out file: `starts`, one per block, and the document each lies in ("" if packed).

    `available` counts the blocks there were to choose from, `wanted` those the scale asks for.
    """

    train_length: int
    starts: tuple[int, ...]
    documents: tuple[str, ...]
    available: int
    wanted: int
    packed: bool


def evaluation_blocks(
    folder: str | Path, train_length: int, scale: Scale, allow_packed: bool = False
) -> tuple[np.ndarray, BlockPlan]:
    """Return the blocks for training length L, int64 [K, 8 L + 1], and where they lie.

    K = evaluation_tokens / (8 L), evenly spread over the blocks there are (all of them if they are fewer). Raises
    `UserError` where there are fewer than the scale's `minimum_blocks`, and as `open_shards` does.
    """
    shards = open_shards(folder)
    check_vocabulary(shards, scale.vocabulary)
    plan = plan_blocks(spans(folder, HELDOUT), len(shards.heldout), train_length, scale, allow_packed, folder)
    starts_K = np.array(plan.starts, dtype=np.int64)
    return shards.heldout[starts_K[:, None] + np.arange(8 * train_length + 1)].astype(np.int64), plan


def cut(blocks: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets [K, 8 L / n, n] of `blocks` [K, 8 L + 1] at window length n."""
    count = len(blocks)
    return blocks[:, :-1].reshape(count, -1, length), blocks[:, 1:].reshape(count, -1, length)


def plan_blocks(
    heldout: Sequence[Span], ids: int, train_length: int, scale: Scale, allow_packed: bool, source: str | Path
) -> BlockPlan:
    """Choose the blocks among `heldout` documents whose file has `ids` ids in all.

    Blocks are cut from concatenated documents (`packed`) only if `allow_packed` and whole documents do not offer
    enough. `source` is named in the `UserError` raised where there are too few.
    """
    size = 8 * train_length + 1
    found = [(span.document, span.offset + i * size) for span in heldout for i in range(span.tokens // size)]
    packed = allow_packed and len(found) < scale.minimum_blocks
    if packed:
        found = [("", i * size) for i in range(ids // size)]
    if len(found) < scale.minimum_blocks:
        raise _too_few(source, len(found), train_length, scale, packed=allow_packed)
    wanted = scale.evaluation_tokens // (size - 1)
    count = min(wanted, len(found))
    chosen = [found[i * len(found) // count] for i in range(count)]
    return BlockPlan(
        train_length=train_length,
        starts=tuple(start for _, start in chosen),
        documents=tuple(document for document, _ in chosen),
        available=len(found),
        wanted=wanted,
        packed=packed,
    )


def _too_few(source: str | Path, found: int, train_length: int, scale: Scale, *, packed: bool) -> UserError:
    size = 8 * train_length + 1
    where = "its concatenated held-out text offers" if packed else "its held-out documents offer"
    problem = (
        f"is too small for scale {scale.name}: {where} {found} evaluation blocks of 8 L + 1 = {size} tokens, "
        f"at least {scale.minimum_blocks} are needed"
    )
    longer = "add text" if packed else "add longer documents, or set allow_packed_blocks: true"
    return refuse(problem, file=source, remedy=longer)


def train_lengths(scale: Scale) -> list[int]:
    """Return every training length of the study at `scale`: L of size S; L, 2L and 4L of size C."""
    confirmation = scale.sizes["C"].train_length
    return sorted({scale.sizes["S"].train_length, *(multiple * confirmation for multiple in (1, 2, 4))})
