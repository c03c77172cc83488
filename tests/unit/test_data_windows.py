"""Evaluation blocks: inside one document, evenly spread, the same targets at every length."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import scale, write_shards
from hypothesis import given, settings
from hypothesis import strategies as st

from causal_priors.data.shards import Span, open_shards, spans
from causal_priors.data.windows import cut, evaluation_blocks, plan_blocks, train_lengths
from causal_priors.errors import UserError

NANO, MICRO = scale("nano"), scale("micro")


def laid_out(*tokens):
    """Documents of these lengths, each followed by one end-of-text."""
    offsets = np.cumsum([0, *(n + 1 for n in tokens)])
    return [Span(f"d{i}", int(offsets[i]), n) for i, n in enumerate(tokens)], int(offsets[-1])


def plan(tokens, train_length=16, of=NANO, allow_packed=False):
    heldout, ids = laid_out(*tokens)
    return plan_blocks(heldout, ids, train_length, of, allow_packed, "the corpus")


@pytest.mark.parametrize("length", [16, 32, 64, 128])
def test_every_length_scores_the_same_targets_with_the_tokens_before_them(length):
    blocks = np.arange(5 * 129).reshape(5, 129)
    inputs, targets = cut(blocks, length)
    assert inputs.shape == targets.shape == (5, 128 // length, length)
    assert np.array_equal(targets.reshape(5, -1), blocks[:, 1:])
    assert np.array_equal(targets, inputs + 1)
    # Windows follow one another: the input at position p of window w is token w n + p of the block.
    assert np.array_equal(inputs[2, :, 0], 2 * 129 + np.arange(128 // length) * length)


@settings(max_examples=100, deadline=None)
@given(
    tokens=st.lists(st.integers(1, 2000), min_size=1, max_size=30),
    train_length=st.sampled_from([16, 32, 64]),
    evaluation_tokens=st.sampled_from([1024, 4096, 65_536]),
)
def test_blocks_lie_inside_one_document_apart_from_each_other_and_evenly_spread(
    tokens, train_length, evaluation_tokens
):
    size = 8 * train_length + 1
    of = replace(NANO, evaluation_tokens=evaluation_tokens, minimum_blocks=1)
    available = sum(n // size for n in tokens)
    if available == 0:
        with pytest.raises(UserError, match="offer 0 evaluation blocks"):
            plan(tokens, train_length, of)
        return
    found = plan(tokens, train_length, of)
    heldout, _ = laid_out(*tokens)
    place = {span.document: span for span in heldout}
    assert found.available == available
    assert found.wanted == evaluation_tokens // (8 * train_length)
    assert len(found.starts) == min(found.wanted, available)
    assert not found.packed
    for start, document in zip(found.starts, found.documents, strict=True):
        span = place[document]
        assert span.offset <= start
        assert start + size <= span.offset + span.tokens
    assert (np.diff(found.starts) >= size).all()
    # Evenly spread: between two chosen blocks lie equally many others, give or take one.
    every = [span.offset + i * size for span in heldout for i in range(span.tokens // size)]
    gaps = np.diff([every.index(start) for start in found.starts])
    assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1
    assert every.index(found.starts[0]) == 0


def test_the_minimum_of_blocks():
    assert plan([129] * 8).available == 8
    with pytest.raises(UserError) as caught:
        plan([129] * 7)
    message = str(caught.value)
    for part in (
        "the corpus",
        "7 evaluation blocks of 8 L + 1 = 129 tokens",
        "at least 8",
        "allow_packed_blocks: true",
    ):
        assert part in message
    with pytest.raises(UserError, match="offer 0 evaluation blocks"):
        plan([128] * 100)


def test_packed_blocks_only_where_allowed_and_needed():
    # 100 documents of 128 tokens and as many ends of text: 12,900 ids hold 100 blocks of 129.
    found = plan([128] * 100, allow_packed=True)
    assert found.packed
    assert found.available == 100
    assert set(found.documents) == {""}
    assert not plan([129] * 8, allow_packed=True).packed
    with pytest.raises(UserError, match="concatenated held-out text offers 7"):
        plan([112] * 8, allow_packed=True)


def test_blocks_are_the_ids_at_their_places(tmp_path):
    folder = write_shards(tmp_path, NANO, documents=60, words=1500)
    shards = open_shards(folder)
    for train_length in train_lengths(NANO):
        blocks, where = evaluation_blocks(folder, train_length, NANO)
        assert blocks.dtype == np.int64
        assert blocks.shape == (1024 // (8 * train_length), 8 * train_length + 1)
        for block, start in zip(blocks, where.starts, strict=True):
            assert np.array_equal(block, shards.heldout[start : start + len(block)])
        assert shards.end_of_text not in blocks
        assert set(where.documents) <= {span.document for span in spans(folder, "heldout")}
        card = shards.card["blocks"][str(train_length)]
        assert card == {"available": where.available, "wanted": where.wanted, "packed": False}


def test_packed_blocks_say_so_and_may_hold_end_of_text(tmp_path):
    folder = write_shards(tmp_path, NANO, documents=900, words=40)
    blocks, where = evaluation_blocks(folder, 64, replace(NANO, evaluation_tokens=4096), allow_packed=True)
    assert where.packed
    assert (blocks == open_shards(folder).end_of_text).any()
    with pytest.raises(UserError, match="allow_packed_blocks: true"):
        evaluation_blocks(folder, 64, NANO)


def test_damaged_shards_are_refused(tmp_path):
    folder = write_shards(tmp_path, NANO)
    (folder / "heldout.bin").write_bytes((folder / "heldout.bin").read_bytes()[:-2])
    with pytest.raises(UserError, match=r"heldout\.bin: has"):
        evaluation_blocks(folder, 16, NANO, allow_packed=True)


def test_the_lengths_of_the_study():
    assert train_lengths(MICRO) == [64, 128, 256]
    assert train_lengths(scale("paper")) == [512, 1024, 2048, 4096]
