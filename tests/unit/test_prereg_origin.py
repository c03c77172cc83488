"""Tables that do not belong together are refused before they are scored, and so are paths that lead nowhere."""

import json

import helpers
import pandas as pd
import pytest

from causal_priors.cli import main
from causal_priors.config import ROOT
from causal_priors.errors import UserError
from causal_priors.prereg.origin import check_one_origin, check_one_scale, read_cards
from causal_priors.prereg.verdict_tables import read_verdicts, write_verdicts
from causal_priors.report.data import gather
from causal_priors.tables import SCHEMAS, write_table

NOTHING = pd.DataFrame(columns=SCHEMAS["evaluation"].names)


@pytest.fixture
def table(tmp_path):
    """Writes an empty table of a run, measured on `shards` from the run card `run`."""

    def write(name, card, file="evaluation.parquet"):
        path = tmp_path / "runs" / name / file
        text = card if isinstance(card, str) else json.dumps(card)
        write_table(NOTHING, path, "evaluation", {"status": "diverged at step 1", "card": text})
        return path

    return write


def of(shards, run="a"):
    return {"inputs": {"shards": shards, "run.json": run}}


def test_tables_of_two_corpora_are_refused(table, tmp_path, capsys):
    files = [table("S-log-L16-s0", of("x")), table("S-log-L16-s1", of("x", "b")), table("S-log-L16-s2", of("y"))]
    check_one_origin(read_cards(files[:2]))
    with pytest.raises(
        UserError, match=r"S-log-L16-s2/evaluation.parquet: was measured on other shards than .*S-log-L16-s0"
    ):
        check_one_origin(read_cards(files))
    arguments = ["score", "--scale", "nano", "--out", str(tmp_path / "out"), *map(str, files)]
    assert main(arguments) == 2
    assert "was measured on other shards" in capsys.readouterr().err
    assert not (tmp_path / "out/verdicts.json").exists()


def test_two_trainings_of_a_run_are_refused(table):
    files = [table("S-log-L16-s0", of("x")), table("S-log-L16-s0", of("x", "b"), "repair.parquet")]
    with pytest.raises(
        UserError, match=r"repair.parquet: was measured from another checkpoint of the run than .*evaluation.parquet"
    ):
        check_one_origin(read_cards(files))


def test_tables_of_another_scale_are_refused(table):
    nano, micro = helpers.scale("nano"), helpers.scale("micro")
    path = table("S-log-L16-s0", {"parameters": {"scale": nano.digest()}})
    check_one_scale(read_cards([path, table("S-log-L16-s1", {})]), nano)
    with pytest.raises(UserError, match=r"S-log-L16-s0/evaluation.parquet: scale = .*: was measured at another scale"):
        check_one_scale(read_cards([path]), micro)
    with pytest.raises(UserError, match="was measured at another scale"):
        gather(micro, ROOT / "preregistration", [path], "none", "none", "none")


def test_verdicts_of_another_scale_are_refused_wherever_they_would_be_named(tmp_path, capsys):
    write_verdicts(tmp_path / "verdicts.json", [{"test_id": "0001-a", "scale": "nano"}])
    assert read_verdicts(tmp_path / "verdicts.json", "nano")
    preregistration = ["--preregistration", str(ROOT / "preregistration")]
    assert main(["report", "--folder", str(tmp_path), "--scale", "paper", *preregistration]) == 2
    assert "verdicts.json: holds verdicts of scale nano, not of paper; write --scale nano" in capsys.readouterr().err
    files = [part for name in ("summary", "runs", "csv", "md") for part in (f"--{name}", str(tmp_path / name))]
    verdicts = ["--verdicts", str(tmp_path / "verdicts.json")]
    assert main(["source", "--scale", "paper", *preregistration, *verdicts, *files]) == 2
    assert "holds verdicts of scale nano, not of paper" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("card", ["[]", "{", '{"inputs": []}', '{"inputs": {"shards": 3}}'])
def test_a_card_of_another_form_is_refused(table, card):
    with pytest.raises(UserError, match=r"evaluation.parquet: has no readable card"):
        check_one_origin(read_cards([table("S-log-L16-s0", card)]))


@pytest.mark.parametrize("command", ["score", "exploratory"])
def test_a_path_that_leads_nowhere_is_refused(command, tmp_path, capsys):
    out = tmp_path / "out"
    assert main([command, "typo/evaluation.parquet", "--scale", "nano", "--out", str(out)]) == 2
    assert "error: typo/evaluation.parquet: is no file; give tables that are there" in capsys.readouterr().err
    assert not out.exists()
