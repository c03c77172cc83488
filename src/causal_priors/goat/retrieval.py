"""Windows of text that hide a number and end with the question for it: passkeys and needles, in token ids.

Shape legend: N windows, T inputs, A answer tokens; a window has T + 1 ids, the last A of them the answer. A passkey is
the only number of its window, two different digits. A needle is a name with one digit; another name with another
digit lies elsewhere in the same window, so that finding some digit is not enough. The haystack is running text of one
document without any digit, so numbers stand where they were put and nowhere else.
"""

from dataclasses import dataclass

import numpy as np

from causal_priors.data.tokenizer import Tokenizer
from causal_priors.errors import refuse
from causal_priors.goat.design import NEEDLE, PASSKEY, RetrievalTest
from causal_priors.goat.draws import Draws

ANSWER_DIGITS = {PASSKEY: 2, NEEDLE: 1}
DIGITS = 10


@dataclass(frozen=True)
class Windows:
    """Windows of one task: ids int64 [N, T + 1], of which the last `answer` are the answer."""

    ids: np.ndarray
    answer: int


class Haystack:
    """Text of one split to cut haystacks from: places where `length` ids hold neither a digit nor a document's end."""

    def __init__(self, ids: np.ndarray, tokenizer: Tokenizer) -> None:
        self.ids = ids
        barred = np.isin(ids, [*digit_ids(tokenizer), tokenizer.end_of_text])
        self._barred_before = np.concatenate([[0], np.cumsum(barred, dtype=np.int32)])
        self._places: dict[int, np.ndarray] = {}

    def cut(self, draws: Draws, count: int, length: int) -> np.ndarray:
        """Return int64 [count, length], uniform over all places with replacement. Raises `UserError` without any."""
        if length not in self._places:
            before = self._barred_before
            self._places[length] = np.flatnonzero(before[length:] == before[: len(before) - length]).astype(np.int32)
        places = self._places[length]
        if not len(places):
            problem = f"has no {length} tokens of one document without a digit"
            raise refuse(problem, key="haystack", remedy="experiment 0006 needs longer documents of running text")
        starts_N = places[draws.below(len(places), count)]
        found: np.ndarray = self.ids[starts_N[:, None] + np.arange(length)].astype(np.int64)
        return found


class Tasks:
    """Both tasks with their templates in ids."""

    def __init__(self, test: RetrievalTest, tokenizer: Tokenizer) -> None:
        self._digits = np.array(digit_ids(tokenizer))
        self._end = tokenizer.encode(test.end).astype(np.int64)
        passkey, needle = (template.removesuffix("{answer}") for template in (test.passkey, test.needle))
        self._lead = {PASSKEY: [tokenizer.encode(passkey).astype(np.int64)]}
        self._lead[NEEDLE] = [tokenizer.encode(needle.format(name=name)).astype(np.int64) for name in test.names]

    def windows(
        self, task: str, haystack: Haystack, draws: Draws, count: int, inputs: int, depth: float | None
    ) -> Windows:
        """Return `count` windows of `inputs` + 1 ids.

        depth: share of the haystack that stands before the item asked for; None draws it per window, uniformly over
        the places. Raises `UserError` where item and question do not fit into `inputs`.
        """
        digits, distractors = ANSWER_DIGITS[task], int(task == NEEDLE)
        leads = self._lead[task]
        names = draws.different(len(leads), 1 + distractors, count)
        numbers = self._digits[draws.different(DIGITS, digits + distractors, count)]
        where = draws.uniform(count, 2)
        stream = draws.below(1 << 53, count)
        rows = []
        for n in range(count):
            lead, answer = leads[names[n, 0]], numbers[n, :digits]
            item = np.concatenate([lead, answer, self._end])
            question = np.concatenate([lead, answer])
            other = np.empty(0, dtype=np.int64)
            if distractors:
                other = np.concatenate([leads[names[n, 1]], numbers[n, digits:], self._end])
            room = inputs + 1 - len(item) - len(question) - len(other)
            if room < 0:
                problem = f"does not fit: a {task} takes {inputs + 1 - room} tokens of {inputs + 1}"
                raise refuse(problem, key="retrieval", remedy="shorten its template")
            text = haystack.cut(Draws(int(stream[n])), 1, room)[0]
            at = int(where[n, 0] * (room + 1)) if depth is None else round(depth * room)
            parts = [(at, item), (int(where[n, 1] * (room + 1)), other)]
            rows.append(np.concatenate([_hidden(text, parts), question]))
        return Windows(np.stack(rows), digits)


def _hidden(text: np.ndarray, parts: list[tuple[int, np.ndarray]]) -> np.ndarray:
    """`text` with each part put in after so many of its ids; at the same place the first part of the list is first."""
    pieces, done = [], 0
    for at, part in sorted(parts, key=lambda item: item[0]):
        pieces += [text[done:at], part]
        done = at
    return np.concatenate([*pieces, text[done:]])


def digit_ids(tokenizer: Tokenizer) -> list[int]:
    """Ids of the digits 0 .. 9 as single bytes, which every tokenizer of ours has."""
    return [tokenizer.tokens.index(str(digit).encode()) for digit in range(DIGITS)]
