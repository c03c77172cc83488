"""Memory: tokenising streams, whatever the corpus's size; evaluation grows with the window length as stated.

Every measurement is the peak of a process of its own, with all that it forks.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

MEGABYTE = 10**6
_WORDS = 20_000
# Documents of a row group, whose text is unpacked at once: some 4 MB, in small files and large ones.
_GROUP = 100


def texts(size):
    """Documents of some hundred to a hundred thousand bytes, `size` bytes in all, of words as common as in text."""
    generator = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwygpbvk"))
    lexicon = np.array(["".join(generator.choice(letters, size=n)) for n in generator.integers(2, 12, size=_WORDS)])
    # Documents differ in their first word only, from those of the round before: making them must not take the time.
    bodies = [
        " ".join(lexicon[np.minimum(generator.zipf(1.2, size=words), _WORDS) - 1])
        for words in generator.choice([100, 2000, 15_000], size=60)
    ]
    made, number = 0, 0
    while made < size:
        text = f"{number} {bodies[number % len(bodies)]}"
        made, number = made + len(text), number + 1
        yield text


def write_jsonl(folder, size):
    folder.mkdir()
    with open(folder / "corpus.jsonl", "w", encoding="utf-8") as file:
        for text in texts(size):
            file.write(json.dumps({"text": text}) + "\n")


def write_parquet(folder, size):
    folder.mkdir()
    schema = pa.schema([("text", pa.string())])
    rows: list[str] = []
    with pq.ParquetWriter(folder / "corpus.parquet", schema, compression="zstd") as writer:
        for text in texts(size):
            rows.append(text)
            if len(rows) == _GROUP:
                writer.write_table(pa.table({"text": rows}, schema=schema))
                rows = []
        if rows:
            writer.write_table(pa.table({"text": rows}, schema=schema))


# The peak of this program alone: what getrusage says may be the parent's, from before the program was loaded.
_PEAK = """
import re
def peak():
    with open("/proc/self/status") as status:
        return int(re.search(r"VmHWM:\\s+(\\d+)", status.read())[1]) * 1024
"""


def memory_of(process):
    """Bytes of memory of a process and its descendants; what several share counts once."""
    try:
        share = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{process}/smaps_rollup").read_text(), re.MULTILINE)
        children = [file.read_text().split() for file in Path(f"/proc/{process}/task").glob("*/children")]
    except OSError:
        # It has ended.
        return 0
    own = int(share[1]) * 1024 if share else 0
    return own + sum(memory_of(int(child)) for found in children for child in found)


def run(program, *arguments):
    """Run a Python program; return the numbers that it prints."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [int(number) for number in done.stdout.split()]


def measured(*arguments):
    """Run one stage; return the largest memory of its processes together in bytes, and the seconds it took."""
    command = [sys.executable, "-m", "causal_priors", *map(str, arguments)]
    began, peak = time.monotonic(), 0
    with tempfile.TemporaryFile("w+") as errors, subprocess.Popen(command, stderr=errors) as stage:
        while stage.poll() is None:
            peak = max(peak, memory_of(stage.pid))
            time.sleep(0.02)
        seconds = time.monotonic() - began
        errors.seek(0)
        assert stage.returncode == 0, errors.read()
    return peak, seconds


def tokenised(folder, scale, threads):
    """Index, tokenizer and shards of the corpus in `folder`/texts: {stage: (peak bytes, seconds)}."""
    at, index, tokenizer = ("--texts", folder / "texts"), folder / "index.parquet", folder / "tokenizer.json"
    found = {"index": measured("index", *at, "--packed", "--threads", threads, "--out", index)}
    at = (*at, "--index", index, "--scale", scale)
    found["tokenizer"] = measured("tokenizer", *at, "--cache", folder, "--out", tokenizer)
    options = ("--tokenizer", tokenizer, "--packed", "--allow-repeats", "--threads", threads)
    found["shards"] = measured("shards", *at, *options, "--out", folder / "shards")
    return found


@pytest.mark.parametrize("write", [write_jsonl, pytest.param(write_parquet, marks=pytest.mark.slow)])
def test_four_times_the_text_takes_no_more_memory(tmp_path, write):
    peaks = []
    for size in (10 * MEGABYTE, 40 * MEGABYTE):
        folder = tmp_path / str(size)
        folder.mkdir()
        write(folder / "texts", size)
        peaks.append(tokenised(folder, "nano", 1))
    for stage in ("index", "shards"):
        (small, _), (large, _) = (found[stage] for found in peaks)
        # Two thirds of the texts that were added: nothing keeps them.
        assert large - small < 20 * MEGABYTE, (stage, small, large)


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_jsonl, write_parquet])
def test_a_gigabyte_of_text_is_tokenised_in_less_than_a_gigabyte(tmp_path, write, capsys):
    size = 1000 * MEGABYTE
    write(tmp_path / "texts", size)
    found = tokenised(tmp_path, "mini", 2)
    with capsys.disabled():
        for stage, (peak, seconds) in found.items():
            rate = size / MEGABYTE / seconds
            print(f"\n{write.__name__[6:]}: {stage} {rate:.1f} MB/s, {peak / MEGABYTE:.0f} MB of memory")
    assert all(peak < 1000 * MEGABYTE for peak, _ in found.values()), found


# Peak before and after one window of 64 L tokens, at the shape of micro (L = 64) and with its weights untrained.
_EVALUATE = f"""{_PEAK}
import sys
import numpy as np
from causal_priors.arms import ARMS
from causal_priors.config import load_scale, scale_file
from causal_priors.evaluate import measure
from causal_priors.model import Transformer
from causal_priors.train.determinism import settle

settle("cpu")
scale = load_scale(scale_file("micro"))
size = scale.sizes["S"]
length = size.train_length
model = Transformer(size, scale.vocabulary, ARMS[sys.argv[1]], length, 0).eval().requires_grad_(False)
draw = np.random.default_rng(0)
measure(model, draw.integers(0, 300, size=(1, 8 * length + 1)), [length], length)
before = peak()
measure(model, draw.integers(0, 300, size=(1, 64 * length + 1)), [64 * length], length)
print(64 * length, size.heads, before, peak())
"""
# What README states: bytes of memory per token of the window. One matrix of scores would take 64 L x 4 bytes a head.
_PER_TOKEN = 48_000


@pytest.mark.parametrize(
    "arm", ["log", *(pytest.param(arm, marks=pytest.mark.slow) for arm in ("rope", "fox", "cable", "goat", "ot-75"))]
)
def test_evaluation_at_64_times_the_length_takes_memory_per_token_not_per_pair(arm):
    tokens, heads, before, after = run(_EVALUATE, arm)
    assert tokens == 4096
    assert tokens * heads * 4 > _PER_TOKEN
    assert after - before < _PER_TOKEN * tokens, f"{(after - before) / tokens:.0f} bytes a token"
