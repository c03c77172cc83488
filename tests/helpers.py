"""What several test files share. Nothing here repeats production logic: files are made by the real stages."""

from functools import cache
from pathlib import Path

import numpy as np

from causal_priors.config import load_scale, scale_file
from causal_priors.data.index import index_stage
from causal_priors.data.tokenise import shards_stage
from causal_priors.data.tokenizer import tokenizer_stage
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
