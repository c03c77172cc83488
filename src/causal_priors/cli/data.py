"""Commands of data and theory: what happens before the first training run."""

import argparse
from pathlib import Path

from causal_priors.cli.options import Add, natural, packed_option, scale_of, scale_option, texts_options


def register(add: Add) -> None:
    """Declare the commands."""
    sub = add("corpus", _corpus, "fetch the default corpus, verified by sha256")
    sub.add_argument("card", type=Path, help="corpus card to write; the texts lie beside it")
    sub.add_argument("--archives", default="", help="folder that holds the archives, where there is no network")

    sub = add(
        "fetch", _fetch, "fetch files of a dataset of the Hugging Face hub into a folder, for corpus: in the config"
    )
    sub.add_argument("dataset", help="owner/name, for instance HuggingFaceFW/fineweb-edu")
    sub.add_argument("--include", nargs="+", default=["*.parquet"], metavar="PATTERN", help="files to fetch")
    sub.add_argument("--revision", default="main", help="commit, tag or branch")
    sub.add_argument("--out", type=Path, required=True, help="folder")

    sub = add("index", _index, "check a corpus, and split it into training and held-out documents")
    texts_options(sub)
    sub.add_argument("--card", type=Path, help="card of the default corpus, to check the texts against")
    packed_option(sub)
    sub.add_argument("--threads", type=natural, default=0, help="reading processes; 0: one a core")
    sub.add_argument("--out", type=Path, required=True)

    sub = add("tokenizer", _tokenizer, "train the byte-level BPE on the training split, or fetch GPT-2's")
    texts_options(sub)
    scale_option(sub)
    sub.add_argument("--index", type=Path, required=True)
    sub.add_argument("--cache", type=Path, required=True, help="folder for downloads")
    sub.add_argument("--archives", default="", help="folder that holds the archives, where there is no network")
    sub.add_argument("--out", type=Path, required=True)

    sub = add("shards", _shards, "tokenise the corpus into training and held-out shards")
    texts_options(sub)
    scale_option(sub)
    sub.add_argument("--index", type=Path, required=True)
    sub.add_argument("--tokenizer", type=Path, required=True)
    sub.add_argument("--allow-repeats", action="store_true", help="accept a corpus that training repeats often")
    packed_option(sub)
    sub.add_argument("--threads", type=natural, default=0, help="tokenising processes; 0: one a core")
    sub.add_argument("--out", type=Path, required=True, help="folder")

    sub = add("margins", _margins, "choose the margins of experiment 0005 from theory")
    scale_option(sub)
    sub.add_argument("--out", type=Path, required=True)

    sub = add("theory", _theory, "write the table of numbers that need no training, beside their limits")
    scale_option(sub)
    sub.add_argument("--parquet", type=Path, required=True)
    sub.add_argument("--csv", type=Path, required=True)


def _corpus(options: argparse.Namespace) -> None:
    from causal_priors.data.corpus import corpus_stage

    corpus_stage(options.card, options.archives)


def _fetch(options: argparse.Namespace) -> None:
    from causal_priors.data.hub import fetch_dataset

    fetch_dataset(options.dataset, options.out, options.include, options.revision)


def _index(options: argparse.Namespace) -> None:
    from causal_priors.data.index import index_stage

    index_stage(
        options.texts,
        options.out,
        column=options.text_column,
        card=options.card,
        allow_packed_blocks=options.packed,
        threads=options.threads,
    )


def _tokenizer(options: argparse.Namespace) -> None:
    from causal_priors.data.tokenizer import tokenizer_stage

    tokenizer_stage(
        options.texts,
        options.index,
        scale_of(options),
        options.out,
        column=options.text_column,
        cache=options.cache,
        archives=options.archives,
    )


def _shards(options: argparse.Namespace) -> None:
    from causal_priors.data.tokenise import shards_stage

    shards_stage(
        options.texts,
        options.index,
        options.tokenizer,
        scale_of(options),
        options.out,
        column=options.text_column,
        allow_repeats=options.allow_repeats,
        allow_packed_blocks=options.packed,
        threads=options.threads,
    )


def _margins(options: argparse.Namespace) -> None:
    from causal_priors.theory.margin import margin_stage

    margin_stage(scale_of(options), options.out)


def _theory(options: argparse.Namespace) -> None:
    from causal_priors.theory.stage import theory_stage

    theory_stage(scale_of(options), options.parquet, options.csv)
