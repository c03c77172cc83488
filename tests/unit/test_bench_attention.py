"""The benchmark of the arms: its table, its shapes, and that what it measures runs."""

import json
import subprocess
import sys

import pytest

from causal_priors.bench import attention
from causal_priors.cli import main


def test_the_table_shows_ropes_own_numbers_and_ratios_to_them():
    found = {
        ("micro", "time", "rope"): {"beside": 0.025, "ratio": 1.01},
        ("micro", "memory", "rope"): {"value": 30.0},
        ("micro", "time", "fox"): {"beside": 0.027, "ratio": 1.234},
        ("micro", "memory", "fox"): {"value": 45.0},
    }
    lines = attention.table(["micro"], ["rope", "fox"], found).splitlines()
    assert lines[0] == "| arm | step, micro S | its memory |"
    assert lines[2:] == ["| rope, absolute | 25 ms | 30 MB |", "| rope | 1.01 | 1.00 |", "| fox | 1.23 | 1.50 |"]


def test_the_shapes_are_those_of_the_scales():
    micro, paper, long = (attention.shape_of(part) for part in ("micro", "paper", "evaluation"))
    assert micro.windows * micro.size.train_length == micro.size.tokens_per_step
    assert (paper.size.width, paper.size.depth, paper.vocabulary) == (512, 8, 50304)
    assert (long.size.heads, long.size.head_dim, 8 * long.size.train_length) == (12, 64, 16_384)


def test_one_measurement_is_a_number():
    """In a process of its own, as the benchmark takes it; the parent imports no torch."""
    command = [sys.executable, "-m", "causal_priors", "bench", "attention", "--quick", "--one", "micro", "time", "fox"]
    found = json.loads(subprocess.check_output(command, text=True))
    assert found["beside"] > 0
    assert found["ratio"] > 0
    script = "import sys, causal_priors.bench.attention\nprint('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "False\n"


@pytest.mark.parametrize("arguments", [["--arms", "foxx"], ["--arms", "fox", "ropee"]])
def test_an_unknown_arm_is_refused(capfd, arguments):
    assert main(["bench", "attention", *arguments]) == 2
    assert "is not an arm; arms are rope, " in capfd.readouterr().err
