"""The audit of a study in which each link is forged: every forgery is caught, or told to be beyond what files can show."""

import json
import shutil

import helpers
import numpy as np
import planted_study
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from audit_cases import OTHER, RUN, broken, edit_card, git, report_of, rewrite
from safetensors.numpy import load_file, save_file

from causal_priors import config
from causal_priors.artifacts import sha256_file, write_json
from causal_priors.audit.findings import BROKEN, CANNOT_TELL, SOUND, Link
from causal_priors.audit.run_chain import distinct
from causal_priors.audit.stage import audit
from causal_priors.cli import main
from causal_priors.config import ROOT
from causal_priors.prereg.seal import append_amendment, seal
from causal_priors.prereg.verdict_tables import read_verdicts, write_verdicts
from causal_priors.report.snapshot import FILES, snapshot
from causal_priors.tables import read_metadata, read_table, write_table


def test_a_study_that_nobody_touched_is_sound(repository):
    report = report_of(repository)
    assert report.outcome == SOUND, report.text()
    assert all(link.checked for link in report.links), report.text()
    assert "sound: every link was checked and holds" in report.text()
    assert "What no file can show:\n  that weights came out of training" in report.text()
    assert "they are in no commit" in report.text()


def test_the_command_prints_lines_or_json_and_exits_with_the_outcome(repository, capsys, monkeypatch):
    monkeypatch.chdir(repository)
    # A scale of this repository, whatever is done to the files of the checkout under test.
    shutil.copytree(config.SCALES, "scales")
    monkeypatch.setattr(config, "SCALES", repository / "scales")
    git(repository, "add", "scales")
    git(repository, "commit", "--quiet", "-m", "Scales")
    assert main(["audit", "--scale", "nano", "--texts", "texts"]) == 0
    assert capsys.readouterr().out.startswith("Audit of results/nano (scale nano)\n")
    shutil.rmtree("texts")
    with pytest.raises(SystemExit) as stopped:
        main(["audit", "--folder", "results/nano", "--json"])
    assert stopped.value.code == CANNOT_TELL
    found = json.loads(capsys.readouterr().out)
    assert (found["outcome"], found["exit_code"], found["scale"]) == ("cannot tell", 2, "nano")
    assert [link["name"] for link in found["links"] if link["missing"]] == ["corpus -> index"]
    assert main(["audit", "--folder", "preregistration", "--scale", "nano"]) == 2
    assert "holds neither the runs of a study nor a snapshot" in capsys.readouterr().err


def test_an_edited_text_index_or_shard_is_named(repository):
    data = repository / "results/nano/data"
    (repository / "texts/text-003.txt").write_text("another text")
    with open(data / "shards/train.bin", "r+b") as file:
        file.write(b"\xff\x00")
    found = broken(report_of(repository))
    assert "text-003.txt: is not the text that was indexed; rebuild it" in found["corpus -> index"]
    assert "train.bin: is damaged" in found["tokenizer -> shards"]
    (data / "index.parquet").write_bytes((data / "index.parquet").read_bytes()[:-20])
    assert "index.parquet: cannot be read" in broken(report_of(repository))["index"]


def test_another_split_with_a_digest_that_fits_is_caught(repository):
    path = repository / "results/nano/data/index.parquet"
    rows = read_table(path, "corpus")
    held = rows.index[rows["split"] == "heldout"][0]
    rows.loc[held, "split"] = "train"
    write_table(rows, path, "corpus")
    found = broken(report_of(repository))
    assert f"{rows['document'][held]} is train, by the rule heldout" in found["index -> split"]
    assert "was made from another corpus or split" in found["index -> tokenizer"]
    assert "is of another corpus or split" in found["tokenizer -> shards"]


def test_margins_that_theory_does_not_give_are_caught(repository):
    path = repository / "results/nano/theory/margins.json"
    edit_card(path, lambda content: content["margins"].update({"log-margin-t050": 0.5}))
    run = repository / "results/nano/runs" / RUN / "run.json"
    edit_card(run, lambda card: card["inputs"].update({"margins": sha256_file(path)}))
    found = broken(report_of(repository))
    assert "differs from what theory gives" in found["scale -> margins"]
    assert f"{RUN}/run.json: has margins, which its arm does not take" in found["shards, margins -> run"]


def test_an_edited_table_is_caught(repository):
    path = repository / "results/nano/runs" / RUN / "evaluation.parquet"
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(bytes(data))
    found = broken(report_of(repository))
    assert f"{RUN}/evaluation.parquet: is damaged" in found["files that can be read"]
    assert f"{RUN}/evaluation.parquet: is missing" in found["registered tables"]
    assert "0002-a: verdict" in found["tables -> verdicts"]


def lower(frame):
    """One number that decides 0002-a."""
    chosen = (frame["quantity"] == "loss") & (frame["length"] == 64) & (frame["bin"] == 1)
    frame.loc[chosen.idxmax(), "value"] -= 0.3
    return frame


def test_an_edited_table_with_a_digest_that_fits_is_caught_by_the_verdicts(repository):
    rewrite(repository / "results/nano/runs" / RUN / "evaluation.parquet", lower)
    found = broken(report_of(repository))
    assert f"0002-a: inputs: {RUN}/evaluation.parquet" in found["tables -> verdicts"]
    assert "0002-a: observed" in found["tables -> verdicts"]
    assert "differs from what the files behind it give" in found["verdicts -> tables for readers"]


def test_an_edited_table_with_all_above_it_made_again_is_caught_by_its_copies(repository):
    study = repository / "results/nano"
    rewrite(study / "runs" / RUN / "evaluation.parquet", lower)
    planted_study.score(study)
    found = broken(report_of(repository))
    assert found.keys() == {"copies of a number"}
    problem = f"{RUN}/evaluation.parquet: scores bin 1 at 4 L unlike the same positions at 2 L"
    assert problem in found["copies of a number"]


def test_a_table_rewritten_with_its_copies_and_all_above_is_beyond_what_files_show(repository):
    study = repository / "results/nano"

    def shift(frame):
        return frame.assign(value=frame["value"] - np.where(frame["quantity"] == "loss", 0.3, 0.0))

    # A run without interventions, which measure it again.
    rewrite(study / "runs" / "S-grape-m-L16-s0" / "evaluation.parquet", shift)
    planted_study.score(study)
    report = report_of(repository)
    assert report.outcome == SOUND, report.text()
    assert (
        "that a table holds what its checkpoint gives, where it was rewritten together with its copies" in report.text()
    )
    # Of a run with one, the forger must think of that too.
    rewrite(study / "runs" / RUN / "evaluation.parquet", shift)
    planted_study.score(study)
    assert "cap.parquet: measured its checkpoint unlike" in broken(report_of(repository))["copies of a number"]


def test_other_exponents_than_training_logged_are_caught(repository):
    study = repository / "results/nano"

    def raised(frame):
        return frame.assign(value=frame["value"] + np.where(frame["quantity"] == "exponent", 1.0, 0.0))

    rewrite(study / "runs/S-log-L16-s0/evaluation.parquet", raised)
    planted_study.score(study)
    assert (
        "has other exponents than positions.parquet logged last" in broken(report_of(repository))["copies of a number"]
    )


def test_a_checkpoint_of_another_seed_is_caught(repository):
    runs = repository / "results/nano/runs"
    shutil.copy(runs / OTHER / "model.safetensors", runs / RUN)
    found = broken(report_of(repository))
    assert f"{RUN}/model.safetensors: differs from the digest in run.json" in found["run card -> weights and logs"]
    assert f"{RUN} and {OTHER}: have the same weights" in found["no run twice"]


def test_a_checkpoint_of_another_seed_with_its_card_is_caught(repository):
    runs = repository / "results/nano/runs"
    shutil.rmtree(runs / RUN)
    shutil.copytree(runs / OTHER, runs / RUN)
    found = broken(report_of(repository))
    assert "run: is not what the run's name says" in found["run card -> run"]
    assert "init_seed: is not what the run's name says" in found["run card -> run"]
    assert "data_seed: is not what the run's name says" in found["run card -> run"]
    assert f"holds rows of run {OTHER}" in found["rows of a table"]
    assert "holds rows of seed 1" in found["rows of a table"]
    assert f"{RUN} and {OTHER}: have one model.safetensors" in found["no run twice"]


def as_seed_0(runs):
    """Make run 1 stand for run 0 with every name, seed and digest changed."""
    saved = {name: (runs / RUN / name).read_bytes() for name in ("cap.parquet",)}
    shutil.rmtree(runs / RUN)
    shutil.copytree(runs / OTHER, runs / RUN)
    (runs / RUN / "cap.parquet").unlink()
    assert saved
    weights = load_file(runs / RUN / "model.safetensors")
    save_file(weights, runs / RUN / "model.safetensors", metadata={"made": "otherwise"})

    def rename(card):
        card["parameters"].update({"run": RUN, "init_seed": 0, "data_seed": 1000})
        card["outputs"]["model.safetensors"] = sha256_file(runs / RUN / "model.safetensors")

    edit_card(runs / RUN / "run.json", rename)
    path = runs / RUN / "evaluation.parquet"
    frame, metadata = read_table(path, "evaluation"), read_metadata(path, "evaluation")
    card = json.loads(metadata["card"])
    card["parameters"]["run"] = RUN
    card["inputs"]["run.json"] = sha256_file(runs / RUN / "run.json")
    frame = frame.assign(run=RUN, seed=0)
    columns = {name: frame[name].tolist() for name in frame.columns}
    write_table(columns, path, "evaluation", {"status": "finished", "card": json.dumps(card)})


def test_one_seed_under_two_names_is_caught_whatever_its_files_say(repository):
    study = repository / "results/nano"
    as_seed_0(study / "runs")
    planted_study.score(study)
    found = broken(report_of(repository))
    assert f"{RUN} and {OTHER}: have the same weights: one run under two names" in found["no run twice"]
    assert f"{RUN} and {OTHER}: have one losses.parquet" in found["no run twice"]
    assert f"{RUN} and {OTHER}: have the same results" in found["no result twice"]
    assert "run card -> run" not in found


def test_two_sizes_that_are_one_model_may_come_out_the_same():
    """At nano S and C are; at micro they are not, and two seeds never are."""
    for scale, other, fine in (
        ("nano", "C-rope-L16-s0", True),
        ("nano", "S-rope-L16-s1", False),
        ("nano", "S-log-L16-s0", False),
        ("micro", "C-rope-L64-s0", False),
    ):
        link = Link("no run twice")
        first = "S-rope-L16-s0" if scale == "nano" else "S-rope-L64-s0"
        distinct(link, {first: "a", other: "a"}, helpers.scale(scale), "have the same weights", str)
        assert (not link.broken) == fine, (scale, other)


def test_a_deleted_seed_is_caught(repository):
    study = repository / "results/nano"
    shutil.rmtree(study / "runs" / RUN)
    found = broken(report_of(repository))
    assert f"runs/{RUN}/run.json: is missing; rebuild it: snakemake" in found["registered runs"]
    assert f"{RUN}/evaluation.parquet: is missing" in found["registered tables"]
    assert "0002-a: verdict: says" in found["tables -> verdicts"]
    planted_study.score(study)
    assert f"runs/{RUN}/run.json: is missing" in broken(report_of(repository))["registered runs"]


def test_an_edited_verdict_is_caught(repository):
    path = repository / "results/nano/verdicts.json"
    records = read_verdicts(path)
    text = path.read_text().replace('"verdict": "fails"', '"verdict": "holds"')
    path.write_text(text)
    assert "a verdict differs from its digest" in broken(report_of(repository))["tables -> verdicts"]
    records[0].update({"verdict": "holds", "margin": 0.5})
    write_verdicts(path, records)
    found = broken(report_of(repository))
    assert "0002-a: margin: says 0.5; scored again it is" in found["tables -> verdicts"]
    del records[3]
    write_verdicts(path, records)
    assert "registered are 0002-a, 0002-b, 0004-a, 0004-b" in broken(report_of(repository))["tables -> verdicts"]


def ease(register):
    """A lower threshold for 0002-a."""
    path = register / "0002-position-screening/protocol.yaml"
    data = yaml.safe_load(path.read_text())
    data["tests"][0]["rule"]["threshold"] = 0.01
    path.write_text(yaml.safe_dump(data))


def test_an_edited_threshold_is_caught_by_its_seal(repository, tmp_path):
    register = repository / "preregistration"
    ease(register)
    assert "tests.0002-a.rule.threshold (sealed 0.02, now 0.01)" in broken(report_of(repository))["protocols -> seals"]
    # With a seal made anew, which fits it and its own digest, the seals of the other protocols still contradict it.
    again = shutil.copytree(register, tmp_path / "again")
    for path in again.glob("*/seal.json"):
        path.unlink()
    seal(again, "2026-11-29")
    shutil.copy(again / "0002-position-screening/seal.json", register / "0002-position-screening")
    found = broken(report_of(repository))
    assert "0004-bias-swap/seal.json recorded: tests.0002-a" in found["protocols -> seals"]
    assert "seal.json: differs from the one in HEAD" in found["seals before results (git)"]


def test_all_seals_made_again_are_caught_by_verdicts_and_by_the_history(repository):
    register, study = repository / "preregistration", repository / "results/nano"
    ease(register)
    for path in register.glob("*/seal.json"):
        path.unlink()
    seal(register, "2026-11-29")
    found = broken(report_of(repository))
    assert {"tables -> verdicts", "seals before results (git)"} <= found.keys()
    assert "0002-a: seal_digest" in found["tables -> verdicts"]
    planted_study.score(study)
    report = report_of(repository)
    assert broken(report).keys() == {"seals before results (git)"}
    # Committed, they stand before results that no commit holds: nothing here can tell, and the report says so.
    git(repository, "commit", "--quiet", "-am", "Seal again")
    report = report_of(repository)
    assert report.outcome == SOUND
    assert "results/nano is outside the history; they are in no commit" in report.text()
    assert "or made results before the seals and committed them after" in report.text()


def test_amendments_are_listed_and_a_rewritten_one_is_caught(repository):
    folder = repository / "preregistration" / "0002-position-screening"
    for reason in ("A typo in a note of this test.", "Another one, two lines below."):
        append_amendment(folder, "2026-11-30", ["0002-a"], reason)
    git(repository, "commit", "--quiet", "-am", "Amend")
    report = report_of(repository)
    assert report.outcome == BROKEN
    # Verdicts name the amendments they were scored with.
    assert broken(report).keys() == {"tables -> verdicts", "verdicts -> tables for readers"}
    planted_study.score(repository / "results/nano")
    report = report_of(repository)
    assert report.outcome == SOUND, report.text()
    assert "Amendments:\n  0002, 2026-11-30, on 0002-a: A typo in a note of this test.\n" in report.text()
    path = folder / "amendments.yaml"
    path.write_text(path.read_text().replace("A typo", "An error"))
    assert "the seal or an earlier amendment was rewritten" in broken(report_of(repository))["protocols -> seals"]


def test_the_kept_results_of_this_repository_are_not_broken():
    report = audit(ROOT / "results/reference/micro", helpers.scale("micro"), ROOT / "preregistration")
    assert not broken(report), report.text()
    assert report.outcome == CANNOT_TELL
    assert next(link for link in report.links if link.name == "tables -> verdicts").checked > 100


def test_results_older_than_a_seal_are_caught(repository):
    git(repository, "add", "--force", "results/nano/verdicts.json")
    git(repository, "commit", "--quiet", "-m", "Results")
    assert report_of(repository).outcome == SOUND
    register = repository / "preregistration"
    ease(register)
    for path in register.glob("*/seal.json"):
        path.unlink()
    seal(register, "2026-11-29")
    planted_study.score(repository / "results/nano")
    git(repository, "commit", "--quiet", "-am", "Seal again")
    found = broken(report_of(repository))
    assert found.keys() == {"seals before results (git)"}
    assert "seal.json: was last written in" in found["seals before results (git)"]
    assert "after or beside results in" in found["seals before results (git)"]


def test_without_a_history_the_order_cannot_be_told(repository, tmp_path):
    shutil.rmtree(repository / ".git")
    report = report_of(repository)
    assert report.outcome == CANNOT_TELL
    assert "is in no git repository with a history: the order cannot be told" in report.text()
    shutil.copytree(repository / "preregistration", tmp_path / "unsealed/preregistration")
    git(repository, "init", "--quiet")
    git(repository, "add", ".gitignore")
    git(repository, "commit", "--quiet", "-m", "Start")
    assert "seal.json: is in no commit: the order cannot be told" in report_of(repository).text()


@pytest.fixture
def reference(repository):
    """The snapshot of the study, committed; what an audit does not read is made up."""
    study, out = repository / "results/nano", repository / "results/reference/nano"
    for name in [*FILES, "benchmarks/train/a.tsv"]:
        path = study / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("s\th:m:s\tmax_rss\tcpu_time\n1\t-\t5\t1\n")
    snapshot(study, out)
    git(repository, "add", "--force", "results/reference")
    git(repository, "commit", "--quiet", "-m", "Keep results")
    return out


def test_a_snapshot_holds_enough_to_score_again(repository, reference):
    report = report_of(repository, "results/reference/nano")
    assert report.outcome == CANNOT_TELL, report.text()
    assert not broken(report)
    missing = {link.name for link in report.links if link.missing}
    expected = {"tokenizer -> shards", "registered tables", "run card -> weights and logs"}
    assert missing == {*expected, "verdicts -> tables for readers"}
    assert next(link for link in report.links if link.name == "tables -> verdicts").checked > 100
    assert all(path.stat().st_size < 1 << 20 for path in reference.rglob("*"))
    # The full study is now known to the history.
    assert "14 of 14 runs are committed in" in report_of(repository).text()


def test_a_forged_snapshot_is_caught(repository, reference):
    path = reference / "evaluations/rows-0.parquet"
    rows = pq.read_table(path)
    frame = rows.to_pandas()
    frame.loc[frame["bin"] == 3, "value"] -= 0.1
    pq.write_table(pa.Table.from_pandas(frame, schema=rows.schema, preserve_index=False), path)
    found = broken(report_of(repository, "results/reference/nano"))
    assert "inputs: " in found["tables -> verdicts"]
    assert "observed: says" in found["tables -> verdicts"]
    frame.iloc[:5].to_parquet(path, index=False)
    assert (
        "rows-0.parquet: has other columns"
        in broken(report_of(repository, "results/reference/nano"))["files that can be read"]
    )
    git(repository, "checkout", "--", ".")
    cards = json.loads((reference / "runs.json").read_text())
    cards[RUN]["parameters"]["init_seed"] = 7
    write_json(reference / "runs.json", cards)
    found = broken(report_of(repository, "results/reference/nano"))
    assert f"runs.json: {RUN}: is damaged" in found["files that can be read"]
    git(repository, "checkout", "--", ".")
    write_json(reference / "runs.json", {name: card for name, card in cards.items() if name != RUN})
    found = broken(report_of(repository, "results/reference/nano"))
    assert f"runs/{RUN}/run.json: is missing" in found["registered runs"]
