"""Two scales side by side, as `compare` prints them."""

import json

from causal_priors.cli import main
from causal_priors.config import ROOT

MICRO = ROOT / "results/reference/micro"


def test_two_scales_are_compared_by_outcome_and_direction(study, capfd):
    assert main(["compare", str(MICRO), str(study.folder)]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert "They are of different scales: only outcomes and directions can be compared." in lines
    kept = {record["test_id"]: record["verdict"] for record in json.loads((MICRO / "verdicts.json").read_text())}
    here = {record["test_id"]: record["verdict"] for record in json.loads((study.folder / "verdicts.json").read_text())}
    for test in kept:
        line = next(line for line in lines if line.startswith(test))
        assert kept[test] in line
        assert here[test] in line
        assert line.endswith("same" if kept[test] == here[test] else "differs")
    # Planted: every arm but transport, rope-logn and cable is .4 below rope.
    assert next(line for line in lines if line.startswith("S kerple ")).split()[3] == "-0.4000"


def test_a_margin_too_small_for_its_digits_is_no_zero(capfd):
    assert main(["compare", str(MICRO), str(MICRO)]) == 0
    lines = capfd.readouterr().out.splitlines()
    (margin,) = (
        record["margin"]
        for record in json.loads((MICRO / "verdicts.json").read_text())
        if record["test_id"] == "0004-c"
    )
    assert 0 < abs(margin) < 1e-4
    assert f"({margin:+.1e})" in next(line for line in lines if line.startswith("0004-c"))
    assert not any("-0.0000" in line for line in lines)
