"""Forgeries that keep every digest and every copy that is left true, and honest studies that look like one."""

import json
import shutil

import numpy as np
import planted_study
import pytest
from audit_cases import RUN, broken, edit_card, report_of, rewrite

from causal_priors.arms import ARMS
from causal_priors.artifacts import sha256_file
from causal_priors.audit.divergence import RUNAWAY, check_status
from causal_priors.audit.evidence import RunCard
from causal_priors.audit.findings import CANNOT_TELL, SOUND, Link
from causal_priors.audit.run_chain import distinct
from causal_priors.prereg.scoring import score_stage
from causal_priors.prereg.verdict_tables import read_verdicts, write_verdicts
from causal_priors.tables import read_metadata, read_table, write_table
from causal_priors.train import loop

BEYOND = "S-grape-m-L16-s0"


def forge(repository, change, run=BEYOND):
    """Change the rows of an evaluation, and make all that rests on it again."""
    study = repository / "results/nano"
    rewrite(study / "runs" / run / "evaluation.parquet", change)
    planted_study.score(study)
    return broken(report_of(repository))


def test_blocks_left_out_of_a_table_are_caught(repository):
    """Without the heads, which hold means over all blocks, every number that stands twice is still true."""

    def fewer(frame):
        return frame[(frame["block"] != 3) & (frame["quantity"] != "far_mass_head")]

    found = forge(repository, fewer)
    problem = f"{BEYOND}/evaluation.parquet: lacks 72 rows of its 8 blocks, first: variant plain, quantity loss"
    assert problem in found["whole tables"]
    assert "block 3, window 0, bin 0" in found["whole tables"]
    assert "has a far mass that is not the mean of its heads" in found["copies of a number"]


def test_rows_that_stand_twice_or_weigh_more_are_caught(repository):
    def heavier(frame):
        return frame.assign(count=frame["count"].where(frame["block"] != 3, 1))

    assert "lacks" in forge(repository, heavier)["whole tables"]

    def again(frame):
        return frame.iloc[[*range(len(frame)), 0]].assign(count=frame["count"].where(frame["count"] != 1, 16))

    assert "has besides what it should 1 rows" in forge(repository, again, "S-grape-m-L16-s1")["whole tables"]


def test_exponents_left_out_are_caught_by_the_log_of_training(repository):
    found = forge(repository, lambda frame: frame[frame["quantity"] != "exponent"], "S-log-L16-s0")
    assert "has other exponents than positions.parquet logged last" in found["copies of a number"]


def test_windows_left_out_of_an_intervention_are_caught(repository):
    study = repository / "results/nano"
    rewrite(study / "runs" / RUN / "cap.parquet", lambda frame: frame[frame["block"] != 0])
    planted_study.score(study)
    assert f"{RUN}/cap.parquet: lacks" in broken(report_of(repository))["whole tables"]


def diverge(study, run, at=2):
    """Make a run and its tables what training and evaluation leave of one that diverges at step `at`."""
    folder = study / "runs" / run
    losses = read_table(folder / "losses.parquet", "losses").iloc[: at + 1].copy()
    losses.loc[at, ["loss", "grad_norm"]] = np.nan
    write_table(losses, folder / "losses.parquet", "losses")

    def change(card):
        card["outputs"]["losses.parquet"] = sha256_file(folder / "losses.parquet")
        card.update({"status": f"diverged at step {at}", "steps": at, "final_loss": float(losses["loss"][at - 1])})

    edit_card(folder / "run.json", change)
    for path in {*folder.glob("*.parquet")} - {folder / "losses.parquet", folder / "positions.parquet"}:
        retell(path, f"diverged at step {at}", lambda frame: frame.iloc[:0])
    planted_study.score(study)


def retell(path, status, change=lambda frame: frame):
    """Write a table anew under another status, of the run card that lies beside it."""
    frame, card = change(read_table(path, "evaluation")), json.loads(read_metadata(path, "evaluation")["card"])
    card["inputs"]["run.json"] = sha256_file(path.with_name("run.json"))
    columns = {name: frame[name].tolist() for name in frame.columns}
    write_table(columns, path, "evaluation", {"status": status, "card": json.dumps(card)})


def test_a_run_that_diverged_is_no_forgery(repository):
    diverge(repository / "results/nano", BEYOND)
    report = report_of(repository)
    assert report.outcome == SOUND, report.text()


def test_a_finished_run_declared_diverged_is_caught(repository):
    """Whatever of card and tables is made to fit: the losses have not ended."""
    study = repository / "results/nano"
    folder = study / "runs" / BEYOND
    edit_card(folder / "run.json", lambda card: card.update({"status": "diverged at step 3"}))
    retell(folder / "evaluation.parquet", "diverged at step 3")
    planted_study.score(study)
    found = broken(report_of(repository))
    assert "run.json: diverged at step 3, but counts 5 steps of 5" in found["run card -> run"]
    assert "losses.parquet: has 5 steps, run.json says 5 (diverged at step 3)" in found["run card -> weights and logs"]
    assert "evaluation.parquet: has" in found["whole tables"]
    edit_card(folder / "run.json", lambda card: card.update({"status": "diverged at step 4", "steps": 4}))
    retell(folder / "evaluation.parquet", "diverged at step 4", lambda frame: frame.iloc[:0])
    planted_study.score(study)
    found = broken(report_of(repository))
    problem = "losses.parquet: says that no step of it diverged, run.json says diverged at step 4"
    assert problem in found["run card -> weights and logs"]
    assert found.keys() == {"run card -> weights and logs"}


def test_a_status_that_no_run_has_is_caught_and_runaway_is_the_number_of_training():
    link, card = Link("run card -> run"), RunCard("run.json", {"status": "diverged", "steps": 3}, "")
    check_status(link, card, 5, "")
    assert "has the status 'diverged', which no run has" in str(link.broken[0])
    assert RUNAWAY == loop._RUNAWAY


def test_an_own_arm_may_equal_a_registered_one_and_its_seeds_may_not_be_one():
    for names, fine in (
        (("S-my-rope-L16-s0", "S-rope-L16-s0"), True),
        (("S-my-rope-L16-s0", "S-my-rope-L16-s1"), False),
        (("S-rope-L16-s0", "S-rope-L16-s1"), False),
    ):
        link = Link("no run twice")
        distinct(link, dict.fromkeys(names, "a"), planted_study.SCALE, "have the same weights", str)
        assert (not link.broken) == fine, names


def test_a_verdict_under_one_key_twice_is_caught(repository):
    path = repository / "results/nano/verdicts.json"
    path.write_text(path.read_text().replace('"verdict": "fails"', '"verdict": "holds",\n    "verdict": "fails"', 1))
    problem = "verdicts.json: is not JSON (the key 'verdict' stands twice in one mapping)"
    assert problem in broken(report_of(repository))["tables -> verdicts"]


@pytest.fixture
def part(repository):
    """A study of which only experiment 0004 was made: the verdicts and runs of that one."""
    study = repository / "results/nano"
    used = {"S-cable-L16-s0", "S-cable-L16-s1", "S-log-L16-s0", "S-log-L16-s1"}
    for folder in [*study.glob("runs/*")]:
        if folder.name not in used:
            shutil.rmtree(folder)
    for path in [*study.glob("verdicts.*"), study / "tables"]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    tables = sorted(path for run in used for path in (study / "runs" / run).glob("[cer]*.parquet"))
    out = study / "experiments/0004"
    score_stage(repository / "preregistration", planted_study.SCALE, tables, ARMS, out, experiment="0004")
    return out


def test_a_study_of_one_experiment_lacks_the_others_and_is_not_broken(repository, part):
    report = report_of(repository)
    assert not broken(report), report.text()
    assert report.outcome == CANNOT_TELL
    assert "10 of 14 are not there, and no verdict counts on them; first: S-alibi-ot-L16-s0/run.json" in report.text()
    # What its verdicts count on is another matter.
    shutil.rmtree(repository / "results/nano/runs" / RUN)
    found = broken(report_of(repository))
    assert f"runs/{RUN}/run.json: is missing" in found["registered runs"]
    assert f"runs/{RUN}/cap.parquet: is missing" in found["registered tables"]


def test_verdicts_of_one_experiment_are_checked_in_all_forms(repository, part):
    page = part / "verdicts.md"
    page.write_text(page.read_text().replace("## 0004-a: ", "## 0004-a: surely "))
    records = read_verdicts(part / "verdicts.json")
    write_verdicts(part / "verdicts.json", records[:1])
    found = broken(report_of(repository))
    problem = "experiments/0004/verdicts.md: differs from what the files behind it give"
    assert problem in found["verdicts -> tables for readers"]
    problem = "experiments/0004/verdicts.json: holds 0004-a; registered are 0004-a, 0004-b"
    assert problem in found["tables -> verdicts"]


def test_an_edited_comparison_with_the_source_and_two_forms_of_theory_that_differ_are_caught(repository):
    study = repository / "results/nano"
    for name in ("tables/source.md", "tables/source.csv", "theory/theory.csv"):
        path = study / name
        path.write_text(path.read_text().replace("1", "2").replace("0.5", "0.6"))
    found = broken(report_of(repository))
    assert found.keys() == {"verdicts -> tables for readers"}
    for name in ("source.md", "source.csv", "theory.csv"):
        assert f"{name}: differs from what the files behind it give" in found["verdicts -> tables for readers"]
