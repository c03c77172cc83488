"""The scoring stage on files: what it reads, what it writes, what it refuses, and what a reader sees."""

import json
import shutil
import subprocess
import sys

import pandas as pd
import pytest
from planted import planted_edit, planted_run

from causal_priors.artifacts import sha256_file
from causal_priors.config import ROOT, load_scale, scale_file
from causal_priors.errors import UserError
from causal_priors.prereg.protocol import load_protocols, registered_interventions, registered_runs
from causal_priors.prereg.scoring import score_stage
from causal_priors.prereg.seal import append_amendment
from causal_priors.prereg.verdict_tables import plain_text, read_verdicts
from causal_priors.runs import Run
from causal_priors.tables import SCHEMAS, read_table, write_table

REGISTER = ROOT / "preregistration"
SCALE = load_scale(scale_file("nano"))
PROTOCOLS = load_protocols(REGISTER)
ARMS = {run.arm for run in registered_runs(PROTOCOLS)}


def write(frame, path, status="finished"):
    frame = frame.assign(layer=-1, head=-1) if len(frame) else pd.DataFrame(columns=SCHEMAS["evaluation"].names)
    write_table(frame, path, "evaluation", {"status": status})
    return path


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Tables of a study in which one run diverged, one was never made, and someone trained an arm of their own."""
    folder = tmp_path_factory.mktemp("results") / "runs"
    paths = []
    for run in registered_runs(PROTOCOLS):
        name = run.name(SCALE)
        if name == "C-rope-L64-s2":
            continue
        diverged = name == "S-rope-logn-L16-s1"
        frame = planted_run(run, SCALE).iloc[: 0 if diverged else None]
        status = "diverged at step 3" if diverged else "finished"
        paths.append(write(frame, folder / name / "evaluation.parquet", status))
    for item in registered_interventions(PROTOCOLS):
        frame = planted_edit(item.run, item.edit, SCALE)
        paths.append(write(frame, folder / item.run.name(SCALE) / f"{item.edit}.parquet"))
    paths.append(write(planted_run(Run("S", "mine", 1, 0), SCALE), folder / "S-mine-L16-s0" / "evaluation.parquet"))
    return paths


@pytest.fixture(scope="module")
def scored(tables, tmp_path_factory):
    out = tmp_path_factory.mktemp("verdicts")
    score_stage(REGISTER, SCALE, tables, ARMS, out)
    return out


def test_outcomes(scored):
    records = read_verdicts(scored / "verdicts.json")
    found = {record["test_id"]: (record["verdict"], record["reason"]) for record in records}
    assert found.pop("0001-b") == ("not evaluated", "run S-rope-logn-L16-s1 diverged at step 3")
    assert found.pop("0003-a") == ("not evaluated", "run C-rope-L64-s2 missing")
    assert found.pop("0002-b") == ("triggered", "by alibi-ot")
    assert set(found.values()) == {("holds", "")}
    assert len(found) == 8


def test_the_digests_are_those_of_the_files(scored, tables):
    records = {record["test_id"]: record for record in read_verdicts(scored / "verdicts.json")}
    by_name = {f"{path.parent.name}/{path.name}": sha256_file(path) for path in tables}
    for record in records.values():
        assert record["inputs"]
        assert all(by_name[name] == sha for name, sha in record["inputs"].items())
        assert record["scale_digest"] == SCALE.digest()
        seal = json.loads(next(REGISTER.glob(f"{record['experiment']}-*/seal.json")).read_text())
        assert record["seal_digest"] == seal["digest"]
    assert "S-mine-L16-s0/evaluation.parquet" not in {name for record in records.values() for name in record["inputs"]}
    assert len(records["0004-c"]["inputs"]) == 30


def test_the_four_files_agree(scored):
    records = read_verdicts(scored / "verdicts.json")
    frame = read_table(scored / "verdicts.parquet", "verdicts")
    table = pd.read_csv(scored / "verdicts.csv", dtype={"experiment": str}, keep_default_na=False, na_values=[""])
    page = (scored / "verdicts.md").read_text()
    for number, record in enumerate(records):
        for column in ("test_id", "experiment", "verdict", "n", "seal_digest"):
            assert frame[column][number] == table[column][number] == record[column]
        for found in (frame, table):
            assert (found["margin"][number] == record["margin"]) or (record["margin"] is None)
            assert json.loads(found["observed"][number]) == record["observed"]
        assert record["verdict"] + (f" ({record['reason']})" if record["reason"] else "") in page
    assert len(frame) == len(table) == len(records) == 11


def test_the_printed_table_fits_and_says_what_nano_means(scored):
    text = plain_text(read_verdicts(scored / "verdicts.json"))
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "outcomes at this scale mean nothing" in text
    assert "9 of 11 registered tests evaluated" in text
    assert "run C-rope-L64-s2 missing" in text
    assert "3 of 3 checkpoints moved as predicted" in text
    lines = {line[:6]: line for line in text.splitlines()}
    assert lines["0001-a"].split() == ["0001-a", "holds", "+0.2500", "3", "0.213", "open", "fails"]


def test_a_second_run_writes_the_same_bytes(scored, tables, tmp_path):
    score_stage(REGISTER, SCALE, tables[::-1], ARMS, tmp_path)
    for path in scored.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
        assert str(ROOT).encode() not in path.read_bytes()


def test_a_changed_seal_stops_scoring_and_leaves_no_verdict(tables, tmp_path):
    register = shutil.copytree(REGISTER, tmp_path / "register")
    file = register / "0003-confirmation" / "protocol.yaml"
    file.write_text(file.read_text().replace("threshold: 0.01", "threshold: 0.001"))
    with pytest.raises(UserError, match=r"tests\.0003-b\.rule\.threshold"):
        score_stage(register, SCALE, tables, ARMS, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_amendment_is_shown_beside_its_verdict_and_changes_nothing_else(scored, tables, tmp_path):
    register = shutil.copytree(REGISTER, tmp_path / "register")
    append_amendment(register / "0003-confirmation", "2026-12-01", ["0003-b"], "A threshold of 0.001 would do as well.")
    score_stage(register, SCALE, tables, ARMS, tmp_path / "out")
    before, after = (read_verdicts(path / "verdicts.json") for path in (scored, tmp_path / "out"))
    changed = [new["test_id"] for old, new in zip(before, after, strict=True) if old != new]
    assert changed == ["0003-b"]
    verdict = next(record for record in after if record["test_id"] == "0003-b")
    assert verdict["amendments"][0]["date"] == "2026-12-01"
    assert (verdict["verdict"], verdict["threshold"]) == ("holds", 0.01)
    assert "amended 2026-12-01: A threshold of 0.001 would do as well." in plain_text(after)


def test_one_experiment_alone(scored, tables, tmp_path):
    score_stage(REGISTER, SCALE, tables, ARMS, tmp_path, experiment="0004")
    everything = read_verdicts(scored / "verdicts.json")
    assert read_verdicts(tmp_path / "verdicts.json") == [row for row in everything if row["experiment"] == "0004"]
    with pytest.raises(UserError, match="'0009': is not an experiment; registered are 0001"):
        score_stage(REGISTER, SCALE, tables, ARMS, tmp_path, experiment="0009")


def test_nothing_registered_was_run(tmp_path):
    """A table of one's own is not even opened."""
    mine = tmp_path / "S-mine-L16-s0" / "evaluation.parquet"
    mine.parent.mkdir()
    mine.write_text("no parquet")
    score_stage(REGISTER, SCALE, [mine], ARMS, tmp_path)
    records = read_verdicts(tmp_path / "verdicts.json")
    assert {record["verdict"] for record in records} == {"not evaluated"}
    assert "0 of 11 registered tests evaluated" in plain_text(records)


def test_other_scales_are_told_apart():
    micro = load_scale(scale_file("micro"))
    records = [
        {
            "scale": micro.name, "scale_status": micro.status, "scale_digest": micro.digest(), "test_id": "0001-a",
            "verdict": "holds", "margin": None, "n": 0, "chance_level": None, "expected": {"outcome": "open"},
            "source": {"outcome": "holds"}, "rule": "r", "reason": "", "selection": None,
            "beside": [], "exploratory": [], "notes": [], "amendments": [],
        }
    ]  # fmt: skip
    text = plain_text(records)
    assert "Scale micro is exploratory" in text
    assert "mean nothing" not in text


def test_scoring_imports_no_torch():
    code = "import sys, causal_priors.prereg.scoring; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
