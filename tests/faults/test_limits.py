"""A full disk, a read-only folder, a limit on file sizes or memory, a stop signal anywhere: one line, a non-zero exit,
and every earlier artefact as it was."""

import os
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from helpers import scale, write_shards
from processes import Child, cli

NANO = scale("nano")
RUN = "S-log-L16-s0"
REGISTER = ("--scale", "nano", "--preregistration", Path(__file__).resolve().parents[2] / "preregistration")


def index(data, out):
    return "index", "--texts", data / "corpus", "--packed", "--out", out / "index.parquet"


def tokenizer(data, out):
    texts = ("--texts", data / "corpus", "--index", data / "index.parquet", "--scale", "nano")
    return "tokenizer", *texts, "--cache", data / "cache", "--out", out / "tokenizer.json"


def shards(data, out):
    texts = ("--texts", data / "corpus", "--index", data / "index.parquet", "--scale", "nano", "--packed")
    return "shards", *texts, "--tokenizer", data / "tokenizer.json", "--threads", "1", "--out", out / "shards"


def train(data, out):
    return "train", RUN, *REGISTER, "--shards", data / "shards", "--out", out / RUN


def evaluate(data, out):
    folder = ("--shards", data / "shards", "--folder", data / RUN, "--packed")
    return "evaluate", RUN, *REGISTER, *folder, "--out", out / RUN / "evaluation.parquet"


def intervene(data, out):
    folder = ("--shards", data / "shards", "--folder", data / RUN, "--packed")
    return "intervene", RUN, "cap", *REGISTER, *folder, "--out", out / RUN / "cap.parquet"


def score(data, out):
    return "score", *REGISTER, data / RUN / "evaluation.parquet", "--out", out


STAGES = (index, tokenizer, shards, train, evaluate, intervene, score)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with an artefact of every stage."""
    folder = tmp_path_factory.mktemp("data")
    write_shards(folder, NANO)
    for stage in (train, evaluate):
        assert Child(folder / "stderr", cli, *stage(folder, folder)).end()[0] == 0
    return folder


@pytest.fixture
def mounted(tmp_path):
    """`mount(size)`: a small file system in memory, unmounted after the test."""
    folder = tmp_path / "small"
    folder.mkdir()

    def mount(*options):
        command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", folder]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"mounting a small file system takes root's rights: {done.stderr.strip()}")
        return folder

    yield mount
    subprocess.run(["umount", "--lazy", folder], capture_output=True)


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def refused(tmp_path, *arguments, work=cli):
    """Run the command, which must fail in one line; return that line."""
    code, errors = Child(tmp_path / "stderr", work, *arguments).end()
    assert code == 2, errors
    last = errors.splitlines()[-1]
    assert last.startswith("error: ")
    assert "Traceback" not in errors
    return last


@pytest.mark.parametrize("stage", STAGES)
def test_a_full_disk_is_told_in_one_line_and_nothing_is_lost(data, tmp_path, mounted, stage):
    out = mounted("size=16k")
    (out / "earlier").write_bytes(bytes(16 << 10))
    before = content(out)
    assert "cannot be written" in refused(tmp_path, *stage(data, out))
    assert content(out) == before


OUTPUTS = ("model.safetensors", "losses.parquet", "positions.parquet", "run.json")


@pytest.mark.parametrize(
    "sizes", [(24, 64), pytest.param(range(8, 240, 8), marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_a_disk_that_fills_up_anywhere_in_training_takes_no_bit(data, tmp_path, mounted, sizes):
    """Each time there is a little more room, so that another file is the one that does not fit."""
    out = mounted("size=8k")
    ended = []
    for size in (*sizes, 4096):
        subprocess.run(["mount", "-o", f"remount,size={size}k", out], check=True)
        code, errors = Child(tmp_path / "stderr", cli, *train(data, out)).end()
        ended.append(code)
        assert code == 0 or errors.splitlines()[-1].startswith("error: "), errors
        if code and (out / RUN / "run.json").exists():
            pytest.fail(f"a card without its run at {size} KB: {errors}")
    assert (ended[0], ended[-1]) == (2, 0)
    assert [(out / RUN / name).read_bytes() for name in OUTPUTS] == [
        (data / RUN / name).read_bytes() for name in OUTPUTS
    ]


@pytest.mark.parametrize("stage", STAGES)
def test_a_read_only_folder_is_told_in_one_line(data, tmp_path, mounted, stage):
    out = mounted("ro")
    assert "Read-only file system" in refused(tmp_path, *stage(data, out))


def limited(bytes_at_most, *arguments):
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_at_most, bytes_at_most))
    cli(*arguments)


def test_an_earlier_evaluation_survives_one_that_cannot_be_written(data, tmp_path):
    folder = shutil.copytree(data / RUN, tmp_path / RUN)
    before = content(folder)
    assert "evaluation.parquet" in refused(tmp_path, 4096, *evaluate(data, tmp_path), work=limited)
    assert content(folder) == before


def test_a_log_on_a_full_disk_is_told_on_the_terminal(data, tmp_path, mounted):
    out = mounted("size=8k")
    (out / "earlier").write_bytes(bytes(8 << 10))
    assert "cannot be written" in refused(tmp_path, "--log", out / "log", *train(data, tmp_path))


def starved(room, *arguments):
    """The command with `room` bytes of address space more than the process has already."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + room
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    cli(*arguments)


def test_too_little_memory_is_told_in_one_line(data, tmp_path):
    # A run of the scale paper, whose embedding alone takes more; the ids of nano's vocabulary are ids of its own.
    options = ("--scale", "paper", *REGISTER[2:], "--shards", data / "shards", "--out", tmp_path / "run")
    said = refused(tmp_path, 64 << 20, "train", "S-log-L512-s0", *options, work=starved)
    assert "not enough memory" in said
    assert not (tmp_path / "run" / "run.json").exists()


def announced(ready, *arguments):
    ready.touch()
    cli(*arguments)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("stage", [shards, evaluate, score])
def test_a_stop_signal_ends_any_stage_in_one_line(data, tmp_path, stage, number):
    ready, out = tmp_path / "ready", tmp_path / "out"
    child = Child(tmp_path / "stderr", announced, ready, *stage(data, out))
    while not ready.exists():
        time.sleep(0.001)
    time.sleep(0.03)
    os.kill(child.process.pid, number)
    code, errors = child.end()
    assert code == 128 + number, errors
    assert errors.splitlines()[-1] == f"stopped by {number.name}; what was finished is kept, the same command goes on"
    # Finished parts of shards are what is kept.
    assert not [path for path in content(out) if path.suffix != ".lock" and path.parent.name != "work"]
