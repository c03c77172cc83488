"""The table of theory against golden numbers of the specification, as the stage writes them."""

import math

import pandas as pd
import pyarrow.parquet as pq
import pytest

from causal_priors.arms import ARMS
from causal_priors.config import load_scale, scale_file
from causal_priors.theory.stage import SCHEMA, theory_stage

LENGTHS = (512, 1024, 2048, 4096)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("theory")
    theory_stage(load_scale(scale_file("micro")), folder / "theory.parquet", folder / "theory.csv")
    return folder


@pytest.fixture(scope="module")
def table(files):
    return pd.read_parquet(files / "theory.parquet")


def found(table, result, quantity, column="value"):
    """{n: number} of the rows of one quantity, in full."""
    rows = table[(table["result"] == result) & (table["quantity"] == quantity)]
    assert len(rows)
    return dict(zip(rows["n"].astype(int), rows[column], strict=True))


def test_columns_and_csv(files, table):
    assert pq.read_schema(files / "theory.parquet").remove_metadata().equals(SCHEMA)
    csv = pd.read_csv(files / "theory.csv")
    assert list(csv.columns) == SCHEMA.names
    assert csv["value"].tolist() == pytest.approx(table["value"].tolist(), rel=1e-9, nan_ok=True)
    assert not table.duplicated(["result", "quantity", "n"]).any()


def test_relative_error_is_that_of_value_and_limit(table):
    rows = table[table["limit"].notna()]
    assert rows["relative_error"].tolist() == pytest.approx((rows["value"] / rows["limit"] - 1).tolist(), rel=1e-12)
    assert table[table["limit"].isna()]["relative_error"].isna().all()


@pytest.mark.parametrize(
    ("strength", "limit", "excess"),
    [("0.5", 0.318310, [0.0908, 0.0636, 0.0447, 0.0315]), ("0.25", 0.762585, [0.0081, 0.0050, 0.0031, 0.0019])],
)
def test_amplitude(table, strength, limit, excess):
    quantity = f"i exp(a[i]), strength {strength}"
    errors = found(table, "amplitude", quantity, "relative_error")
    assert errors == pytest.approx(dict(zip(LENGTHS, excess, strict=True)), abs=5.01e-5)
    assert found(table, "amplitude", quantity, "limit")[512] == pytest.approx(limit, abs=5.01e-7)


@pytest.mark.parametrize(("strength", "tolerance"), [(0.25, 0.03), (0.5, 0.03), (0.75, 0.1)])
def test_amplitude_falls_to_its_limit_like_a_power_of_the_length(table, strength, tolerance):
    errors = found(table, "amplitude", f"i exp(a[i]), strength {strength:g}", "relative_error")
    assert errors[512] > errors[1024] > errors[2048] > errors[4096] > 0
    assert errors[4096] / errors[2048] == pytest.approx(2 ** -(1 - strength), rel=tolerance)


def test_profile(table):
    errors = found(table, "profile", "i P[i, i/2], strength 0.5", "relative_error")
    assert errors == pytest.approx(dict(zip(LENGTHS, [0.0335, 0.0241, 0.0172, 0.0123], strict=True)), abs=5.01e-5)


def test_window_mass(table):
    quantity = "last 32 keys, strength 0.5"
    masses = found(table, "window mass", quantity)
    assert masses == pytest.approx(
        dict(zip(LENGTHS, [0.257369, 0.180248, 0.126500, 0.088944], strict=True)), abs=5.01e-7
    )
    errors = found(table, "window mass", quantity, "relative_error")
    assert errors == pytest.approx(dict(zip(LENGTHS, [0.038, 0.028, 0.021, 0.015], strict=True)), abs=5.01e-4)
    halves = found(table, "window mass", "last 32 keys, over that at n/2, strength 0.5", "relative_error")
    assert 0 > halves[4096] > halves[2048] > halves[1024] > -0.01
    shares = found(table, "window mass", "last n/8 keys, strength 0.5", "relative_error")
    assert 0 > shares[4096] > shares[2048] > shares[1024] > shares[512] > -0.05


@pytest.mark.parametrize("bound", ["0.5", "1", "2"])
def test_bounded_scores_stay_within_constants_and_average_out(table, bound):
    where = f"scores within {bound}, strength 0.5"
    low = found(table, "bounded scores", f"smallest ratio up to n (bound), {where}")
    high = found(table, "bounded scores", f"largest ratio up to n (bound), {where}")
    limit = math.exp(6 * float(bound))
    assert all(1 / limit < low[n] < 0.7 and 1.5 < high[n] < limit for n in LENGTHS)
    # No growth worth the name from one doubling to the next: the constants hold for all lengths.
    assert low[4096] > 0.7 * low[512]
    assert high[4096] < 1.3 * high[512]
    for number in range(1, 9):
        means = found(table, "bounded scores", f"ratio in bin {number} of 8 of t, last n/8 rows, {where}")
        assert means[4096] == pytest.approx(1, abs=0.006)


def test_dilution(table):
    golden = {
        "0.5": (0.6554, 0.7628, 0.8842, 0.9595, 1.0),
        "1": (0.2974, 0.3656, 0.4662, 0.5677, 1.0),
        "1.1": (0.2310, 0.2832, 0.3591, 0.4336, 0.6228),
        "1.5": (0.0626, 0.0728, 0.0843, 0.0915, 0.0953),
        "2": (0.0082, 0.0088, 0.0093, 0.0094, 0.0094),
    }
    for exponent, expected in golden.items():
        quantity = f"far mass beyond 64 keys, exponent {exponent}"
        masses = found(table, "dilution", quantity)
        limit = found(table, "dilution", quantity, "limit")[512]
        assert [*(masses[n] for n in (512, 1024, 4096, 32768)), limit] == pytest.approx(expected, abs=5.01e-5)
        for name, side in (("lower", 1), ("upper", -1)):
            quantity = f"window mass of 64 keys ({name} bound), exponent {exponent}"
            errors = found(table, "dilution", quantity, "relative_error")
            assert set(errors) == {512, 1024, 4096, 32768, 10**6, 10**9}
            assert all(side * error > 0 for error in errors.values())


@pytest.mark.parametrize(
    ("arm", "short", "long"),
    [
        ("log-fixed", 0.4141, 0.6301),
        ("transport of constant scores, strength 0.5", 0.6117, 0.8689),
        ("transport of constant scores, strength 0.75", 0.4044, 0.6851),
        ("transport of constant scores, strength 0.8", 0.3552, 0.6328),
    ],
)
def test_far_mass_that_the_prior_fixes(table, arm, short, long):
    assert found(table, "far mass", arm) == pytest.approx({512: short, 4096: long}, abs=5.01e-5)


def test_margins(table):
    def of(result, tolerance, short, long, window):
        quantity = f"smallest exponent minus 1 for growth at most {tolerance:g} from {short}, window {window}"
        return found(table, result, quantity)[long]

    golden = {0.1: 0.1721, 0.05: 0.3361, 0.03: 0.4393, 0.02: 0.5154, 0.01: 0.6384, 0.005: 0.7556}
    assert {t: of("margin", t, 512, 4096, 64) for t in golden} == pytest.approx(golden, abs=5.01e-5)
    golden = {0.05: 0.5249, 0.02: 0.7780, 0.005: 1.1206}
    assert {t: of("margin at this scale", t, 64, 512, 8) for t in golden} == pytest.approx(golden, abs=5.01e-5)


def test_every_arm_and_edit_is_classified(table):
    rows = table[table["result"] == "classification"]
    names = [text.partition(":")[0] for text in rows["quantity"]]
    edited = [f"{key} + {edit}" for key, arm in ARMS.items() if arm.log_prior for edit in ("cap", "repair")]
    assert sorted(names) == sorted([*ARMS, *edited])
    answers = dict(zip(names, rows["value"], strict=True))
    assert (answers["alibi"], answers["alibi + cap"], answers["log-fixed + repair"]) == (1, 0, 1)
    assert math.isnan(answers["log"])
