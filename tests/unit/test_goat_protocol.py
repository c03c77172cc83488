"""The exploratory register: what its seal finds, when it is refused, and that the registered study does not see it."""

import shutil

import pytest
import yaml
from helpers import scale

from causal_priors.cli import main
from causal_priors.config import ROOT
from causal_priors.errors import UserError
from causal_priors.goat import EXPERIMENT
from causal_priors.goat.predictions import RULES
from causal_priors.goat.registered import load_design, probed_arm
from causal_priors.prereg.exploratory import check_exploratory, seal_exploratory
from causal_priors.prereg.protocol import load_protocols, registered_runs
from causal_priors.prereg.seal import check_seals

REGISTER = ROOT / "preregistration"
SEAL = "235adc482e778312768eba979655119f9dbe8f1230af6950a1df489c4eb5720d"
NAME = "0006-goat"


@pytest.fixture
def register(tmp_path):
    shutil.copytree(REGISTER, tmp_path / "register")
    return tmp_path / "register"


def edit(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_the_seal_is_the_one_that_was_made():
    assert check_exploratory(REGISTER) == {EXPERIMENT: SEAL}


def test_the_registered_study_does_not_see_it(register):
    protocols, digests = load_protocols(register), check_seals(register)
    assert [protocol.id for protocol in protocols] == ["0001", "0002", "0003", "0004", "0005"]
    assert len(registered_runs(protocols)) == 82
    shutil.rmtree(register / "exploratory")
    assert check_seals(register) == digests
    assert check_exploratory(register) == {}


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        (
            "protocol.yaml",
            "least: 0.5}",
            "least: 0.2}",
            r"predictions\.0006-1\.numbers\.least \(sealed 0\.5, now 0\.2\)",
        ),
        ("protocol.yaml", "steps: 800", "steps: 900", r"scales\.micro\.copy\.steps \(sealed 800, now 900\)"),
        ("protocol.yaml", "arms: [nope, ", "arms: [", "arms"),
        ("plan.md", "One seed", "Two seeds", r"plan\.md: was changed"),
        ("seal.json", "2026-11-30", "2026-11-29", r"seal\.json: does not fit its own digest"),
    ],
)
def test_what_was_sealed_cannot_change(register, file, old, new, named):
    edit(register / "exploratory" / NAME / file, old, new)
    with pytest.raises(UserError, match=named):
        check_exploratory(register)


def test_formatting_is_free(register):
    path = register / "exploratory" / NAME / "protocol.yaml"
    path.write_text("# another comment\n" + yaml.safe_dump(yaml.safe_load(path.read_text()), sort_keys=False))
    assert check_exploratory(register) == {EXPERIMENT: SEAL}


def test_sealing_once_and_before_the_first_model(register, tmp_path, capsys):
    with pytest.raises(UserError, match="holds no exploratory protocol without a seal"):
        seal_exploratory(register, "2026-12-01", tmp_path)
    (register / "exploratory" / NAME / "seal.json").unlink()
    with pytest.raises(UserError, match=r"seal\.json: is missing: the protocol is not sealed"):
        check_exploratory(register)
    model = tmp_path / "results" / "micro" / "experiments" / EXPERIMENT / "arms" / "goat.parquet"
    model.parent.mkdir(parents=True)
    model.touch()
    with pytest.raises(UserError, match=r"goat\.parquet: was measured before the seal"):
        seal_exploratory(register, "2026-12-01", tmp_path / "results")
    with pytest.raises(UserError, match="is not a date"):
        seal_exploratory(register, "tomorrow", tmp_path)
    arguments = ["--preregistration", str(register), "--results", str(tmp_path / "none")]
    assert main(["seal", "--exploratory", "--date", "2026-11-30", *arguments]) == 0
    assert check_exploratory(register) == {EXPERIMENT: SEAL}
    assert main(["seal", "--check", *arguments]) == 0
    assert f"{EXPERIMENT}  {SEAL}  exploratory" in capsys.readouterr().out


def test_a_new_key_or_a_repeated_prediction_is_refused(register):
    path = register / "exploratory" / NAME / "protocol.yaml"
    whole = path.read_text()
    path.write_text(whole + "threshold: 1\n")
    with pytest.raises(UserError, match="threshold: is an unknown key"):
        check_exploratory(register)
    path.write_text(whole.replace("id: 0006-2\n", "id: 0006-1\n"))
    with pytest.raises(UserError, match="holds 0006-1 twice"):
        check_exploratory(register)


def test_the_design_is_what_the_protocol_says():
    design = load_design(REGISTER, scale("micro"))
    assert (design.copy.mixture.vocabulary, design.copy.steps, design.retrieval.windows) == (64, 800, 10)
    assert design.budget(900, 10).tokens_per_step == 640
    assert {row["rule"] for row in design.predictions} == set(RULES)
    assert probed_arm("goat", design).key == "goat"
    with pytest.raises(UserError, match="is not an arm of experiment 0006; its arms are nope, rope"):
        probed_arm("grape-m", design)


def test_a_scale_without_sizes_and_a_register_without_it_are_refused(register):
    with pytest.raises(UserError, match="has no sizes for scale paper; use micro, nano"):
        load_design(REGISTER, scale("paper"))
    shutil.rmtree(register / "exploratory")
    with pytest.raises(UserError, match="holds 0 protocols 0006"):
        load_design(register, scale("nano"))
