"""Passkeys and needles: what a window holds, where, and what is refused."""

import numpy as np
import pytest

from causal_priors.data.tokenizer import train_tokenizer
from causal_priors.errors import UserError
from causal_priors.goat.design import RetrievalTest
from causal_priors.goat.draws import Draws
from causal_priors.goat.retrieval import NEEDLE, PASSKEY, Haystack, Tasks, digit_ids

NAMES = ("king", "lord", "priest")
TEST = RetrievalTest(
    steps=1,
    text_windows=1,
    passkey_windows=1,
    needle_windows=1,
    lengths=(1,),
    depths=(0.0,),
    examples=1,
    passkey=" The key is {answer}",
    needle=" The {name} has {answer}",
    end=".",
    names=NAMES,
)
TEXT = " ".join(["the quick brown fox jumps over the lazy dog and runs"] * 200)
TOKENIZER = train_tokenizer([TEXT + " The king has. The lord. The priest. The key is"], 280)


def haystack(text=TEXT):
    return Haystack(TOKENIZER.encode(text), TOKENIZER)


def windows(task, inputs=100, depth=None, count=40, draws=0):
    return Tasks(TEST, TOKENIZER).windows(task, haystack(), Draws(draws), count, inputs, depth)


def texts(found):
    return [TOKENIZER.decode(row) for row in found.ids.tolist()]


def test_a_passkey_window_holds_the_number_once_and_then_asks_for_it():
    found = windows(PASSKEY)
    assert found.ids.shape == (40, 101)
    assert found.answer == 2
    answers = set()
    for text, row in zip(texts(found), found.ids.tolist(), strict=True):
        answer = TOKENIZER.decode(row[-2:])
        assert text.endswith(f" The key is {answer}")
        assert f" The key is {answer}." in text[:-3]
        digits = [letter for letter in text if letter.isdigit()]
        assert digits == [*answer, *answer]
        assert len(set(answer)) == 2
        answers.add(answer)
    assert len(answers) > 20


def test_a_needle_window_holds_another_name_with_another_digit():
    for text in texts(windows(NEEDLE)):
        asked, answer = text.rsplit(" The ", 1)[1].split(" has ")
        told = {name: text.count(f" The {name} has ") for name in NAMES}
        assert told[asked] == 2
        (other,) = [name for name, count in told.items() if count == 1]
        digit = text.split(f" The {other} has ")[1][0]
        assert f" The {asked} has {answer}." in text
        assert digit != answer
        assert sorted(letter for letter in text if letter.isdigit()) == sorted([answer, answer, digit])


def test_depth_says_where_the_item_stands():
    for text in texts(windows(PASSKEY, depth=0.0)):
        assert text.startswith(f" The key is {text[-2:]}.")
    for text in texts(windows(PASSKEY, depth=1.0)):
        assert text.endswith(f" The key is {text[-2:]}. The key is {text[-2:]}")
    for text in texts(windows(NEEDLE, depth=0.0)):
        assert text.startswith(f" The {text.rsplit(' The ', 1)[1]}.")
    item = len(TOKENIZER.encode(" The key is 12."))
    room = 601 - item - (item - 1)
    for row in windows(PASSKEY, inputs=600, depth=0.25).ids:
        first = int(np.flatnonzero(np.isin(row, digit_ids(TOKENIZER)))[0])
        assert first == round(0.25 * room) + item - 3


def test_without_a_depth_items_stand_everywhere():
    places = [text.index(" The key is ") / len(text) for text in texts(windows(PASSKEY, inputs=600, count=200))]
    assert min(places) < 0.05
    assert max(places) > 0.85
    assert 0.4 < np.mean(places) < 0.55


def test_equal_keys_give_equal_windows():
    assert np.array_equal(windows(NEEDLE, draws=7).ids, windows(NEEDLE, draws=7).ids)
    assert not np.array_equal(windows(NEEDLE, draws=7).ids, windows(NEEDLE, draws=8).ids)


def test_no_haystack_crosses_a_digit_or_the_end_of_a_document():
    ids = np.concatenate([TOKENIZER.encode(TEXT[:300] + " 7"), [TOKENIZER.end_of_text], TOKENIZER.encode(TEXT[:300])])
    found = Haystack(ids, TOKENIZER).cut(Draws(0), 500, 40)
    assert not np.isin(found, [*digit_ids(TOKENIZER), TOKENIZER.end_of_text]).any()


def test_text_without_room_is_refused():
    digits = Haystack(TOKENIZER.encode("1 word 2 word " * 500), TOKENIZER)
    with pytest.raises(UserError, match=r"haystack: has no 60 tokens of one document without a digit; .* longer"):
        digits.cut(Draws(0), 1, 60)
    with pytest.raises(UserError, match=r"retrieval: does not fit: a needle takes \d+ tokens of 11; shorten"):
        windows(NEEDLE, inputs=10)
