"""SIGKILL to single stages: in the middle of a write, of a rename, and at random; called again, they end with the same
bytes as if left alone, and nothing is left behind."""

import random
import time
from dataclasses import replace

import pytest
from helpers import scale, write_corpus
from processes import Child, after, appears

from causal_priors.arms import ARMS
from causal_priors.config import ROOT
from causal_priors.data.index import index_stage
from causal_priors.data.tokenise import shards_stage
from causal_priors.data.tokenizer import tokenizer_stage
from causal_priors.evaluate import evaluate_stage
from causal_priors.intervene import intervene_stage
from causal_priors.prereg.scoring import score_stage
from causal_priors.runs import Run
from causal_priors.train.loop import train_stage

NANO = scale("nano")
# Long enough to be hit between two saves, which come after every step.
LONG = replace(NANO, sizes={**NANO.sizes, "S": replace(NANO.sizes["S"], steps=60)})
RUN = Run("S", "log", 1, 0)
CODE = "c" * 64


def index(at):
    index_stage(at / "corpus", at / "index.parquet", allow_packed_blocks=True)


def tokenizer(at):
    tokenizer_stage(at / "corpus", at / "index.parquet", LONG, at / "tokenizer.json", cache=at / "cache")


def shards(at):
    texts, rows = at / "corpus", at / "index.parquet"
    shards_stage(texts, rows, at / "tokenizer.json", LONG, at / "shards", allow_packed_blocks=True, threads=1)


def train(at):
    train_stage(RUN, LONG, ARMS["log"], at / "shards", at / "run", CODE, save_seconds=0.0)


def evaluate(at):
    out = at / "run" / "evaluation.parquet"
    evaluate_stage(RUN, LONG, ARMS["log"], at / "run", at / "shards", out, CODE, allow_packed=True)


def intervene(at):
    out = at / "run" / "cap.parquet"
    intervene_stage(RUN, LONG, ARMS["log"], "cap", at / "run", at / "shards", out, CODE, allow_packed=True)


def score(at):
    score_stage(ROOT / "preregistration", LONG, [at / "run" / "evaluation.parquet"], ARMS, at / "verdicts")


STAGES = (index, tokenizer, shards, train, evaluate, intervene, score)
# Where to strike: (stage, folder, the file whose appearance is the moment).
MOMENTS = [
    (index, "", ".index.parquet.draft"),
    (index, "", ".index.parquet.*.tmp"),
    (tokenizer, "", ".tokenizer.json.*.tmp"),
    (shards, "shards", ".heldout.bin.*.tmp"),
    (shards, "shards/work", "*.train"),
    (shards, "shards/work", "*.json"),
    (shards, "shards", "train.bin"),
    (shards, "shards", "documents.parquet"),
    (train, "run/work", ".state.safetensors.*.tmp"),
    (train, "run/work", "state.safetensors"),
    (train, "run", ".model.safetensors.*.tmp"),
    (train, "run", "positions.parquet"),
    (train, "run", "run.json"),
    (train, "run/work", "model.safetensors"),
    (evaluate, "run", ".evaluation.parquet.*.tmp"),
    (evaluate, "run", "evaluation.parquet"),
    (intervene, "run", ".cap.parquet.*.tmp"),
    (score, "verdicts", "verdicts.parquet"),
]


def content(at):
    """Every file but sidecars and locks; with hidden ones, so that leftovers count."""
    files = [path for path in at.rglob("*") if path.is_file() and "timing" not in path.name and path.name != ".lock"]
    return {path.relative_to(at).as_posix(): path.read_bytes() for path in files}


def fresh(at):
    write_corpus(at / "corpus")
    return at


def finish(at, stages=STAGES):
    for stage in stages:
        code, errors = Child(at.with_name("stderr"), stage, at).end()
        assert code == 0, errors
    return content(at)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The bytes of all stages left alone, and how long they took."""
    at = fresh(tmp_path_factory.mktemp("whole") / "at")
    began = time.monotonic()
    return finish(at), time.monotonic() - began


def test_stages_killed_in_the_middle_of_every_write_end_with_the_same_bytes(undisturbed, tmp_path):
    at = fresh(tmp_path / "at")
    hits = 0
    for stage in STAGES:
        for _, folder, pattern in (moment for moment in MOMENTS if moment[0] is stage):
            hits += Child(tmp_path / "stderr", stage, at).kill_when(appears(at / folder, pattern))
        code, errors = Child(tmp_path / "stderr", stage, at).end()
        assert code == 0, errors
    # A rename takes microseconds: not every one can be met, but without most this test says nothing.
    assert hits > len(MOMENTS) // 2
    assert content(at) == undisturbed[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_stages_killed_at_random_end_with_the_same_bytes(undisturbed, tmp_path, seed):
    whole, seconds = undisturbed
    at, draw = fresh(tmp_path / "at"), random.Random(seed)
    for stage in STAGES:
        for _ in range(2):
            Child(tmp_path / "stderr", stage, at).kill_when(after(draw.random() * seconds / len(STAGES)))
        code, errors = Child(tmp_path / "stderr", stage, at).end()
        assert code == 0, errors
    assert content(at) == whole
