"""Experiment 0006 at nano from the command line: tables, page and figures; and what is refused."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from helpers import scale, write_shards

from causal_priors.arms import ARMS
from causal_priors.cli import main
from causal_priors.config import ROOT
from causal_priors.goat import FIGURES, LONGER, LONGER_TIMES, PAGE, RETRIEVAL, TABLES, fold
from causal_priors.goat.collect import reach_table
from causal_priors.goat.predictions import AS_PREDICTED, NOT_EVALUATED, OTHERWISE, Facts, check
from causal_priors.goat.probe import probe_stage
from causal_priors.goat.registered import load_design
from causal_priors.tables import read_metadata, read_table

REGISTER = ROOT / "preregistration"
ARMS_RUN = ("nope", "alibi", "goat", "alibi-ot")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("goat")
    shards = write_shards(folder, scale("nano"))
    for arm in ARMS_RUN:
        assert run(folder, arm, folder / "arms" / f"{arm}.parquet") == 0
    tables = [str(folder / "arms" / f"{arm}.parquet") for arm in ARMS_RUN]
    assert (
        main(["goat-tables", *tables, "--scale", "nano", "--preregistration", str(REGISTER), "--out", str(folder)]) == 0
    )
    assert shards == folder / "shards"
    return folder


def run(folder, arm, out, **other):
    options = {"--shards": folder / "shards", "--tokenizer": folder / "tokenizer.json", **other}
    given = [str(part) for pair in options.items() for part in pair]
    return main(["goat", arm, "--scale", "nano", "--preregistration", str(REGISTER), "--out", str(out), *given])


def test_one_table_holds_what_was_measured_of_one_arm(made):
    design = load_design(REGISTER, scale("nano"))
    probes = read_table(made / "arms" / "goat.parquet", "probes")
    assert read_metadata(made / "arms" / "goat.parquet", "probes")["status"] == "finished"
    assert set(probes["arm"]) == {"goat"}
    assert np.isfinite(probes["value"]).all()
    counted = probes.groupby(["test", "quantity"]).size()
    cells = len(design.retrieval.lengths) * len(design.retrieval.depths) * 2 * design.retrieval.examples
    assert counted["retrieval", "correct"] == counted["retrieval", "far_mass"] == cells
    assert counted["copy", "regret"] == 2 * len(design.copy.lengths)
    assert counted["sink", "mass"] == len(design.sinks.lengths) * design.size.depth * design.size.heads
    regret = probes[probes["quantity"] == "regret"]["value"]
    assert (regret > 0).all()
    assert (probes[probes["quantity"] == "bound_slack"]["value"] >= -1e-9).all()
    total = probes[probes["quantity"] == "prior_probability"].groupby(["task", "layer", "head"])["value"].sum()
    assert np.allclose(total, 1.0)


def test_the_parts_of_the_prior_make_the_whole(made):
    probes = read_table(made / "arms" / "goat.parquet", "probes")
    probes = probes[probes["task"] == "mixture"].set_index(["quantity", "layer", "head", "index"])
    length = scale("nano").sizes["S"].train_length
    value = probes["value"]
    for head in range(2):
        for j in range(length):
            parts = value["prior_key", 0, head, j] + value["prior_lag", 0, head, length - 1 - j]
            assert parts == pytest.approx(value["prior_total", 0, head, j], abs=1e-6)


def test_the_same_arm_again_is_the_same_table(made, tmp_path):
    assert run(made, "goat", tmp_path / "goat.parquet") == 0
    assert (tmp_path / "goat.parquet").read_bytes() == (made / "arms" / "goat.parquet").read_bytes()


def test_tables_page_and_figures_are_written(made):
    for name in TABLES:
        assert len(pd.read_csv(made / f"{name}.csv")) > 0
    for name in FIGURES:
        assert (made / f"{name}.svg").read_text().lstrip().startswith("<?xml")
    page = (made / PAGE).read_text()
    assert "At this scale outcomes mean nothing" in page
    assert "| 0006-4 |" in page
    everything = read_table(made / "probes.parquet", "probes")
    assert list(dict.fromkeys(everything["arm"])) == list(ARMS_RUN)
    assert page.count("After the fact") == 2
    assert "folded" not in page
    assert set(pd.read_csv(made / "two-back.csv")["arm"]) == {"nope", "alibi", "goat"}
    assert set(pd.read_csv(made / f"{LONGER}.csv")["arm"]) == {"alibi", "goat"}
    mixture = pd.read_csv(made / "mixture.csv")
    assert set(mixture["arm"]) == set(ARMS_RUN)
    assert (mixture["optimum"] < mixture["previous_only"]).all()
    assert np.allclose(mixture["share"], 1 - mixture["regret"] / (mixture["uniform"] - mixture["optimum"]))
    # Four of fourteen arms ran: what reads another is not evaluated, and says which.
    predictions = pd.read_csv(made / "predictions.csv", dtype=str).set_index("id")
    assert predictions.loc["0006-8", "outcome"] == NOT_EVALUATED
    assert predictions.loc["0006-8", "observed"] == "fox has no measurements"
    assert predictions.loc["0006-3", "outcome"] in (AS_PREDICTED, OTHERWISE)


def test_longer_training_is_the_same_test_after_more_steps_and_without_sinks(made):
    probes = read_table(made / "arms" / "alibi.parquet", "probes")
    short, long = (probes[probes["test"] == name] for name in (RETRIEVAL, LONGER))
    steps = [part[part["quantity"] == "training_loss"]["index"].max() for part in (short, long)]
    assert steps[1] == LONGER_TIMES * steps[0]
    keys = ["task", "quantity", "length", "depth"]
    cells = [part[part["quantity"] != "training_loss"].groupby(keys)["value"].count() for part in (short, long)]
    assert cells[0].equals(cells[1])
    design = load_design(REGISTER, scale("nano"))
    masses = probes[(probes["test"] == "sink") & (probes["quantity"] == "mass")]
    assert len(masses) == len(design.sinks.lengths) * design.size.depth * design.size.heads


def test_gain_and_gap_are_differences_of_means_at_the_ends():
    rows = [
        {"arm": "a", "task": task, "length": length, "depth": depth, "log_probability": value, "far_mass": value + 8.0}
        for task, shift in (("passkey", 0.0), ("needle", 1.0))
        for length, depth, value in ((16, 0.0, -1.0), (16, 1.0, -2.0), (64, 1.0, -3.0), (64, 0.0, -4.5 - shift))
    ]
    found = reach_table(pd.DataFrame(rows)).set_index("task")
    assert found.loc["passkey", "gain"] == pytest.approx(np.log(90) - 1.5)
    assert found.loc["needle", "gain"] == pytest.approx(np.log(10) - 1.5)
    assert found["gap"].to_dict() == pytest.approx({"passkey": -1.5, "needle": -2.5})
    assert found["far_mass"].to_dict() == pytest.approx({"passkey": 4.25, "needle": 3.75})


def test_folding_is_said_in_the_log_the_table_and_the_page(made, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fold, "FASTER_FROM", {"goat": 32, "linear": 1 << 20})
    assert run(made, "goat", tmp_path / "goat.parquet") == 0
    error = capsys.readouterr().err
    assert [line for line in error.splitlines() if "folded" in line] == [
        f"goat: at {length} tokens the log-prior is folded into query and key, without a bias" for length in (64, 32)
    ]
    assert read_metadata(tmp_path / "goat.parquet", "probes")["folded"] == "32 64"
    given = ("goat-tables", str(tmp_path / "goat.parquet"), "--scale", "nano", "--preregistration", str(REGISTER))
    assert main([*given, "--out", str(tmp_path)]) == 0
    assert "in tokens where that is faster: goat at 32, 64." in (tmp_path / PAGE).read_text()


def test_mistakes_are_told_in_one_line(made, tmp_path, capsys):
    assert run(made, "goats", tmp_path / "x.parquet") == 2
    assert "'goats': is not an arm of experiment 0006" in capsys.readouterr().err
    other = tmp_path / "other"
    write_shards(other, scale("nano"), seed=1)
    assert run(made, "goat", tmp_path / "x.parquet", **{"--tokenizer": other / "tokenizer.json"}) == 2
    assert "tokenizer.json: is not the tokenizer of the shards" in capsys.readouterr().err
    assert run(made, "goat", tmp_path / "x.parquet", **{"--shards": tmp_path / "none"}) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert not (tmp_path / "x.parquet").exists()
    damaged = tmp_path / "nope.parquet"
    damaged.write_bytes((made / "arms" / "nope.parquet").read_bytes()[:-40])
    assert main(["goat-tables", str(damaged), "--scale", "nano", "--preregistration", str(REGISTER), "--out", "x"]) == 2
    assert "nope.parquet: cannot be read as parquet" in capsys.readouterr().err


def test_a_diverged_model_leaves_its_log_and_says_when(made, tmp_path):
    design = load_design(REGISTER, scale("nano"))
    sizes = {**design.scale.sizes, "S": dataclasses.replace(design.size, learning_rate=1e30)}
    wild = dataclasses.replace(design, scale=dataclasses.replace(design.scale, sizes=sizes))
    probe_stage(ARMS["goat"], wild, made / "shards", made / "tokenizer.json", tmp_path / "goat.parquet", "")
    status = read_metadata(tmp_path / "goat.parquet", "probes")["status"]
    assert status.startswith("mixture diverged at step ")
    assert set(read_table(tmp_path / "goat.parquet", "probes")["quantity"]) == {"training_loss"}


def planted(**arms):
    """Facts with shares of the mixture at 16 and 256 tokens as given, and nothing else."""
    rows = [
        {"arm": arm, "length": length, "share": share}
        for arm, shares in arms.items()
        for length, share in zip((16, 256), shares, strict=True)
    ]
    empty = pd.DataFrame(columns=["arm", "quantity", "layer", "head", "index", "value", "length", "task"])
    return Facts(pd.DataFrame(rows), empty, empty, empty, tuple(arms), 16)


@pytest.mark.parametrize(
    ("rule", "numbers", "arms", "expected"),
    [
        ("closes", {"arm": "goat", "least": 0.9}, {"goat": (0.9, 0)}, AS_PREDICTED),
        ("closes", {"arm": "goat", "least": 0.9}, {"goat": (0.899, 0)}, OTHERWISE),
        ("closes-least", {"arm": "nope"}, {"goat": (0.8, 0), "nope": (0.2, 0)}, AS_PREDICTED),
        ("closes-least", {"arm": "nope"}, {"goat": (0.1, 0), "nope": (0.2, 0)}, OTHERWISE),
        ("closes-more", {"arm": "goat", "other": "alibi"}, {"goat": (0.5, 0), "alibi": (0.5, 0)}, AS_PREDICTED),
        ("closes-more", {"arm": "goat", "other": "alibi"}, {"goat": (0.4, 0), "alibi": (0.5, 0)}, OTHERWISE),
        ("loses-first", {"arm": "a", "other": "b", "least": 0.1}, {"a": (0.9, 0.7), "b": (0.9, 0.8)}, AS_PREDICTED),
        ("loses-first", {"arm": "a", "other": "b", "least": 0.1}, {"a": (0.9, 0.7), "b": (0.9, 0.6)}, OTHERWISE),
        ("loses-first", {"arm": "a", "other": "b", "least": 0.1}, {"a": (0.9, 0.85), "b": (0.9, 0.9)}, OTHERWISE),
    ],
)
def test_predictions_of_shares(rule, numbers, arms, expected):
    rows = ({"id": "0006-1", "rule": rule, "claim": "", "numbers": numbers},)
    assert check(rows, planted(**arms))["outcome"].tolist() == [expected]


@pytest.mark.parametrize(
    ("values", "expected"),
    [((0.1, 0.3, 0.15, 0.0), AS_PREDICTED), ((0.25, 0.3, 0.1, 0.0), OTHERWISE), ((0.5, 0.3, 0.1, 0.0), OTHERWISE)],
)
def test_the_peak_at_lag_one_counts_only_where_it_is_the_highest(values, expected):
    prior = pd.DataFrame(
        [
            {"arm": "goat", "quantity": "prior_lag", "layer": 0, "head": 0, "index": index, "value": value}
            for index, value in enumerate(values)
        ]
    )
    facts = dataclasses.replace(planted(), prior=prior)
    rows = ({"id": "0006-2", "rule": "lag-one", "claim": "", "numbers": {"least": 0.1}},)
    assert check(rows, facts)["outcome"].tolist() == [expected]
