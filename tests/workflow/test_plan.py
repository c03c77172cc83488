"""What the Snakefile plans and refuses before anything is computed."""

import pytest

pytestmark = pytest.mark.workflow


def test_a_clean_tree_plans_the_whole_study(checkout):
    assert checkout.planned() == {
        "corpus": 1,
        "index": 1,
        "tokenizer": 1,
        "shards": 1,
        "margins": 1,
        "theory": 1,
        "train": 82,
        "evaluate": 82,
        "intervene": 30,
        "control": 5,
        "exploratory": 1,
        "verdicts": 1,
        "summary": 1,
        "source": 1,
        "figures": 1,
        "page": 1,
        "crate": 1,
        "all": 1,
    }


def test_a_target_narrows_the_plan(checkout):
    assert checkout.planned("experiment_0003")["train"] == 35
    swap = checkout.planned("experiment_0004")
    assert (swap["train"], swap["intervene"]) == (30, 30)
    one = checkout.planned("results/nano/runs/S-rope-L16-s0/evaluation.parquet")
    assert (one["train"], one["evaluate"]) == (1, 1)
    assert "margins" not in one


def test_arms_of_ones_own_are_planned_beside_the_study(checkout):
    turned = "{key: turned, rotation: grape-m, transport: {strength: 0.5}}"
    plan = checkout.planned(config=[f"arms=[{turned}, {{key: fox-rope, rotation: rope, log_prior: fox}}]"])
    assert (plan["train"], plan["evaluate"], plan["intervene"], plan["verdicts"]) == (86, 86, 34, 1)


@pytest.mark.parametrize(
    ("targets", "config", "message"),
    [
        ([], ["arms=[no/such.py]"], "config.yaml: arms.0: 'no/such.py': cannot be read (No such file or directory)"),
        ([], ["arms=[{key: fox}]"], "config.yaml: arms.0: key = 'fox': is an arm of the registered study"),
        ([], ["arms=[{key: mine, yarn: true}]"], "config.yaml: arms.0: yarn = True: needs RoPE"),
        ([], ["yarn_ramps=[code]"], "config.yaml: yarn_ramps = ['code']: lacks 'paper', which is registered"),
        (["results/nano/runs/S-nope-L16-s0/cap.parquet"], [], "arm nope has no log-prior to cap"),
        (["results/nano/runs/S-fox-L16-s0/control.parquet"], [], "for arms without a log-prior, and fox has one"),
        ([], ["scal=nano"], "scal: is an unknown key; did you mean 'scale'?"),
        ([], ["scale=huge"], "scale = 'huge': is not a scale; known scales: micro, mini, nano, paper"),
        ([], ["allow_repeats=maybe"], "allow_repeats = 'maybe'"),
        ([], ["corpus=no/such/folder"], "config.yaml: corpus: no/such/folder: is not a folder"),
        ([], ["preregistration=no/such"], "no/such: holds no protocol"),
        (
            ["results/nano/runs/S-ropee-L16-s0/run.json"],
            [],
            "'S-ropee-L16-s0': is not a registered run; did you mean S-rope-L16-s0?",
        ),
        (["results/nano/runs/S-rope-L16-s7/run.json"], [], "'S-rope-L16-s7': is not a registered run"),
    ],
)
def test_mistakes_are_refused_by_name(checkout, targets, config, message):
    done = checkout.snakemake(*targets, "--dry-run", config=config)
    assert done.returncode != 0
    assert message in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("0003-confirmation/protocol.yaml", "threshold: 0.02", "threshold: 0.01", "tests.0003-a.rule.threshold"),
        ("0001-transport-screening/plan.md", "the", "a", "plan.md"),
        ("assumptions.yaml", "A1", "A01", "assumptions.yaml"),
    ],
)
def test_a_changed_seal_stops_before_training(checkout, file, old, new, message):
    checkout.edit(f"preregistration/{file}", old, new)
    done = checkout.snakemake("--dry-run")
    assert done.returncode != 0
    assert file in done.stdout
    assert message in done.stdout
    assert "Traceback" not in done.stdout


def test_a_missing_seal_stops_before_training(checkout):
    (checkout.folder / "preregistration/0002-position-screening/seal.json").unlink()
    done = checkout.snakemake("--dry-run")
    assert done.returncode != 0
    assert "0002-position-screening/seal.json" in done.stdout


def test_a_typo_in_the_config_file_is_refused(checkout):
    checkout.edit("workflow/config/config.yaml", "allow_repeats: false", "allow_repeats: off")
    done = checkout.snakemake("--dry-run")
    assert done.returncode != 0
    assert "'off': is read differently by different YAML readers; write true or false" in done.stdout
