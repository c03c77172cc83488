"""The code digest moves with arithmetic, not with comments or other arms, and covers what a stage really loads."""

import shutil
import subprocess
import sys

import pytest

from causal_priors import codedigest
from causal_priors.arms import ARMS
from causal_priors.codedigest import CARRIERS, STAGES, bare_source, code_digest, reached_modules

PACKAGE = codedigest._SOURCE


@pytest.fixture
def edited(monkeypatch, tmp_path):
    """Return a function that edits a copy of the package which the digests are then taken from."""
    copy = tmp_path / "causal_priors"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(codedigest, "_SOURCE", copy)

    def forget():
        for cached in (bare_source, codedigest._imports, codedigest._texts):
            cached.cache_clear()

    def edit(file, old, new):
        text = (copy / file).read_text()
        assert old in text
        (copy / file).write_text(text.replace(old, new, 1))
        forget()

    forget()
    yield edit
    forget()


def digests():
    return {key: code_digest("train", arm) for key, arm in ARMS.items()}


def test_comments_docstrings_and_blank_lines_do_not_count(edited):
    before = digests()
    edited("model.py", '"""The transformer', '"""Some other words.\n\nThe transformer')
    edited("model.py", "import math\n", "# a remark\n\nimport math  # another\n")
    assert digests() == before


def test_arithmetic_of_the_model_counts_for_every_arm(edited):
    before = digests()
    edited("model.py", "INIT_STD = 0.02", "INIT_STD = 0.03")
    assert not set(digests().items()) & set(before.items())


def test_a_prior_counts_for_its_own_arms_only(edited):
    before = digests()
    edited("priors/path.py", "import torch\n", "import torch\n\nEXTRA = 1\n")
    changed = {key for key, digest in digests().items() if digest != before[key]}
    users = {key for key, arm in ARMS.items() if "causal_priors.priors.path" in reached_modules(arm.modules())}
    assert changed == users
    assert {"fox", "cable"} <= changed
    assert not {"rope", "alibi", "ot-50"} & changed


def test_a_change_of_the_operator_touches_transport_arms_only(edited):
    before = digests()
    edited("attention/transport/blocked.py", "import torch\n", "import torch\n\nEXTRA = 1\n")
    changed = {key for key, digest in digests().items() if digest != before[key]}
    assert changed == {key for key, arm in ARMS.items() if arm.transport is not None}


def test_the_table_itself_and_scoring_do_not_retrain(edited):
    before = digests()
    edited("arms.py", "_ROWS = (", '_ROWS = (\n    Arm("new", "one more"),')
    edited("prereg/scoring.py", "\n\n\n", "\n\nEXTRA = 1\n\n")
    assert digests() == before


def test_scoring_code_counts_for_scoring(edited):
    before = code_digest("score")
    edited("prereg/scoring.py", "\n\n\n", "\n\nEXTRA = 1\n\n")
    assert code_digest("score") != before


@pytest.mark.parametrize("key", ["rope", "grape-m", "log", "cable", "ot-50", "alibi-ot"])
def test_what_training_and_evaluation_load_is_covered(key):
    """Whatever of the package is in memory after building and using an arm must be in the digest or a carrier."""
    script = f"""
import sys, torch
from causal_priors.arms import ARMS
from causal_priors.scale import Size
import causal_priors.train.loop, causal_priors.evaluate
from causal_priors.model import Transformer
model = Transformer(Size(16, 1, 2, 16, 5, 128, 1e-3, .1, .1), 300, ARMS["{key}"], 16, 0)
ids = torch.zeros(1, 16, dtype=torch.int64)
model(ids, ids).mean().backward()
model(ids, ids, far=[(16, 2), (16, 16)])
print(*[name for name in sys.modules if name.startswith("causal_priors.")])
"""
    loaded = set(subprocess.check_output([sys.executable, "-c", script], text=True).split())
    packages = {name for name in loaded if (PACKAGE.joinpath(*name.split(".")[1:]) / "__init__.py").exists()}
    covered = set(reached_modules([*STAGES["train"], *STAGES["evaluate"], *ARMS[key].modules()]))
    empty = {name for name in packages if not bare_source(name)}
    assert loaded - covered - CARRIERS - empty == set()
