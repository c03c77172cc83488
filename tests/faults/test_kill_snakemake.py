"""SIGKILL to Snakemake itself, alone or with all its jobs, and a second Snakemake beside the first.

The next `snakemake --cores all`, without any option, goes on and ends with the bytes of a study left alone.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time

import helpers
import pytest
from checkout import Checkout

from causal_priors.data.index import index_stage
from causal_priors.data.tokenise import shards_stage
from causal_priors.data.tokenizer import tokenizer_stage

pytestmark = pytest.mark.workflow

NAME = "S-log-L16-s0"
ONE = f"results/nano/runs/{NAME}/evaluation.parquet"
STEPS = 4000
# A study takes two to four minutes; other work on the machine must not end the test.
STUDY_SECONDS = 1800
SHARDS = ("card.json", "train.bin", "heldout.bin", "documents.parquet")


class Copy(Checkout):
    """A copy in which Snakemake runs on all cores."""

    def start(self, *targets: str) -> subprocess.Popen:
        return self.launch(["--cores", "all", *targets])

    def finish(self, *targets: str) -> str:
        process = self.start(*targets)
        assert process.wait(STUDY_SECONDS) == 0, self.said(process)
        return self.said(process)


def wait_for(seen, seconds=600):
    until = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)


@pytest.fixture
def copies(tmp_path):
    """Makes copies of the repository by name; whatever was started in them is dead afterwards."""
    made: list[Copy] = []

    def copy(name: str) -> Copy:
        made.append(Copy(tmp_path / name))
        return made[-1]

    yield copy
    for one in made:
        for process in one.started:
            one.kill(process, group=True)


@pytest.fixture
def checkout(copies):
    """A copy of the repository; whatever was started in it is dead afterwards."""
    return copies("copy")


def refused_beside(checkout, first, *targets):
    """Start a second driver, which must stop with a message and leave the first alone."""
    second = checkout.start(*targets)
    assert second.wait(600) != 0
    assert "results/nano: another snakemake is at work here; wait for it" in checkout.said(second)
    assert "Traceback" not in checkout.said(second)
    assert first.poll() is None


def test_the_next_snakemake_goes_on_by_itself(checkout, tmp_path):
    target = "results/nano/data/shards/card.json"
    data = checkout.folder / "results/nano/data"
    first = checkout.start(target)
    wait_for((data / "index.parquet").exists)
    checkout.kill(first, group=False)
    checkout.finish(target)

    texts, index, tokenizer = checkout.folder / "results/corpus/default/text", tmp_path / "index", tmp_path / "bpe"
    nano = helpers.scale("nano")
    index_stage(texts, index, card=texts.parent / "card.json")
    tokenizer_stage(texts, index, nano, tokenizer, cache=tmp_path)
    shards_stage(texts, index, tokenizer, nano, tmp_path / "shards", threads=1)
    made = {name: (data / "shards" / name).read_bytes() for name in SHARDS}
    assert made == {name: (tmp_path / "shards" / name).read_bytes() for name in SHARDS}


@pytest.mark.slow
def test_a_run_goes_on_from_its_last_step_under_the_next_snakemake(checkout):
    scale = checkout.folder / "workflow/config/scales/nano.yaml"
    text = scale.read_text().replace("train_length: 16, steps: 5,", f"train_length: 16, steps: {STEPS},", 1)
    scale.write_text(text.replace("max_corpus_repeats: 4.0", "max_corpus_repeats: 1000.0"))
    first = checkout.start(ONE)
    wait_for(lambda: "step" in checkout.logged(NAME))
    refused_beside(checkout, first, ONE)

    # The driver alone: its job saves, ends, and leaves the folder to the next one.
    checkout.kill(first, group=False)
    third = checkout.start(ONE)
    wait_for(lambda: "continues after step" in checkout.logged(NAME))
    assert "stopped by SIGTERM" in checkout.said(first)

    # The driver with its jobs.
    checkout.kill(third, group=True)
    checkout.finish(ONE)

    disturbed = checkout.digests()
    shutil.rmtree(checkout.folder / "results")
    checkout.finish(ONE)
    assert checkout.digests() == disturbed


@pytest.mark.slow
def test_a_study_killed_twenty_times_ends_as_one_left_alone(copies):
    disturbed, whole = copies("disturbed"), copies("whole")
    draw = random.Random(7)
    hits = 0
    for number in range(20):
        process = disturbed.start()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(4 + draw.random() * 16)
        hits += process.poll() is None
        if number % 3 == 2 and process.poll() is None:
            # Ctrl-C: the terminal sends it to all of them, and they end by themselves.
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(120) != 0
        disturbed.kill(process, group=number % 3 == 0)
    assert hits >= 10
    disturbed.finish()
    whole.finish()
    assert disturbed.digests() == whole.digests()
