"""Arms of one's own: what is accepted and computed, what is refused and how, and that no verdict can see them."""

import json
import subprocess
import sys

import pytest
import torch
from model_cases import build, moved, tokens
from planted import SCALE, planted_run

from causal_priors import codedigest
from causal_priors.arms import ARMS, ROPE, Part, Transport
from causal_priors.cli import main
from causal_priors.codedigest import code_digest, reached_modules
from causal_priors.config import ROOT
from causal_priors.errors import UserError
from causal_priors.own_arms import explained, own_arm, own_arms
from causal_priors.prereg.scoring import score_stage
from causal_priors.runs import Run
from causal_priors.study import find_run, load_study
from causal_priors.tables import write_table
from causal_priors.yamlfile import load_yaml

CONFIG = ROOT / "workflow" / "config" / "config.yaml"
HEAD = """import torch
from torch import nn

from causal_priors.arms import ARMS, ROPE, Arm, Part, Transport
from causal_priors.priors.base import LogPrior
"""
PRIOR = """
class Root(LogPrior):
    def __init__(self, geometry, generator, power=0.5):
        super().__init__(geometry, generator)
        self.power = power
        self.raw_H = nn.Parameter(torch.zeros(geometry.heads))

    def forward(self, context):
        slope_H = nn.functional.softplus(self.raw_H)
        return -slope_H[None, :, None, None] * context.distance_RS(slope_H.dtype) ** self.power
"""
ROW = """
ARM = Arm("root", "my own", rotation=ROPE, log_prior=Part.of(Root))
"""


def inherited(parent):
    """An arm file whose prior overrides `forward` alone, and not the other forms in which its parent gives biases."""
    half = "\nclass Half(Parent):\n    def forward(self, context):\n        return super().forward(context) / 2\n"
    module, name = parent.split(".")
    head = f"{HEAD}from causal_priors.priors.{module} import {name} as Parent\n"
    return head + half + ROW.replace("Root", "Half")


TOTAL = "    def tokens(self, x, q, k):\n        return x.sum((1, 2))\n\n"
WHOLE = HEAD + PRIOR + ROW


def forget():
    for cached in (codedigest.bare_source, codedigest._imports, codedigest._texts):
        cached.cache_clear()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working folder, and no module of a file of another test."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("own_arms.")]:
        del sys.modules[name]
    forget()


def from_file(text, name="mine.py"):
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)
    forget()
    return own_arm(name, ARMS).arm


def composed(**parts):
    return own_arm(json.dumps({"key": "mine", **parts}), ARMS).arm


def study(arms, **changes):
    changes = {"preregistration": str(ROOT / "preregistration"), "scale": "nano", **changes}
    return load_study({**load_yaml(CONFIG), "arms": arms, **changes}, "config.yaml")


def test_a_file_gives_its_row_and_its_prior():
    arm = from_file(HEAD + PRIOR + ROW.replace("Part.of(Root)", "Part.of(Root, power=1.0)"))
    assert (arm.key, arm.rotation, arm.exploratory, arm.yarn) == ("root", ROPE, True, False)
    assert arm.log_prior == Part("own_arms.mine:Root", {"power": 1.0})
    model = moved(build(arm))
    every = torch.arange(8)
    prior = model.layers[0].place(*model.layers[0].content(model.embedding(tokens(length=8)[0])))[3]
    slope_H = torch.nn.functional.softplus(model.layers[0].log_prior.raw_H)
    distance = (every[:, None] - every).clamp_min(0)
    torch.testing.assert_close(prior(every, every)[0], -slope_H[:, None, None] * distance)


def test_a_composition_gives_any_product_of_existing_parts():
    arm = composed(
        **{"rotation": "grape-m", "log_n": True, "log_prior": "goat", "position_lr": 0.5},
        transport={"strength": 0.25, "solver": "sweeps", "iterations": 3},
    )
    assert (arm.rotation, arm.log_n, arm.position_lr) == (ARMS["grape-m"].rotation, True, 0.5)
    assert (arm.log_prior, arm.transport) == (ARMS["goat"].log_prior, Transport(0.25, "sweeps", 3))
    assert arm.exploratory


def test_a_registered_row_and_its_composition_are_one_computation():
    again = composed(rotation="rope", log_prior="alibi", transport={"strength": 0.75})
    assert {**again.resolved(), "key": ""} == {**ARMS["alibi-ot"].resolved(), "key": ""}


ROTATIONS = ("none", "rope", "grape-m")
PRIORS = ("none", "log", "kerple", "alibi", "fox", "cable", "grape-a", "grape-ap", "goat")


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("prior", PRIORS)
def test_every_product_of_parts_computes_and_learns(rotation, prior):
    for transport in (None, {"strength": 0.5}):
        parts = {"transport": transport} if transport else {}
        model = build(composed(rotation=rotation, log_prior=prior, log_n=True, **parts), depth=1)
        ids, targets = tokens(length=20)
        model(ids, targets).mean().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
        changed = ids.clone()
        changed[:, 12] = (changed[:, 12] + 1) % 50
        torch.testing.assert_close(model(changed, targets)[:, :12], model(ids, targets)[:, :12], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"key": "fox"}, "key = 'fox': is an arm of the registered study; choose another key"),
        ({"key": "My arm"}, "key = 'My arm': is not a key; use a-z, 0-9 and single hyphens"),
        ({"key": "../x"}, "key = '../x': is not a key"),
        ({"key": "a" * 61}, "is not a key"),
        ({"rotatoin": "rope"}, "rotatoin: is an unknown key; did you mean 'rotation'?"),
        ({"rotation": "yarn"}, "rotation = 'yarn': has a wrong value; expected enum ['none', 'rope', 'grape-m']"),
        ({"log_prior": "foxx"}, "log_prior = 'foxx': is not an arm whose log-prior can be taken; did you mean fox?"),
        ({"log_prior": "rope"}, "log_prior = 'rope': has no log-prior"),
        ({"log_prior": "log-margin-t050"}, "log_prior = 'log-margin-t050': is not an arm whose log-prior can be taken"),
        ({"yarn": True}, "yarn = True: needs RoPE, which this arm does not have"),
        ({"yarn": True, "rotation": "grape-m"}, "yarn = True: needs RoPE"),
        ({"log_n": "maybe"}, "log_n = 'maybe': has a wrong value; expected type boolean"),
        ({"position_lr": 0}, "position_lr = 0: has a wrong value"),
        ({"transport": {"strength": 1}}, "transport.strength = 1: has a wrong value"),
        ({"transport": {"solver": "exact"}}, "'strength' is a required property"),
        ({"transport": {"strength": 0.5, "iterations": 3}}, "transport.iterations = 3: does not go with solver exact"),
        ({"transport": {"strength": 0.5, "solver": "sweeps"}}, "transport.iterations = None: does not go with"),
    ],
)
def test_wrong_compositions_are_refused_by_name(parts, message):
    with pytest.raises(UserError) as told:
        composed(**parts)
    assert message in str(told.value)
    assert str(told.value).startswith("--arm: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + PRIOR, "mine.py: holds no row; define exactly one: ARM = Arm("),
        (WHOLE + 'TWO = Arm("two", "another")', "mine.py: holds 2 rows (root, two); define exactly one"),
        (HEAD + "ARM = ARMS['fox']", "mine.py: holds no row"),
        (WHOLE.replace('"root"', '"log"'), "mine.py: key = 'log': is an arm of the registered study"),
        (WHOLE.replace('"root"', '"Root"'), "mine.py: key = 'Root': is not a key"),
        (WHOLE.replace('"root"', "None"), "mine.py: key = None: is not a key"),
        (WHOLE.replace("Part.of(Root)", "Root"), "is not a Part; write Part.of(YourClass)"),
        (WHOLE.replace("rotation=ROPE", "rotation='rope'"), "rotation = 'rope': is not a Part"),
        (WHOLE.replace("rotation=ROPE", "yarn=True"), "mine.py: yarn = True: needs RoPE"),
        (WHOLE.replace("rotation=ROPE", "transport=Transport(1.0)"), "mine.py: transport.strength = 1.0"),
        (WHOLE.replace("rotation=ROPE", "transport=Transport(0.5, 'newton')"), "'newton': is not a solver"),
        (WHOLE.replace("rotation=ROPE", "position_lr=0"), "position_lr = 0: is not a positive number"),
        (HEAD + "\nraise ValueError('no\\nluck')", "mine.py: line 7: raised ValueError: no luck"),
        (HEAD + "\nimport no_such_thing", "mine.py: line 7: raised ModuleNotFoundError"),
        (HEAD + "\nimport sys\nsys.exit(3)", "mine.py: line 8: raised SystemExit: 3"),
        (HEAD + "\ndef broken(:", "mine.py: line 7: raised SyntaxError"),
        (WHOLE.replace("rotation=ROPE", "rotate=ROPE"), "raised TypeError: Arm.__init__() got an unexpected keyword"),
        (WHOLE.replace("Part.of(Root)", "Part.of(Root, powr=1)"), "mine.py: log_prior: cannot be built"),
        (WHOLE.replace("(LogPrior)", "(nn.Module)"), "log_prior: Root is not a LogPrior"),
        (WHOLE.replace("def forward", "def biases"), "log_prior: Root has no forward, which returns its biases"),
        (WHOLE.replace("zeros", "rand"), "starts differently from the same seed"),
        (WHOLE.replace("[None, :, None, None]", "[:, None, None]"), "returns a bias of shape [4, 24, 24], not"),
        (WHOLE.replace("slope_H.dtype)", "torch.float64)"), "returns a bias in torch.float64, not in float32"),
        (WHOLE.replace("** self.power", "** -self.power"), "returns a bias that is not finite"),
        (
            WHOLE.replace("** self.power", ".sub(100).neg() ** self.power"),
            "returns a bias that is not finite in windows of 192 tokens, 8 times as long",
        ),
        (inherited("distance.LogDistance"), "returns other biases from distance_form than from forward: override it"),
        (inherited("distance.ALiBi"), "returns other biases from distance_form than from forward: override it"),
        (inherited("path.ForgetGate"), "returns other biases from score than from forward: override it"),
        (WHOLE.replace("context.distance_RS", "context.distance"), "mine.py: line 15: raised AttributeError"),
        (WHOLE.replace("softplus(self.raw_H)", "softplus(self.raw_H.detach())"), "raw_H gets no gradient"),
        (
            WHOLE.replace("context.distance_RS(slope_H.dtype)", "(context.i_R - context.i_R[0])[:, None].float()"),
            "returns a bias of shape",
        ),
        (
            WHOLE.replace("-slope_H", "(context.i_R[0] + 1) * -slope_H"),
            "returns other biases for a block of rows than for the whole window",
        ),
        (
            WHOLE.replace("    def forward", f"{TOTAL}    def forward")
            .replace("return -slope_H[None", "return context.tokens[:, None, None, None] * -slope_H[None"),
            "lets a token change the bias of an earlier query",
        ),
    ],
)  # fmt: skip
def test_wrong_files_are_refused_in_one_line(text, message):
    with pytest.raises(UserError) as told:
        from_file(text)
    assert message in str(told.value)
    assert "\n" not in str(told.value)
    assert str(told.value).startswith("mine.py: ")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no/such.py", "'no/such.py': cannot be read (No such file or directory)"),
        ("folder.py", "'folder.py': cannot be read (Is a directory)"),
        ("mine.txt", "'mine.txt': is not the name of a Python file"),
        ("a:b.py", "'a:b.py': is not the name of a Python file"),
        ("../outside.py", "'../outside.py': lies outside the working folder"),
        ("link.py", "'link.py': lies outside the working folder"),
        ("latin.py", "latin.py: is not UTF-8"),
        ("{not json", "is not JSON"),
    ],
)
def test_what_cannot_be_read_is_refused(folder, name, message):
    (folder / "folder.py").mkdir()
    (folder / "link.py").symlink_to(ROOT / "src" / "causal_priors" / "arms.py")
    (folder / "latin.py").write_bytes(b"# \xe9\n")
    with pytest.raises(UserError) as told:
        own_arm(name, ARMS)
    assert message in str(told.value)


def test_two_items_need_two_keys_and_two_file_names(folder):
    with pytest.raises(UserError, match=r"config\.yaml: arms\.1: key = 'mine': stands twice"):
        own_arms([{"key": "mine"}, {"key": "mine", "log_n": True}], "config.yaml", ARMS)
    (folder / "other").mkdir()
    from_file(WHOLE)
    from_file(WHOLE.replace('"root"', '"other"'), "away.py")
    (folder / "away.py").rename(folder / "other" / "mine.py")
    with pytest.raises(UserError, match="has the name of another arm's file; rename one of the two"):
        own_arms(["mine.py", "other/mine.py"], "config.yaml", ARMS)


def test_text_from_the_command_line_is_read_as_numbers_and_truth_values():
    parts = {"log_n": "true", "position_lr": "0.25", "transport": {"strength": "0", "solver": "exact"}}
    (own,) = own_arms([{"key": "mine", **parts}], "config.yaml", ARMS)
    assert (own.arm.log_n, own.arm.position_lr, own.arm.transport) == (True, 0.25, Transport(0))
    with pytest.raises(UserError, match=r"arms\.0\.log_n: line 1: 'yes': is read differently"):
        own_arms([{"key": "mine", "log_n": "yes"}], "config.yaml", ARMS)


def test_the_code_digest_follows_the_file_and_what_it_imports():
    before = {key: code_digest("train", arm) for key, arm in ARMS.items()}
    digest = code_digest("train", from_file(WHOLE))
    assert code_digest("train", from_file("# a remark\n" + WHOLE.replace("class", "\n\nclass", 1))) == digest
    assert code_digest("train", from_file(WHOLE.replace("softplus", "relu"))) != digest
    assert code_digest("train", from_file(WHOLE, "moved.py")) != digest
    assert {key: code_digest("train", arm) for key, arm in ARMS.items()} == before


def test_a_file_that_builds_on_a_prior_of_the_package_counts_that_module():
    text = "from causal_priors.arms import Arm, Part\nfrom causal_priors.priors.path import ForgetGate\n"
    arm = from_file(text + "class Mine(ForgetGate):\n    pass\nARM = Arm('mine', 'x', log_prior=Part.of(Mine))")
    assert {"own_arms.mine", "causal_priors.priors.path"} <= set(reached_modules(arm.modules()))


def test_a_study_plans_own_arms_beside_the_registered_ones(folder):
    (folder / "mine.py").write_text(WHOLE)
    with_own = study(["mine.py", {"key": "turned", "rotation": "grape-m"}])
    assert with_own.runs() == study([]).runs()
    assert with_own.evaluation_files() == study([]).evaluation_files()
    names = [f"{path.parent.name}/{path.stem}" for path in with_own.own_files()]
    edits = [f"S-root-L16-s{seed}/{name}" for seed in (0, 1) for name in ("evaluation", "cap", "repair")]
    assert names == [*edits, "S-turned-L16-s0/evaluation", "S-turned-L16-s1/evaluation"]
    run = with_own.run("C-root-L64-s4")
    assert (with_own.arm(run).key, with_own.own_argument(run)) == ("root", "mine.py")
    assert with_own.own_argument(with_own.run("S-rope-L16-s0")) == ""


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("S-turned-L16-s0/cap.parquet", "cannot be made: arm turned has no log-prior to cap"),
        ("S-nope-L16-s0/repair.parquet", "cannot be made: arm nope has no log-prior to repair"),
        ("S-turnd-L16-s0/run.json", "'S-turnd-L16-s0': is not a registered run"),
    ],
)
def test_targets_that_cannot_be_made_are_refused_before_planning(target, message):
    found = study([{"key": "turned", "rotation": "grape-m"}])
    with pytest.raises(UserError) as told:
        found.check_target(found.folder / "runs" / target)
    assert message in str(told.value)


def test_yarn_ramps_keep_the_registered_one():
    assert study([], yarn_ramps=["paper", "code"]).config.yarn_ramps == ("paper", "code")
    with pytest.raises(UserError, match=r"yarn_ramps = \['code'\]: lacks 'paper', which is registered; keep it"):
        study([], yarn_ramps=["code"])
    with pytest.raises(UserError, match=r"yarn_ramps\.1 = 'ntk': has a wrong value"):
        study([], yarn_ramps=["paper", "ntk"])


def test_a_run_is_of_the_arm_that_is_given(capfd):
    arguments = ["--scale", "nano", "--preregistration", str(ROOT / "preregistration"), "--shards", "x", "--out", "y"]
    spec = json.dumps({"key": "mine", "log_prior": "log"})
    for run, message in (
        ("S-rope-L16-s0", "'S-rope-L16-s0': is no run of arm mine; leave out --arm for a registered run"),
        ("S-other-L16-s0", "'S-other-L16-s0': is not a registered run"),
        ("S-mine-L17-s0", "'S-mine-L17-s0': trains at no multiple of L = 16"),
    ):
        assert main(["train", run, *arguments, "--arm", spec]) == 2
        assert f"error: {message}" in capfd.readouterr().err


def test_what_the_code_of_a_file_raises_in_a_job_is_one_line(folder):
    """The prior is fine in the trial's windows and fails in longer ones."""
    text = WHOLE.replace("        slope_H", "        assert len(context.j_S) < 200, 'too long'\n        slope_H", 1)
    (folder / "mine.py").write_text(text)
    arm = own_arm("mine.py", ARMS).arm
    with pytest.raises(UserError, match=r"^mine\.py: line 14: raised AssertionError: too long$"), explained("mine.py"):
        build(arm)(*tokens(length=210))


def test_the_registered_study_has_every_protocol_arm_reserved():
    """Also a protocol's arm that this code does not implement."""
    scale = study([]).scale
    for key in {run.arm for run in study([]).registered}:
        with pytest.raises(UserError, match="is an arm of the registered study"):
            find_run(f"S-{key}-L16-s0", scale, ROOT / "preregistration", json.dumps({"key": key}))


def test_no_table_of_an_own_arm_reaches_a_verdict(folder):
    """Neither under its own name, nor with rows that claim to be a registered run, given to the scoring by hand."""

    def scored(*names):
        files = [folder / name / "evaluation.parquet" for name in names]
        score_stage(ROOT / "preregistration", SCALE, files, ARMS, folder)
        return json.loads((folder / "verdicts.json").read_text())

    registered = [Run("S", arm, 1, seed) for arm in ("rope", "rope-logn", "ot-75") for seed in (0, 1, 2)]
    planted = {run.name(SCALE): planted_run(run, SCALE) for run in registered}
    planted["S-mine-L16-s0"] = planted_run(Run("S", "mine", 1, 0), SCALE)
    planted["S-mine-L16-s1"] = planted_run(Run("S", "ot-50", 1, 0), SCALE)
    for name, rows in planted.items():
        write_table(rows, folder / name / "evaluation.parquet", "evaluation", {"status": "finished"})
    alone = scored(*(run.name(SCALE) for run in registered))
    assert scored(*planted) == alone
    assert "runs S-ot-50-L16-s0, S-ot-50-L16-s1, S-ot-50-L16-s2 missing" in alone[0]["reason"]
    # Not even under the name of a registered run, where the rows say what they are.
    write_table(planted["S-mine-L16-s0"], folder / "S-ot-50-L16-s0" / "evaluation.parquet", "evaluation", {})
    assert "runs S-ot-50-L16-s0, " in scored(*planted, "S-ot-50-L16-s0")[0]["reason"]


def test_a_plain_composition_needs_no_torch(folder):
    script = (
        "import sys\nfrom causal_priors.own_arms import own_arm\n"
        'own_arm(\'{"key": "mine", "rotation": "rope", "log_prior": "fox"}\', set())\nprint("torch" in sys.modules)'
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "False\n"
