"""Damage: every artefact with a flipped byte, cut short or emptied is named by whoever reads it, with its remedy.

The readers are the stages themselves, as the pipeline calls them; nothing they write may appear.
"""

import json
import random
import shutil

import pytest
from helpers import scale, write_shards

from causal_priors.arms import ARMS
from causal_priors.artifacts import sha256_bytes
from causal_priors.config import ROOT
from causal_priors.data.index import index_stage
from causal_priors.data.shards import open_shards
from causal_priors.data.tokenise import shards_stage
from causal_priors.data.tokenizer import load_tokenizer, tokenizer_stage
from causal_priors.errors import UserError
from causal_priors.evaluate import evaluate_stage
from causal_priors.intervene import intervene_stage
from causal_priors.prereg.scoring import score_stage
from causal_priors.prereg.verdict_tables import read_verdicts
from causal_priors.report.source import source_stage
from causal_priors.report.tables import summary_stage
from causal_priors.runs import Run
from causal_priors.tables import iter_table, read_table
from causal_priors.theory.margin import margin_stage, read_margins
from causal_priors.train.checkpoint import read_checkpoint
from causal_priors.train.loop import train_stage

NANO = scale("nano")
RUN, OTHER = Run("S", "log", 1, 0), Run("S", "log-margin-t050", 1, 0)
FOLDER = f"runs/{RUN.name(NANO)}"
CODE = "c" * 64
REGISTER = ROOT / "preregistration"


def index(at):
    index_stage(at / "corpus", at / "new", allow_packed_blocks=True, card=at / "corpus.json")


def tokenizer(at):
    tokenizer_stage(at / "corpus", at / "index.parquet", NANO, at / "new", cache=at / "cache")


def shards(at):
    texts, rows = at / "corpus", at / "index.parquet"
    shards_stage(texts, rows, at / "tokenizer.json", NANO, at / "new", allow_packed_blocks=True, threads=1)
    (at / "new" / "card.json").rename(at / "new.card")


def train(at):
    train_stage(OTHER, NANO, ARMS[OTHER.arm], at / "shards", at / "new", CODE, at / "margins.json")


def evaluate(at):
    evaluate_stage(RUN, NANO, ARMS["log"], at / FOLDER, at / "shards", at / "new", CODE, allow_packed=True)


def intervene(at):
    intervene_stage(RUN, NANO, ARMS["log"], "cap", at / FOLDER, at / "shards", at / "new", CODE, allow_packed=True)


def tables(at):
    return [at / FOLDER / f"{name}.parquet" for name in ("evaluation", "cap")]


def score(at):
    score_stage(REGISTER, NANO, tables(at), ARMS, at / "new")


def summary(at):
    summary_stage(tables(at), at / "new", at / "new.md")


def source(at):
    source_stage(at / "verdicts.json", at / "summary.csv", REGISTER, NANO, at / "runs", at / "new", at / "new.md")


# Artefact: the stages that read it.
READERS = {
    "corpus/text-003.txt": (index, tokenizer, shards),
    "corpus.json": (index,),
    "index.parquet": (tokenizer, shards),
    "tokenizer.json": (shards,),
    "shards/train.bin": (train, evaluate),
    "shards/heldout.bin": (train, evaluate, intervene),
    "shards/documents.parquet": (train, evaluate),
    "shards/card.json": (train, evaluate),
    "margins.json": (train,),
    f"{FOLDER}/model.safetensors": (evaluate, intervene),
    f"{FOLDER}/run.json": (evaluate, intervene),
    f"{FOLDER}/evaluation.parquet": (score, summary),
    f"{FOLDER}/cap.parquet": (score, summary),
    "verdicts.json": (source,),
}
LIGHT = {
    "index.parquet": lambda path: list(iter_table(path, "corpus")),
    "tokenizer.json": load_tokenizer,
    "shards/card.json": lambda path: open_shards(path.parent),
    "shards/documents.parquet": lambda path: open_shards(path.parent),
    "margins.json": read_margins,
    f"{FOLDER}/model.safetensors": lambda path: read_checkpoint(RUN, NANO, ARMS["log"], path.parent),
    f"{FOLDER}/run.json": lambda path: read_checkpoint(RUN, NANO, ARMS["log"], path.parent),
    f"{FOLDER}/losses.parquet": lambda path: read_table(path, "losses"),
    f"{FOLDER}/positions.parquet": lambda path: read_table(path, "positions"),
    f"{FOLDER}/evaluation.parquet": lambda path: read_table(path, "evaluation"),
    "verdicts.json": read_verdicts,
    "verdicts.parquet": lambda path: read_table(path, "verdicts"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with one of everything, made by the stages; `corpus.json` plays the default corpus's card."""
    at = tmp_path_factory.mktemp("whole")
    write_shards(at, NANO)
    texts = {path.name: sha256_bytes(path.read_bytes()) for path in sorted((at / "corpus").iterdir())}
    (at / "corpus.json").write_text(json.dumps({"documents": texts, "never_held_out": ["text-001.txt"]}))
    margin_stage(NANO, at / "margins.json")
    train_stage(RUN, NANO, ARMS["log"], at / "shards", at / FOLDER, CODE)
    for stage, name in ((evaluate, "evaluation"), (intervene, "cap")):
        stage(at)
        (at / "new").rename(at / FOLDER / f"{name}.parquet")
    score_stage(REGISTER, NANO, tables(at), ARMS, at)
    return at


def damaged(data, how):
    place = len(data) // 2
    flipped = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
    return {"flip": flipped, "truncate": data[:-7], "empty": b""}[how]


@pytest.mark.parametrize("how", ["flip", "truncate", "empty"])
@pytest.mark.parametrize(("name", "reader"), [(name, reader) for name, of in READERS.items() for reader in of])
def test_the_stage_that_reads_it_names_what_is_damaged_and_the_remedy(whole, tmp_path, name, reader, how):
    at = tmp_path / "copy"
    shutil.copytree(whole, at)
    (at / name).write_bytes(damaged((whole / name).read_bytes(), how))
    with pytest.raises(UserError) as caught:
        reader(at)
    said = str(caught.value)
    # A damaged digest of a text shows as a text that differs from it.
    assert name in said or name == "corpus.json", said
    assert "snakemake --cores all --force" in said
    assert "\n" not in said
    # Nothing whole was made of it.
    assert not (at / "new").is_file()
    assert not (at / "new" / "run.json").exists()
    assert not (at / "new" / "card.json").exists()
    assert not (at / "new" / "verdicts.json").exists()
    assert not (at / "new.md").exists()


@pytest.mark.parametrize("name", LIGHT)
def test_no_flipped_byte_gets_through(whole, tmp_path, name):
    at = tmp_path / "copy"
    shutil.copytree(whole, at, copy_function=shutil.copy)
    data = (whole / name).read_bytes()
    LIGHT[name](at / name)
    draw = random.Random(name)
    for _ in range(40):
        place, bit = draw.randrange(len(data)), 1 << draw.randrange(8)
        (at / name).write_bytes(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :])
        with pytest.raises(UserError):
            LIGHT[name](at / name)
            pytest.fail(f"bit {bit} of byte {place} of {len(data)} went unseen")
