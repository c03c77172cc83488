"""Seals: what may be changed without notice (formatting), what is found and named, and what is never sealed."""

import json
import shutil
from pathlib import Path

import pytest

from causal_priors.artifacts import digest_of
from causal_priors.config import ROOT
from causal_priors.errors import UserError
from causal_priors.prereg.ledger import load_amendments
from causal_priors.prereg.protocol import load_protocols
from causal_priors.prereg.seal import append_amendment, changed_keys, check_seals, load_sealed, seal

SCREENING = "0001-transport-screening"


@pytest.fixture
def register(tmp_path):
    return shutil.copytree(ROOT / "preregistration", tmp_path / "register")


def edit(file: Path, old: str, new: str, count: int = 1) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, count), encoding="utf-8")


def unseal(register: Path) -> None:
    for file in register.glob("*/seal.json"):
        file.unlink()


def forge(folder: Path) -> None:
    """Rewrite one seal so that it fits its own, changed protocol: data and digest, nothing else."""
    file = folder / "seal.json"
    content = json.loads(file.read_text())
    protocol = next(item for item in load_protocols(folder.parent) if item.folder == folder)
    content["sealed"] = protocol.data
    content.pop("digest")
    file.write_text(json.dumps({**content, "digest": digest_of(content)}))


def test_formatting_and_comments_are_free(register):
    file = register / SCREENING / "protocol.yaml"
    before = check_seals(register)
    edit(file, "threshold: 0.05\n", "threshold:    0.050   # nats\n")
    edit(file, "right: [{arm: rope, variant: plain}]\n", "right:\n        - arm: rope\n          variant: plain\n")
    edit(file, "  Does causal optimal-transport attention, with", "  Does causal\n  optimal-transport attention, with")
    plan = register / SCREENING / "plan.md"
    plan.write_text(" \n".join(plan.read_text().split("\n")) + "\n")
    assert check_seals(register) == before


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("threshold: 0.05", "threshold: 0.04", "tests.0001-a.rule.threshold (sealed 0.05, now 0.04)"),
        ("left: [ot-50, ot-75]", "left: [ot-75, ot-50]", "tests.0001-a.rule.left"),
        ("arm: log, multiple: 1, seeds: [0, 1, 2]", "arm: log, multiple: 1, seeds: [0, 1]", "runs"),
        (
            "targets_per_length: {default: 16384",
            "targets_per_length: {default: 16",
            "floors.targets_per_length.default",
        ),
        ("    maximum: 2\n", "    maximum: 3\n", "metrics.loss.maximum (sealed 2, now 3)"),
        ("      outcome: fails\n", "      outcome: holds\n", "tests.0001-a.source.outcome"),
        ("tests:\n", "tests_:\n", "tests (removed), tests_ (added)"),
        ("  - name: growth", "  - name: grow", "metrics.growth (removed), metrics.grow (added)"),
    ],
)
def test_a_changed_key_is_named(register, old, new, named):
    file = register / SCREENING / "protocol.yaml"
    edit(file, old, new)
    with pytest.raises(UserError) as error:
        check_seals(register)
    assert str(error.value).startswith(f"{file}: was changed after it was sealed: ")
    assert named in str(error.value)


def test_every_changed_key_is_named(register):
    file = register / SCREENING / "protocol.yaml"
    edit(file, "threshold: 0.05", "threshold: 0.04", count=2)
    edit(file, "title: Transport screening", "title: Something else")
    with pytest.raises(UserError) as error:
        check_seals(register)
    for key in ("title", "tests.0001-a.rule.threshold", "tests.0001-b.rule.threshold"):
        assert key in str(error.value)


def test_the_order_of_tests_is_sealed():
    rows = [{"id": "a", "x": 1}, {"id": "b", "x": 2}]
    assert list(changed_keys({"tests": rows}, {"tests": rows[::-1]})) == ["tests (order)"]
    assert list(changed_keys({"tests": rows}, {"tests": rows})) == []
    assert list(changed_keys({"on": True}, {"on": 1})) == ["on (sealed True, now 1)"]


def test_a_threshold_with_a_recomputed_seal_contradicts_the_other_seals(register):
    edit(register / SCREENING / "protocol.yaml", "threshold: 0.05", "threshold: 0.04")
    forge(register / SCREENING)
    with pytest.raises(UserError) as error:
        check_seals(register)
    assert str(register / SCREENING / "protocol.yaml") in str(error.value)
    assert "tests.0001-a" in str(error.value)
    assert "tests.0001-b" not in str(error.value)


def test_an_edited_seal_does_not_fit_its_digest(register):
    edit(register / SCREENING / "seal.json", "2026-11-29", "2026-11-28")
    with pytest.raises(UserError, match=r"seal\.json: does not fit its own digest"):
        check_seals(register)


def test_a_deleted_seal_is_refused(register):
    (register / SCREENING / "seal.json").unlink()
    with pytest.raises(UserError, match=r"0001-transport-screening/seal\.json: is missing"):
        check_seals(register)


def test_a_deleted_protocol_is_missed_by_the_others(register):
    shutil.rmtree(register / SCREENING)
    with pytest.raises(UserError, match="0001-transport-screening"):
        check_seals(register)


def test_a_resealed_protocol_contradicts_the_others(register):
    edit(register / SCREENING / "protocol.yaml", "threshold: 0.05", "threshold: 0.04")
    (register / SCREENING / "seal.json").unlink()
    with pytest.raises(UserError, match=r"0001-transport-screening/protocol\.yaml: differs from what 0002"):
        seal(register, "2026-11-30")


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        (f"{SCREENING}/plan.md", "at least .05 nats", "at least .04 nats", "plan.md"),
        ("assumptions.yaml", "L/8 over", "L/4 over", "A2"),
        ("published.yaml", "loss_at_512: 3.474", "loss_at_512: 3.574", "screening"),
        ("published.yaml", "outcome: holds, note: cap", "outcome: holds, note: changed", "outcomes.0004-a"),
    ],
)
def test_what_stands_beside_the_protocols_is_sealed_too(register, file, old, new, named):
    edit(register / file, old, new)
    with pytest.raises(UserError) as error:
        check_seals(register)
    assert file in str(error.value)
    assert named in str(error.value)


def add_protocol(register: Path, text: str | None = None) -> Path:
    folder = register / "0006-mine"
    folder.mkdir()
    text = text or (register / "0005-margin" / "protocol.yaml").read_text().replace("0005", "0006")
    (folder / "protocol.yaml").write_text(text)
    (folder / "plan.md").write_text("What I want to know.\n")
    (folder / "amendments.yaml").write_text("amendments: []\n")
    return folder


def test_a_later_protocol_leaves_earlier_seals_as_they_are(register):
    before = check_seals(register)
    folder = add_protocol(register)
    more = "  - {id: A18, text: mine, why: mine, settled_by: mine}\n"
    (register / "assumptions.yaml").write_text((register / "assumptions.yaml").read_text() + more)
    assert seal(register, "2026-12-24") == [folder / "seal.json"]
    assert {key: value for key, value in check_seals(register).items() if key in before} == before
    content = json.loads((folder / "seal.json").read_text())
    assert (content["date"], content["statement"]) == ("2026-12-24", "no result of this code existed")
    with pytest.raises(UserError, match="sealed already"):
        seal(register, "2026-12-25")


def test_no_seal_after_a_result(register, tmp_path):
    unseal(register)
    card = tmp_path / "results" / "micro" / "runs" / "S-rope-L64-s0" / "run.json"
    card.parent.mkdir(parents=True)
    card.write_text("{}")
    with pytest.raises(UserError, match="is a result of this code"):
        seal(register, "2026-11-30", results=tmp_path / "results")
    card.unlink()
    assert len(seal(register, "2026-11-30", results=tmp_path / "results")) == 5


def test_a_seal_needs_a_calendar_date(register):
    unseal(register)
    with pytest.raises(UserError, match="not a date"):
        seal(register, "2026-02-30")


# The loss of a vocabulary of 257, the smallest allowed, may be as large as ln 257 + 2 = 7.549 nats.
@pytest.mark.parametrize(
    ("folder", "old", "new", "why"),
    [
        (SCREENING, "threshold: 0.05", "threshold: 7.6", "cannot hold"),
        (SCREENING, "threshold: 0.05", "threshold: -7.6", "cannot fail"),
        (SCREENING, "threshold: 0.05", "threshold: 0", "no direction"),
        (SCREENING, "threshold: 0.05", "threshold: -0.05", "no direction"),
        (SCREENING, "right: [{arm: rope, variant: plain}]", "right: [{arm: ot-50, variant: plain}]", "below itself"),
        (SCREENING, "select: {metric: loss, length: 4, blocks: even}\n      right", "right", "ambiguous"),
        (SCREENING, "length: 4, blocks: even}", "length: 4, blocks: odd}", "same blocks"),
        (SCREENING, "left: [ot-50, ot-75]", "left: [ot-50]", "chooses from one arm"),
        (
            SCREENING,
            "    maximum: 2\n    add_ln_vocabulary: true",
            "    maximum: 0\n    add_ln_vocabulary: false",
            "empty range",
        ),
        ("0002-position-screening", "right: {arm: cable,", "right: {arm: grape-m,", "below itself"),
        (
            "0002-position-screening",
            "metric: beyond\n      length: 4",
            "metric: beyond\n      length: 1",
            "no position beyond",
        ),
        ("0002-position-screening", "metric: beyond", "metric: exponent", "recorded only"),
        ("0003-confirmation", "threshold: 0.01", "threshold: 8", "cannot hold"),
        ("0004-bias-swap", "float64: 0.0000001", "float64: 0", "no direction"),
        ("0004-bias-swap", "float32: 0.00001", "float32: 9", "cannot hold"),
        (
            "0004-bias-swap",
            "edits: [{edit: cap, direction: up}]",
            "edits: [{edit: cap, direction: up}, {edit: cap, direction: down}]",
            "ambiguous",
        ),
        ("0005-margin", "at_most: 0.05", "at_most: 1", "cannot fail"),
        ("0005-margin", "at_most: 0.05", "at_most: -1.5", "cannot hold"),
        ("0005-margin", "{arm: log-margin-t020, at_most: 0.02}", "{arm: log-margin-t050, at_most: 0.02}", "ambiguous"),
        ("0005-margin", "threshold: 0\n", "threshold: 1\n", "cannot hold"),
        ("0005-margin", "threshold: 0\n", "threshold: -0.1\n", "no direction"),
        (
            "0005-margin",
            "arms: [log-margin-t050, log-margin-t020, log-margin-t005]",
            "arms: [log-margin-t050]",
            "cannot fail",
        ),
    ],
)
def test_a_rule_that_is_decided_beforehand_is_not_sealed(register, folder, old, new, why):
    unseal(register)
    edit(register / folder / "protocol.yaml", old, new)
    with pytest.raises(UserError, match=why) as error:
        seal(register, "2026-11-30")
    assert str(register / folder / "protocol.yaml") in str(error.value)
    assert not list(register.glob("*/seal.json"))


@pytest.mark.parametrize(
    ("folder", "old", "new"),
    [
        (SCREENING, "threshold: 0.05", "threshold: 7.54"),
        ("0005-margin", "at_most: 0.05", "at_most: 0.999"),
        ("0005-margin", "at_most: 0.05", "at_most: -1"),
        ("0005-margin", "threshold: 0\n", "threshold: 0.99\n"),
    ],
)
def test_a_rule_at_the_edge_of_its_range_is_sealed(register, folder, old, new):
    unseal(register)
    edit(register / folder / "protocol.yaml", old, new)
    assert len(seal(register, "2026-11-30")) == 5


def test_an_unknown_assumption_is_not_sealed(register):
    unseal(register)
    edit(register / SCREENING / "protocol.yaml", "assumptions: [A1,", "assumptions: [A99,")
    with pytest.raises(UserError, match="not in the ledger"):
        seal(register, "2026-11-30")


def test_a_plan_is_needed(register):
    unseal(register)
    (register / SCREENING / "plan.md").write_text("\n")
    with pytest.raises(UserError, match=r"plan\.md: is empty"):
        seal(register, "2026-11-30")


REASON = "The corpus turned out to hold a play twice."


def test_amendments_are_appended_and_seals_stay(register):
    seals = check_seals(register)
    file = append_amendment(register / SCREENING, "2026-12-01", ["0001-a"], REASON)
    append_amendment(register / SCREENING, "2026-12-02", ["0001-a", "0001-b"], REASON + " It was dropped.")
    assert file.read_text().startswith("# Appended, dated, never rewritten")
    _, digests, amendments = load_sealed(register)
    assert digests == seals
    assert [(item.date, item.tests) for item in amendments["0001"]] == [
        ("2026-12-01", ("0001-a",)),
        ("2026-12-02", ("0001-a", "0001-b")),
    ]
    assert amendments["0002"] == ()


@pytest.mark.parametrize(
    ("date", "tests", "reason", "why"),
    [
        ("2026-11-28", ["0001-a"], REASON, "is before 2026-11-29"),
        ("2026-13-01", ["0001-a"], REASON, "not a date"),
        ("2026-12-01", ["0002-a"], REASON, "no test of this protocol"),
        ("2026-12-01", ["0001-a"], "typo", "reason"),
        ("2026-12-01", [], REASON, "tests"),
    ],
)
def test_a_bad_amendment_leaves_the_file_as_it_was(register, date, tests, reason, why):
    file = register / SCREENING / "amendments.yaml"
    before = file.read_text()
    with pytest.raises(UserError, match=why):
        append_amendment(register / SCREENING, date, tests, reason)
    assert file.read_text() == before


def test_a_rewritten_amendment_breaks_the_chain(register):
    file = append_amendment(register / SCREENING, "2026-12-01", ["0001-a"], REASON)
    append_amendment(register / SCREENING, "2026-12-02", ["0001-b"], REASON)
    edit(file, "a play twice", "a play once")
    with pytest.raises(UserError, match=r"amendments\.1\.previous"):
        load_sealed(register)


def test_a_dropped_amendment_breaks_the_chain(register):
    append_amendment(register / SCREENING, "2026-12-01", ["0001-a"], REASON)
    file = append_amendment(register / SCREENING, "2026-12-02", ["0001-b"], REASON)
    rows = file.read_text().split("\n- ")
    file.write_text("\n- ".join([rows[0], rows[2]]))
    with pytest.raises(UserError, match=r"amendments\.0\.previous"):
        load_sealed(register)


@pytest.mark.parametrize("extra", ["threshold: 0.01", "rule: {threshold: 0.01}", "verdict: holds"])
def test_an_amendment_cannot_carry_a_value(register, extra):
    file = append_amendment(register / SCREENING, "2026-12-01", ["0001-a"], REASON)
    file.write_text(file.read_text() + f"  {extra}\n")
    protocol = load_protocols(register)[0]
    with pytest.raises(UserError, match="is an unknown key"):
        load_amendments(protocol, check_seals(register)["0001"], "2026-11-29")
