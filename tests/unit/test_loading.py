"""load_run, export and TensorBoard events of a real (nano) run; the README's example."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import scale, write_shards

from causal_priors import load_run, loading
from causal_priors.arms import ARMS
from causal_priors.artifacts import own_digest
from causal_priors.cli import main
from causal_priors.errors import UserError
from causal_priors.runs import Run
from causal_priors.tables import read_table
from causal_priors.train.checkpoint import as_device, read_checkpoint
from causal_priors.train.loop import train_stage

ROOT = Path(__file__).resolve().parents[2]
NANO = scale("nano")
RUNS = {arm: Run("S", arm, 1, 0) for arm in ("log", "alibi", "cable", "rope")}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """`results/` with four trained runs at nano."""
    folder = tmp_path_factory.mktemp("loading")
    shards = write_shards(folder / "data", NANO)
    for arm, run in RUNS.items():
        train_stage(run, NANO, ARMS[arm], shards, folder / "results/nano/runs" / run.name(NANO), "c" * 64)
    return folder / "results"


def run_folder(results, arm):
    return results / "nano/runs" / RUNS[arm].name(NANO)


def test_the_package_imports_no_torch_before_load_run_is_asked_for():
    script = "import sys, causal_priors\nprint('torch' in sys.modules)\nfrom causal_priors import load_run"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "False\n"
    with pytest.raises(ImportError, match="load_runs"):
        from causal_priors import load_runs  # noqa: F401


def test_a_loaded_run_is_the_checkpoint(results):
    folder = run_folder(results, "log")
    loaded = load_run(folder)
    assert (loaded.run, loaded.arm, loaded.name, loaded.status) == (
        RUNS["log"],
        ARMS["log"],
        "S-log-L16-s0",
        "finished",
    )
    checkpoint = read_checkpoint(RUNS["log"], NANO, ARMS["log"], folder)
    model = as_device(checkpoint.model(RUNS["log"], NANO, ARMS["log"]), "cpu", "float32")
    ids = torch.arange(32)[None] % NANO.vocabulary
    assert torch.equal(loaded.model(ids[:, :-1], ids[:, 1:]), model(ids[:, :-1], ids[:, 1:]))
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())


def test_the_log_prior_is_the_formula_of_its_exponents(results):
    loaded = load_run(run_folder(results, "log"))
    bias_AHD = loaded.log_prior(64)
    exponents = [value for _, _, quantity, value in loaded.model.position_report() if quantity == "exponent"]
    assert bias_AHD.shape == (1, 2, 64)
    wanted = -np.array(exponents)[None, :, None] * np.log1p(np.arange(64))
    np.testing.assert_allclose(bias_AHD.numpy(), wanted, rtol=1e-5, atol=1e-6)
    alibi = load_run(run_folder(results, "alibi")).log_prior(64)
    # Straight lines through zero.
    np.testing.assert_allclose(np.diff(alibi.numpy(), n=2), 0, atol=1e-5)


def test_a_prior_of_tokens_answers_for_the_window_it_is_given(results):
    loaded = load_run(run_folder(results, "cable"))
    ids = torch.arange(40) % NANO.vocabulary
    other = ids.clone()
    other[10] += 1
    first, second = loaded.log_prior(40, ids), loaded.log_prior(40, other)
    # A sum along the path from query 39 meets the gate of token 10 on its way to keys before it, and only there.
    np.testing.assert_allclose(first[..., :30].numpy(), second[..., :30].numpy(), rtol=1e-5, atol=1e-6)
    assert (first[..., 30:] - second[..., 30:]).abs().min() > 1e-4
    with pytest.raises(UserError, match="looks at tokens: give ids_T"):
        loaded.log_prior(40)
    with pytest.raises(UserError, match=r"is not of shape \[39\]"):
        loaded.log_prior(39, ids)
    with pytest.raises(UserError, match="has no log-prior"):
        load_run(run_folder(results, "rope")).log_prior(8)


def rewritten(folder, change):
    """Change a run's card, digest and all."""
    card = json.loads((folder / "run.json").read_text())
    change(card)
    card["digest"] = own_digest(card)
    (folder / "run.json").write_text(json.dumps(card))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda card: card["outputs"].update({"model.safetensors": "0" * 64}), "differs from the digest in run.json"),
        (lambda card: card["parameters"].update(scale="0" * 64), "is of no registered scale"),
        (lambda card: card["parameters"].pop("arm"), "is not the card of a training run"),
        (lambda card: card["parameters"]["arm"]["rotation"].update(ref="os:path"), "names a part outside this package"),
        (
            lambda card: card["parameters"]["arm"]["log_prior"].update(ref="own_arms.mine:Prior"),
            "give its file: arm='mine.py'",
        ),
    ],
)
def test_a_run_that_is_not_what_its_card_says_is_refused(results, tmp_path, change, problem):
    folder = shutil.copytree(run_folder(results, "log"), tmp_path / "run")
    rewritten(folder, change)
    with pytest.raises(UserError, match=re.escape(problem)):
        load_run(folder)


def test_an_edited_card_and_a_missing_folder_are_refused(results, tmp_path):
    folder = shutil.copytree(run_folder(results, "log"), tmp_path / "run")
    (folder / "run.json").write_text((folder / "run.json").read_text().replace('"S-log', '"S-rope'))
    with pytest.raises(UserError, match="is damaged"):
        load_run(folder)
    with pytest.raises(UserError, match="cannot be read"):
        load_run(tmp_path / "none")


def test_an_exported_run_loads_where_its_scale_is_not_registered(results, tmp_path, monkeypatch):
    out = tmp_path / "handed-on"
    assert main(["export", "S-log-L16-s0", "--scale", "nano", "--results", str(results), "--out", str(out)]) == 0
    monkeypatch.setattr(loading, "SCALES", tmp_path)
    loaded = load_run(out)
    assert torch.equal(loaded.log_prior(64), load_run(out).log_prior(64))
    assert loaded.scale == NANO
    with pytest.raises(UserError, match="is of no registered scale"):
        load_run(run_folder(results, "log"))
    (out / "scale.json").write_text((out / "scale.json").read_text().replace('"vocabulary": 300', '"vocabulary": 400'))
    with pytest.raises(UserError, match=r"scale\.json: differs from the digest"):
        load_run(out)


def test_export_refuses_another_runs_folder_and_an_unknown_run(results, tmp_path, capfd):
    given = ["--scale", "nano", "--results", str(results), "--out", str(tmp_path / "out")]
    assert main(["export", "S-log-L16-s0", *given]) == 0
    assert main(["export", "S-rope-L16-s0", *given]) == 2
    assert "holds another run" in capfd.readouterr().err
    assert main(["export", "S-rope-L16-s7", *given]) == 2
    assert "'S-rope-L16-s7': is no finished run of scale nano" in capfd.readouterr().err


def test_tensorboard_reads_back_what_training_wrote(results, tmp_path):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is optional"
    )
    given = ["--scale", "nano", "--results", str(results)]
    assert main(["tensorboard", *given, "--out", str(tmp_path / "a")]) == 0
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted(run.name(NANO) for run in RUNS.values())
    events = accumulator.EventAccumulator(str(tmp_path / "a" / "S-log-L16-s0"), {"scalars": 0})
    events.Reload()
    losses = read_table(run_folder(results, "log") / "losses.parquet", "losses")
    found = events.Scalars("train/loss")
    assert [event.step for event in found] == losses["step"].tolist()
    np.testing.assert_array_equal(np.float32([event.value for event in found]), losses["loss"].to_numpy(np.float32))
    positions = read_table(run_folder(results, "log") / "positions.parquet", "positions")
    head = positions[(positions["layer"] == 0) & (positions["head"] == 1) & (positions["quantity"] == "exponent")]
    logged = events.Scalars("position/exponent/layer0-head1")
    assert [event.step for event in logged] == head["step"].tolist()
    np.testing.assert_array_equal(np.float32([event.value for event in logged]), head["value"].to_numpy(np.float32))
    assert main(["tensorboard", "S-log-L16-s0", *given, "--out", str(tmp_path / "b")]) == 0
    name = "S-log-L16-s0/events.out.tfevents.0.causal-priors"
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_without_tensorboard_the_remedy_is_said(results, tmp_path, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    assert main(["tensorboard", "--scale", "nano", "--results", str(results), "--out", str(tmp_path)]) == 2
    assert "python -m pip install tensorboard" in capfd.readouterr().err


def test_the_readmes_example_draws_a_log_prior(results, tmp_path, monkeypatch):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = next(block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "load_run" in block)
    assert "results/micro/runs/S-log-L64-s0" in code
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    exec(code.replace("results/micro/runs/S-log-L64-s0", str(run_folder(results, "log"))), {})
    assert (tmp_path / "log-prior.svg").read_text(encoding="utf-8").startswith("<?xml")
