"""The check for a GPU, run at toy sizes on a CPU: that it runs, and that its table holds together."""

import os
import subprocess
import sys

import pytest

from causal_priors.bench import gpu
from causal_priors.config import ROOT

COLUMNS = ["arm", "steps", "step", "beside `rope`", "tokens/s", "MFU", "peak memory", "loss error", "gradient error"]


def test_the_check_runs_to_its_end_without_a_gpu():
    environment = {**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    command = [ROOT / "tests" / "gpu" / "check.sh", "--tiny"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no GPU: torch.cuda.is_available() is False" in done.stdout
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line.startswith("|")
    ]
    assert rows[0] == COLUMNS
    found = {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in rows[2:]}
    assert list(found) == list(gpu.ARMS_SHOWN)
    assert found["rope"]["beside `rope`"] == "1.00"
    for row in found.values():
        # Products of 8 bits: neither exact nor far off.
        assert 1e-5 < float(row["loss error"]) < 1e-2
        assert 1e-4 < float(row["gradient error"]) < 5e-2


@pytest.mark.parametrize(
    ("name", "peak"),
    [("NVIDIA H200", 9.89e14), ("NVIDIA A100", 3.12e14), ("NVIDIA L4", 1.21e14), ("Other", None)],
)
def test_mfu_is_a_share_of_what_the_maker_states(monkeypatch, name, peak):
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: name)
    expected = None if peak is None else pytest.approx(1e14 / peak)
    assert gpu.share_of_peak(1e14, "cuda") == expected
