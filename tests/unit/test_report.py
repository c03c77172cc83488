"""Summary, timing and snapshot tables against values counted by hand."""

import os

import pandas as pd
import pytest

from causal_priors.errors import UserError
from causal_priors.report.data import weighted_mean
from causal_priors.report.snapshot import FILES, snapshot
from causal_priors.report.tables import arm_table, summarise, summary_stage
from causal_priors.report.timings import timing_table
from causal_priors.tables import SCHEMAS, write_table


def row(quantity, length, window, bin_, far_window, value, count, seed=0, variant="plain"):
    base = dict.fromkeys(SCHEMAS["evaluation"].names, -1)
    return base | {
        "run": f"S-log-L64-s{seed}",
        "size": "S",
        "arm": "log",
        "train_length": 64,
        "seed": seed,
        "stage": "evaluate",
        "dtype": "float32",
        "variant": variant,
        "quantity": quantity,
        "length": length,
        "block": 0,
        "window": window,
        "bin": bin_,
        "far_window": far_window,
        "value": value,
        "count": count,
    }


@pytest.fixture
def frame():
    return pd.DataFrame(
        [
            row("loss", 128, 0, 0, -1, 4.0, 64),
            row("loss", 128, 0, 1, -1, 2.0, 32),
            row("loss", 128, 1, 1, -1, 5.0, 32),
            row("far_mass", 128, 0, -1, 8, 0.25, 1),
            row("far_mass", 128, 1, -1, 8, 0.75, 1),
            row("far_mass", 128, 0, -1, 64, 0.1, 1),
            row("loss", 128, 0, 0, -1, 9.0, 64) | {"stage": "intervene"},
        ]
    )


def test_means_weigh_each_target_once(frame):
    (found,) = summarise(frame).to_dict("records")
    assert found["loss"] == pytest.approx((4 * 64 + 2 * 32 + 5 * 32) / 128)
    assert found["loss_beyond"] == pytest.approx(3.5)
    assert found["far_mass_eighth"] == pytest.approx(0.5)
    assert found["far_mass_full"] == pytest.approx(0.1)


def test_swaps_are_shown_and_what_was_measured_before_them_is_not(frame):
    swapped = frame[frame["length"] == 128].assign(stage="intervene", variant="cap", value=frame["value"] + 1)
    found = summarise(pd.concat([frame, swapped])).set_index("variant")
    assert found.loc["plain", "loss_beyond"] == pytest.approx(3.5)
    assert found.loc["cap", "far_mass_eighth"] == pytest.approx(1.5)


def test_arms_outside_the_study_are_marked_exploratory(frame):
    own = frame.assign(run="S-mine-L64-s0", arm="mine")
    found = summarise(pd.concat([frame, own]))
    assert dict(zip(found["arm"], found["status"], strict=True)) == {"log": "registered", "mine": "exploratory"}
    lines = [line for line in arm_table(found).splitlines() if line.startswith("| S |")]
    assert [line.split("|")[2].strip() for line in lines] == ["log", "mine (exploratory)"]


def test_the_arm_table_shows_mean_and_spread(frame):
    other = frame.assign(run="S-log-L64-s1", seed=1, value=frame["value"] + 0.5)
    text = arm_table(summarise(pd.concat([frame, other])))
    line = next(line for line in text.splitlines() if line.startswith("| S | log"))
    assert [cell.strip() for cell in line.split("|")[3:9]] == ["64", "2", "–", "4.000 (0.500)", "–", "–"]


def test_a_value_that_is_no_number_is_not_averaged_away(frame, tmp_path):
    broken = frame["value"].where((frame["bin"] != 1) | (frame["window"] != 1)).where(frame["value"] != 0.75)
    seed = frame.assign(run="S-log-L64-s1", seed=1)
    path, out = tmp_path / "evaluation.parquet", tmp_path / "summary.md"
    rows = pd.concat([frame.assign(value=broken), seed], ignore_index=True)
    write_table({name: rows[name].tolist() for name in SCHEMAS["evaluation"].names}, path, "evaluation")
    summary_stage([path], tmp_path / "summary.csv", out)
    found = pd.read_csv(tmp_path / "summary.csv").set_index("seed")
    columns = ["loss", "loss_beyond", "far_mass_eighth", "far_mass_full"]
    assert found.loc[0, columns].isna().tolist() == [True, True, True, False]
    assert found.loc[1, columns].notna().all()
    line = next(line for line in out.read_text().splitlines() if line.startswith("| S | log"))
    assert [cell.strip() for cell in line.split("|")[5:9]] == ["–", "–", "–", "–"]
    # What figures draw: bin 0 was measured, bin 1 was not.
    assert weighted_mean(rows[rows["quantity"] == "loss"], ["seed", "bin"]).isna().tolist() == [
        False,
        True,
        False,
        False,
    ]


def test_timings_sum_the_jobs_of_a_rule(tmp_path):
    with pytest.raises(UserError, match="holds no benchmark files; run the pipeline first"):
        timing_table(tmp_path)
    head = "s\th:m:s\tmax_rss\tcpu_time\n"
    for name, text in (
        ("train/a", "10\t0:00:10\t300\t30"),
        ("train/b", "20\t0:00:20\t200\t60"),
        ("index", "1\t-\t-\t30"),
    ):
        path = tmp_path / "benchmarks" / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(head + text + "\n")
    # One after another: 0 to 1, 1 to 11 and 11 to 31 seconds.
    for name, end in (("index", 1), ("train/a", 11), ("train/b", 31)):
        os.utime(tmp_path / "benchmarks" / f"{name}.tsv", (end, end))
    lines = timing_table(tmp_path).splitlines()
    assert lines[2] == "| train | 2 | 1.5 | 75% | 0.0 | 45.0 | 15.0 | 300 |"
    assert lines[4] == "| all | 3 | 2.0 | 100% | 0.0 | | | 300 |"
    assert (
        "end of the last: 0.5 minutes. On average 3.87 cores were at work, 3.87 of them beyond start-up." in lines[-1]
    )


def test_a_stage_s_own_time_stands_before_the_sampled_one(tmp_path):
    for name, sidecar in (("train/a-b", "a-b/timing.json"), ("intervene/a-b-cap", "a-b/cap.timing.json")):
        path = tmp_path / "benchmarks" / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("s\th:m:s\tmax_rss\tcpu_time\n10\t-\t300\t1\n")
        own = tmp_path / "runs" / sidecar
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text('{"cpu_seconds": 60.0, "startup_cpu_seconds": 15.0, "peak_memory_mb": 400}')
    lines = timing_table(tmp_path).splitlines()
    assert lines[2:5] == [
        "| intervene | 1 | 1.0 | 50% | 0.2 | 60.0 | 10.0 | 400 |",
        "| train | 1 | 1.0 | 50% | 0.2 | 60.0 | 10.0 | 400 |",
        "| all | 2 | 2.0 | 100% | 0.5 | | | 400 |",
    ]


def test_a_target_of_its_own_is_a_table_of_its_own(tmp_path):
    for name in ("train/a", "goat/rope"):
        path = tmp_path / "benchmarks" / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("s\th:m:s\tmax_rss\tcpu_time\n60\t-\t300\t60\n")
    own = tmp_path / "experiments" / "0006" / "arms" / "rope.timing.json"
    own.parent.mkdir(parents=True)
    own.write_text('{"cpu_seconds": {"startup": 6.0, "mixture": 84.0}, "peak_memory_mb": 400}')
    study, other = timing_table(tmp_path).split("Target `experiment_0006`")
    assert "| all | 1 | 1.0 | 100% | 0.0 | | | 300 |" in study
    assert "goat" not in study
    assert "| goat | 1 | 1.5 | 100% | 0.1 | 90.0 | 60.0 | 400 |" in other
    assert "train" not in other


def test_a_snapshot_of_an_unfinished_study_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"verdicts\.json: is not there; finish the study first"):
        snapshot(tmp_path / "micro", tmp_path / "reference")
    assert not (tmp_path / "reference").exists()


def test_a_snapshot_holds_every_table_and_card(tmp_path):
    source = tmp_path / "micro"
    for name in [*FILES, "benchmarks/train/a.tsv"]:
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("s\th:m:s\tmax_rss\tcpu_time\n1\t-\t5\t1\n")
    (source / "verdicts.json").write_text("[]")
    card = source / "runs" / "S-rope-L64-s0" / "run.json"
    card.parent.mkdir(parents=True)
    card.write_text('{"status": "finished"}')
    written = snapshot(source, tmp_path / "reference")
    assert all((tmp_path / "reference" / name).is_file() for name in written)
    assert '"S-rope-L64-s0"' in (tmp_path / "reference" / "runs.json").read_text()
