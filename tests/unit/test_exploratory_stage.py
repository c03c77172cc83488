"""The exploratory stage on a planted study in run folders: what is written, what is left out, what it stays out of."""

import json
import subprocess
import sys

import pandas as pd
import planted
import pytest
from exploratory_cases import by_head, logged
from helpers import scale

from causal_priors.config import ROOT
from causal_priors.exploratory import PAGE, TABLES
from causal_priors.exploratory.stage import exploratory_stage
from causal_priors.runs import Run
from causal_priors.tables import SCHEMAS, write_table

NANO = scale("nano")


def write(frame, path, status="finished"):
    columns = [name for name in ("layer", "head") if name not in frame]
    frame = frame.assign(**dict.fromkeys(columns, -1))
    write_table(
        frame if len(frame) else pd.DataFrame(columns=SCHEMAS["evaluation"].names),
        path,
        "evaluation",
        {"status": status},
    )
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A planted study in run folders: one run diverged, one is missing, and one is of someone's own arm, edited twice."""
    folder = tmp_path_factory.mktemp("results") / "runs"
    paths = []
    for run in planted.RUNS:
        name = run.name(NANO)
        if name == "C-rope-L64-s2":
            continue
        diverged = name == "S-log-L16-s1"
        frame = planted.planted_run(run, NANO).iloc[: 0 if diverged else None]
        if run.size == "S" and not diverged:
            head = by_head(run.arm, name).assign(block=-1, window=-1, bin=-1, count=8, dtype="float32")
            frame = pd.concat([frame.assign(layer=-1, head=-1), head])
        status = "diverged at step 3" if diverged else "finished"
        paths.append(write(frame, folder / name / "evaluation.parquet", status))
        rows = logged({0: (1.5, 0.5), 5: (1.2, 0.9)}) if run.arm.startswith("log") else logged({})
        write_table(rows, folder / name / "positions.parquet", "positions")
        paths.append(folder / name / "positions.parquet")
    for item in planted.registered_interventions(planted.PROTOCOLS):
        gone = item.run.name(NANO) == "S-log-L16-s1"
        frame = planted.planted_edit(item.run, item.edit, NANO).iloc[: 0 if gone else None]
        status = "diverged at step 3" if gone else "finished"
        paths.append(write(frame, folder / item.run.name(NANO) / f"{item.edit}.parquet", status))
    own = Run("S", "mine", 1, 0)
    for edit in ("cap", "repair"):
        paths.append(write(planted.planted_edit(own, edit, NANO), folder / own.name(NANO) / f"{edit}.parquet"))
    paths.append(write(planted.planted_run(own, NANO), folder / own.name(NANO) / "evaluation.parquet"))
    base = planted.planted_edit(Run("S", "rope", 1, 0), "cap", NANO).assign(stage="control")
    plain = base[base["variant"] == "plain"]
    shifts = {"plain": 0.0, "identity": 0.0, "sham": 0.02, "sham-even": -0.01}
    parts = [plain.assign(variant=name, value=plain["value"] + shift) for name, shift in shifts.items()]
    paths.append(write(pd.concat(parts), folder / "S-rope-L16-s0" / "control.parquet"))
    return paths


@pytest.fixture(scope="module")
def written(files, tmp_path_factory):
    out = tmp_path_factory.mktemp("exploratory")
    exploratory_stage(ROOT / "preregistration", NANO, files, out)
    return out


def test_every_table_is_written_and_every_section_says_that_it_enters_no_verdict(written):
    assert sorted(path.name for path in written.iterdir()) == sorted([PAGE, *(f"{name}.csv" for name in TABLES)])
    text = (written / PAGE).read_text()
    sections = text.split("\n## ")[1:]
    assert len(sections) == 6
    assert all(section.count("*Exploratory: enters no verdict.*") == 1 for section in sections)
    assert all(f"`{name}.csv`" in text for name in TABLES if name != "absent")
    assert "numbers mean nothing" in text
    assert all(len(line) < 400 for line in text.splitlines())


def test_the_page_names_what_is_left_out(written):
    text = (written / PAGE).read_text()
    assert "* 0003-a: run C-rope-L64-s2 missing" in text
    assert "repair of S-log-L16-s1: diverged at step 3" in text
    absent = pd.read_csv(written / "absent.csv")
    assert set(absent[absent["item"] == "S-log-L16-s1"]["table"]) == {"exponents-moved", "far-mass"}
    assert set(absent[absent["item"] == "C-rope-L64-s2"]["reason"]) == {"is missing"}


def test_an_arm_of_ones_own_is_measured_under_both_edits_and_marked(written):
    edits = pd.read_csv(written / "edits.csv")
    mine = edits[edits["arm"] == "mine"]
    assert mine.groupby("variant")["status"].agg(set).to_dict() == {"cap": {"exploratory"}, "repair": {"exploratory"}}
    assert set(edits[(edits["arm"] == "log") & (edits["size"] == "C")]["status"]) == {"exploratory"}
    registered = edits[edits["status"] == "registered"]
    # Of 27 registered checkpoints one diverged.
    assert registered.groupby("variant")["run"].nunique().to_dict() == {"cap": 17, "repair": 9}


def test_the_negative_control_is_shown_with_its_size_beside_caps(written):
    controls = pd.read_csv(written / "controls.csv")
    identity = controls[controls["variant"] == "identity"]
    assert (identity["change"] == 0).all()
    assert (identity["equal_rows"] == identity["rows"]).all()
    sham = controls[(controls["variant"] == "sham") & (controls["quantity"] == "loss")]
    assert sham["change"].tolist() == pytest.approx([0.02] * 4)
    line = (written / PAGE).read_text().splitlines()[-1]
    assert "cap moves the loss of the registered checkpoints by +0.01000 to +0.01000" in line
    assert "sham by +0.02000 to +0.02000, sham-even by -0.01000 to -0.01000" in line


def test_the_same_files_in_any_order_give_the_same_bytes(files, written, tmp_path):
    exploratory_stage(ROOT / "preregistration", NANO, files[::-1], tmp_path)
    for path in written.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_no_files_give_empty_tables_and_reasons(tmp_path):
    exploratory_stage(ROOT / "preregistration", NANO, [], tmp_path)
    absent = pd.read_csv(tmp_path / "absent.csv")
    assert set(absent["table"]) == {"intervals", "sensitivity", "edits", "far-mass"}
    assert (tmp_path / PAGE).read_text().count("Nothing to show.") == 6


def test_the_verdicts_do_not_know_of_these_tables():
    """Scoring loads no module of this package."""
    script = "import sys, causal_priors.prereg.scoring, json; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.check_output([sys.executable, "-c", script], text=True))
    assert not [name for name in loaded if name.startswith("causal_priors.exploratory")]


def test_the_analyses_import_no_torch():
    script = "import sys, causal_priors.exploratory.stage; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "False\n"
