"""What several test files share. Nothing here repeats production logic: files are made by the real stages."""

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from causal_priors.config import ROOT, load_scale, scale_file
from causal_priors.data.corpus import fetch_corpus
from causal_priors.data.index import index_stage
from causal_priors.data.tokenise import shards_stage
from causal_priors.data.tokenizer import tokenizer_stage
from causal_priors.errors import UserError
from causal_priors.scale import Scale


@cache
def scale(name: str) -> Scale:
    """The registered scale called `name`."""
    return load_scale(scale_file(name))


def write_corpus(folder: Path, documents: int = 24, words: int = 2000, seed: int = 0) -> Path:
    """Write a corpus of made-up words, one .txt a document; common words are common, as in text."""
    generator = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlucmfwygpbvk"))
    lexicon = ["".join(generator.choice(letters, size=generator.integers(2, 9))) for _ in range(500)]
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(documents):
        ranks = np.minimum(generator.zipf(1.3, size=words), len(lexicon)) - 1
        (folder / f"text-{number:03}.txt").write_text(" ".join(lexicon[rank] for rank in ranks), encoding="utf-8")
    return folder


def write_shards(folder: Path, of: Scale, **corpus: int) -> Path:
    """Run the data stages at scale `of` on a made-up corpus; return the folder of the shards."""
    texts, index, tokenizer = folder / "corpus", folder / "index.parquet", folder / "tokenizer.json"
    write_corpus(texts, **corpus)
    index_stage(texts, index, allow_packed_blocks=True)
    tokenizer_stage(texts, index, of, tokenizer, cache=folder / "cache")
    shards_stage(texts, index, tokenizer, of, folder / "shards", allow_packed_blocks=True, threads=1)
    return folder / "shards"


def skip_offline(reason: str) -> NoReturn:
    """Skip a test that needs the package index; in CI, which has it, fail: most of the suite would go unseen."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@cache
def default_corpus() -> Path:
    """The default corpus's folder: the repository's own where it was made, else fetched for this test process."""
    made = ROOT / "results" / "corpus" / "default"
    if (made / "card.json").is_file():
        return made
    folder = Path(tempfile.mkdtemp(prefix="causal-priors-corpus-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        fetch_corpus(folder)
    except UserError as error:
        skip_offline(f"the default corpus is neither in {made} nor to be fetched: {error}")
    return folder
