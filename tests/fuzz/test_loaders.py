"""The fuzz harness, where atheris is installed: every loader meets some ten thousand inputs."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).with_name("loaders.py")
TARGETS = re.findall(r'^    "(\w+)": \(', HARNESS.read_text(encoding="utf-8"), flags=re.MULTILINE)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("atheris") is None,
        reason="atheris is not installed here; pip install -r envs/fuzz.txt, which `make test-all` tries",
    ),
]


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_ends_in_anything_but_a_named_error(target, tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # Behind a shell: a program started at once inherits the largest memory that this process ever had, as its own.
    command = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, str(HARNESS), target]
    command += ["-runs=20000", "-max_total_time=60"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_every_target_is_found():
    assert len(TARGETS) == 11
