"""The shipped register against study.md, typed in anew here; strictness of the files at every nesting level."""

import shutil
from pathlib import Path

import pytest

from causal_priors.config import ROOT
from causal_priors.errors import UserError
from causal_priors.prereg.ledger import load_assumptions, load_published
from causal_priors.prereg.protocol import load_protocols, registered_interventions, registered_runs
from causal_priors.prereg.seal import check_seals
from causal_priors.runs import Run

REGISTER = ROOT / "preregistration"
PROTOCOLS = load_protocols(REGISTER)
BY_ID = {protocol.id: protocol for protocol in PROTOCOLS}
TESTS = {test.id: test for protocol in PROTOCOLS for test in protocol.tests}

# A protocol that is sealed anew, all seals rewritten at once, differs from these.
SEALS = {
    "0001": "308be624408206d326bf00984c7e8ee6897545279d0e8108c3482e19afda455c",
    "0002": "a67e473db04979aad986a0f159040ed42ceabb290012697b9c7116e002cdb071",
    "0003": "4c11259d97b4c7fa1e07cb5bee42dfed941561c1e97e5a5c8b8509f40cfd2ba3",
    "0004": "b22b668c99a99f2e3328ba4a2dc2edbafdc2153724939fdf67a2f7e7b1d46f06",
    "0005": "7352ffaa758b453a32c81acc82b91e30507069ac27f2b6b91f572c4159912dd6",
}


def runs(size, arms, seeds, multiple=1):
    return {Run(size, arm, multiple, seed) for arm in arms.split() for seed in range(seeds)}


SCREENED = "rope rope-logn log log-fixed kerple alibi log-norope log-logn ot-75 alibi-ot grape-m grape-a grape-ap"
SCREENED += " fox cable goat nope"
DECLARED = {
    "0001": runs("S", "rope rope-logn ot-50 ot-75 log", 3),
    "0002": runs("S", SCREENED, 2),
    "0003": runs("C", "rope cable", 5)
    | runs("C", "rope cable", 3, 2)
    | runs("C", "rope cable", 3, 4)
    | runs("C", "alibi cable-lr log", 3)
    | runs("C", "log-gt1 log-lt1", 2),
    "0004": set(),
    "0005": runs("S", "log-margin-t050 log-margin-t020 log-margin-t005", 2),
}


def test_the_seals_are_those_of_the_first_day():
    assert check_seals(REGISTER) == SEALS


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.id)
def test_declared_runs(protocol):
    assert set(protocol.runs) == DECLARED[protocol.id]


def test_82_runs_each_trained_once():
    used = registered_runs(PROTOCOLS)
    assert len(used) == 82
    first = [experiments[0] for experiments in used.values()]
    assert {name: first.count(name) for name in DECLARED} == {"0001": 15, "0002": 26, "0003": 35, "0004": 0, "0005": 6}
    assert used[Run("S", "rope", 1, 0)] == ("0001", "0002")
    assert used[Run("S", "log", 1, 1)] == ("0001", "0002", "0004")
    assert used[Run("C", "cable-lr", 1, 2)] == ("0003", "0004")
    assert used[Run("S", "goat", 1, 0)] == ("0002",)


def test_27_registered_and_3_exploratory_interventions():
    cap = runs("S", "alibi grape-a fox cable", 2) | runs("C", "alibi cable cable-lr", 3)
    repair = runs("S", "log log-fixed log-logn", 2) | runs("C", "log-gt1 log-lt1", 2)
    expected = {("cap", run, "registered") for run in cap} | {("repair", run, "registered") for run in repair}
    expected |= {("repair", run, "exploratory") for run in runs("C", "log", 3)}
    found = [(item.edit, item.run, item.status) for item in registered_interventions(PROTOCOLS)]
    assert len(found) == 30
    assert set(found) == expected


@pytest.mark.parametrize(
    ("test_id", "left", "right", "metric", "length", "threshold"),
    [
        ("0001-a", "ot-50 ot-75", "rope", "loss", 2, 0.05),
        ("0001-b", "ot-50 ot-75", "rope rope-logn", "loss", 4, 0.05),
        ("0002-a", "cable", "rope+yarn", "beyond", 4, 0.02),
        ("0003-a", "cable", "rope+yarn", "beyond", 4, 0.02),
        ("0003-b", "log-gt1", "log-lt1", "loss", 8, 0.01),
    ],
)
def test_comparisons(test_id, left, right, metric, length, threshold):
    rule = TESTS[test_id].rule
    assert rule.left == tuple(left.split())
    assert [str(item) for item in rule.right] == right.split()
    assert (rule.metric, rule.length, rule.threshold) == (metric, length, threshold)


def test_the_other_rules():
    assert len(TESTS) == 11
    for test_id in ("0001-a", "0001-b"):
        rule = TESTS[test_id].rule
        assert (rule.select.metric, rule.select.length, rule.select.blocks, rule.blocks) == ("loss", 4, "even", "odd")
    switch = TESTS["0002-b"].rule
    assert (switch.left, str(switch.right)) == (("grape-m", "grape-a", "grape-ap", "alibi-ot"), "cable")
    assert (switch.metric, switch.length, switch.threshold) == ("beyond", 4, 0.02)
    lengths = [(group.multiple, len(group.seeds)) for group in TESTS["0003-a"].rule.groups]
    assert lengths == [(1, 5), (2, 3), (4, 3)]
    nats, share = {"float64": 1e-7, "float32": 1e-5}, {"float64": 1e-9, "float32": 1e-6}
    directions = {
        "0004-a": ({"cap": 1}, "beyond", nats, 17),
        "0004-b": ({"repair": -1}, "beyond", nats, 10),
        "0004-c": ({"cap": 1, "repair": -1}, "far_mass", share, 27),
    }
    for test_id, (edits, metric, resolution, checkpoints) in directions.items():
        rule = TESTS[test_id].rule
        assert (dict(rule.edits), rule.metric, rule.length) == (edits, metric, 8)
        assert (dict(rule.resolution), rule.checkpoints) == (resolution, checkpoints)
    margins = ("log-margin-t050", "log-margin-t020", "log-margin-t005")
    assert TESTS["0005-a"].rule.bounds == tuple(zip(margins, (0.05, 0.02, 0.005), strict=True))
    assert TESTS["0005-b"].rule.arms == margins
    assert {(TESTS[name].rule.metric, TESTS[name].rule.length) for name in ("0005-a", "0005-b")} == {("growth", 8)}


def test_metrics_and_floors():
    for protocol in PROTOCOLS:
        assert protocol.floor("nano") == 256
        assert {protocol.floor(name) for name in ("micro", "mini", "paper", "own")} == {16_384}
        ranges = {m.name: (m.minimum, m.maximum, m.add_ln_vocabulary) for m in protocol.metrics.values()}
        assert ranges["loss"] == ranges["beyond"] == (0, 2, True)
        assert (ranges["far_mass"], ranges["growth"], ranges["exponent"]) == (
            (0, 1, False),
            (-1, 1, False),
            (0, 20, False),
        )
        assert protocol.metrics["far_mass"].far_window == 1 / 8


def test_the_sources_outcomes():
    outcomes = {test_id: test.source.outcome for test_id, test in TESTS.items()}
    assert outcomes == {row["test"]: row["outcome"] for row in load_published(REGISTER)["outcomes"]}
    assert [name for name, outcome in outcomes.items() if outcome == "fails"] == ["0001-a", "0002-a"]
    assert outcomes["0002-b"] == "not triggered"
    assert [name for name, outcome in outcomes.items() if outcome == "not stated"] == ["0005-a", "0005-b"]


def test_the_ledger_has_a1_to_a17():
    assert list(load_assumptions(REGISTER)) == [f"A{number}" for number in range(1, 18)]


@pytest.fixture
def register(tmp_path):
    return shutil.copytree(REGISTER, tmp_path / "register")


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.mark.parametrize(
    ("folder", "old", "new", "named"),
    [
        ("0001-transport-screening", "question:", "questoin:", "questoin"),
        ("0001-transport-screening", "arm: ot-50, multiple", "amr: ot-50, multiple", "runs.2.amr"),
        ("0004-bias-swap", "status: registered", "state: registered", "interventions.0.state"),
        ("0001-transport-screening", "    unit: nats", "    units: nats", "metrics.0.units"),
        ("0001-transport-screening", "  seeds: all", "  seed: all", "floors.seed"),
        ("0001-transport-screening", "{default: 16384", "{defualt: 16384", "floors.targets_per_length.defualt"),
        ("0001-transport-screening", "    assumptions: [", "    assumption: [", "tests.0.assumption"),
        ("0001-transport-screening", "      threshold:", "      treshold:", "tests.0.rule.treshold"),
        ("0001-transport-screening", "select: {metric", "select: {metrik", "tests.0.rule.select.metrik"),
        ("0001-transport-screening", "right: [{arm", "right: [{arms", "tests.0.rule.right.0.arms"),
        ("0001-transport-screening", "groups: [{size", "groups: [{sise", "tests.0.rule.groups.0.sise"),
        ("0002-position-screening", "right: {arm", "right: {amr", "tests.1.rule.right.amr"),
        ("0004-bias-swap", "edits: [{edit", "edits: [{edits", "tests.0.rule.edits.0.edits"),
        ("0004-bias-swap", "resolution: {float32", "resolution: {float23", "tests.0.rule.resolution.float23"),
        ("0005-margin", "at_most: 0.05", "at_mots: 0.05", "tests.0.rule.bounds.0.at_mots"),
        ("0005-margin", "      arms: [", "      arm: [", "tests.1.rule.arm"),
        (
            "0001-transport-screening",
            "      outcome: fails\n      note",
            "      outcome: fails\n      notes",
            "tests.0.source.notes",
        ),
        ("0001-transport-screening", "      micro:", "      mirco:", "tests.0.expected.mirco"),
        ("0001-transport-screening", "        why:", "        whay:", "tests.0.expected.nano.whay"),
        ("0002-position-screening", "- scales:", "- scale:", "tests.0.notes.0.scale"),
    ],
)
def test_a_typo_is_named_at_each_level(register, folder, old, new, named):
    file = register / folder / "protocol.yaml"
    edit(file, old, new)
    with pytest.raises(UserError) as error:
        load_protocols(register)
    assert str(file) in str(error.value)
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("folder", "old", "new", "named"),
    [
        ("0001-transport-screening", "left: [ot-50", "left: [ot-500", "did you mean 'ot-50'"),
        ("0001-transport-screening", "right: [{arm: rope, ", "right: [{arm: roep, ", "'roep'"),
        ("0002-position-screening", "beside: [{arm: rope", "beside: [{arm: rop", "did you mean 'rope'"),
        ("0001-transport-screening", "metric: loss\n", "metric: los\n", "did you mean 'loss'"),
        (
            "0001-transport-screening",
            "multiple: 1, seeds: [0, 1, 2]}]",
            "multiple: 1, seeds: [0, 1, 3]}]",
            "registered seeds",
        ),
        (
            "0001-transport-screening",
            "multiple: 1, seeds: [0, 1, 2]}]",
            "multiple: 1, seeds: [0, 1]}]",
            "registered seeds",
        ),
        (
            "0001-transport-screening",
            "multiple: 1, seeds: [0, 1, 2]}]",
            "multiple: 2, seeds: [0, 1, 2]}]",
            "not declared",
        ),
        ("0001-transport-screening", "{size: S, arm: ot-50,", "{size: S, arm: ot-75,", "twice"),
        ("0001-transport-screening", 'id: "0001-b"', 'id: "0001-a"', "0001-a twice"),
        ("0001-transport-screening", 'id: "0001-b"', 'id: "0002-b"', "no test of this protocol"),
        ("0001-transport-screening", 'id: "0001"', 'id: "0007"', "folder's name"),
        ("0004-bias-swap", "arm: fox,", "arm: fxo,", "no protocol trains"),
        ("0004-bias-swap", "checkpoints: 17", "checkpoints: 16", "17 registered"),
        (
            "0004-bias-swap",
            "arm: log, multiple: 1, seeds: [0, 1, 2], status: exploratory",
            "arm: log, multiple: 1, seeds: [0, 1, 2], status: registered",
            "13 registered",
        ),
        ("0001-transport-screening", "    positions: all\n", "", "positions"),
    ],
)
def test_a_reference_to_nothing_is_refused(register, folder, old, new, named):
    edit(register / folder / "protocol.yaml", old, new)
    with pytest.raises(UserError, match=named):
        load_protocols(register)


def test_an_empty_register_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no protocol"):
        load_protocols(tmp_path)
