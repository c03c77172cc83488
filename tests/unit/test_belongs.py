"""A command refuses files that do not belong together before it computes anything."""

import shutil

import helpers
import pytest

from causal_priors.arms import ARMS
from causal_priors.artifacts import read_json, write_signed_json
from causal_priors.cli import main
from causal_priors.config import ROOT
from causal_priors.runs import Run
from causal_priors.theory.margin import margin_stage
from causal_priors.train.loop import train_stage

SCALE = helpers.scale("nano")
NAME = "S-log-L16-s0"
REGISTER = ("--scale", "nano", "--preregistration", str(ROOT / "preregistration"))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Shards, others like them but for their card, and a run trained on the first."""
    folder = tmp_path_factory.mktemp("study")
    helpers.write_shards(folder, SCALE).rename(folder / "own")
    shutil.copytree(folder / "own", folder / "other")
    card = {key: value for key, value in read_json(folder / "other" / "card.json").items() if key != "digest"}
    write_signed_json(folder / "other" / "card.json", {**card, "tokenizer": "0" * 64})
    train_stage(Run("S", "log", 1, 0), SCALE, ARMS["log"], folder / "own", folder / NAME, "c" * 64)
    return folder


@pytest.mark.parametrize("stage", [("evaluate", NAME), ("intervene", NAME, "cap"), ("control", NAME)])
def test_a_checkpoint_of_other_shards_is_refused(study, tmp_path, capfd, stage):
    out = tmp_path / "out.parquet"
    places = ("--folder", str(study / NAME), "--shards", str(study / "other"), "--out", str(out))
    assert main([*stage, *REGISTER, *places]) == 2
    message = f"run.json: was trained on other shards than {study / 'other' / 'card.json'}; name its own, or train"
    assert message in capfd.readouterr().err
    assert not out.exists()


def test_its_own_shards_are_taken(study, tmp_path):
    out = tmp_path / "out.parquet"
    places = ("--folder", str(study / NAME), "--shards", str(study / "own"), "--out", str(out), "--packed")
    assert main(["evaluate", NAME, *REGISTER, *places]) == 0
    assert out.is_file()


def test_margins_of_another_scale_are_refused(study, tmp_path, capfd):
    margin_stage(helpers.scale("micro"), tmp_path / "margins.json")
    places = (
        "--shards",
        str(study / "own"),
        "--margins",
        str(tmp_path / "margins.json"),
        "--out",
        str(tmp_path / "run"),
    )
    assert main(["train", "S-log-margin-t050-L16-s0", *REGISTER, *places]) == 2
    assert "were selected for L = 64, and scale nano trains at 16" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()
