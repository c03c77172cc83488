"""Each figure from planted tables: what it shows are the numbers planted, also where runs or arms are missing."""

import dataclasses
import re

import numpy as np
import pandas as pd
import planted
import planted_report
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from causal_priors.arms import ARMS
from causal_priors.report.figures import FIGURES, families, step_times, theme
from causal_priors.report.figures.save import svg
from causal_priors.report.html.inline import inline_svg

NAMES = [figure.name for figure in FIGURES]
SEEDS = {"rope": 3, "log": 3, "fox": 1, "cable": 2}


def text_of(picture):
    return re.findall(r"<text[^>]*>([^<]*)</text>", picture)


def drawn(study, name, layout="wide"):
    folder = study.folder / "figures" / ("" if layout == "wide" else layout)
    return (folder / f"{name}.svg").read_text(encoding="utf-8")


def redraw(tables, name, layout=theme.WIDE):
    figure = next(figure for figure in FIGURES if figure.name == name)
    with theme.style():
        return svg(figure.draw(tables, layout))


def without(tables, chosen):
    """The tables without the rows of which `chosen` is true, in every frame of runs."""
    frames = ("lengths", "positions", "swaps", "exponents", "training", "step_times")
    return dataclasses.replace(
        tables,
        **{
            name: frame[~chosen(frame)].reset_index(drop=True)
            for name in frames
            if (frame := getattr(tables, name)) is not None
        },
    )


def test_every_figure_lies_there_in_all_forms(study):
    for name in NAMES:
        assert (study.folder / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        for layout in ("wide", "narrow"):
            assert "<svg" in drawn(study, name, layout)
            assert len(drawn(study, name, layout)) < 200_000


@pytest.mark.parametrize("name", ["swaps", "margins"])
def test_a_figure_is_the_same_bytes_each_time(study, name):
    picture = drawn(study, name)
    assert redraw(study.tables, name) == picture
    assert "dc:date" not in picture


def test_losses_by_length_are_the_planted_ones(study):
    words = text_of(drawn(study, "loss_length"))
    for arm, loss in (planted.LOSS | {"kerple": planted.OTHER_LOSS, "root": planted.OTHER_LOSS}).items():
        assert f"{arm} {loss:.2f}" in words
    assert "rope + yarn 5.10" in words


def test_losses_by_position_are_the_planted_ones(study):
    words = text_of(drawn(study, "loss_position"))
    assert {"cable 4.50", "rope 5.00", "rope + yarn 5.10"} <= set(words)


def test_far_masses_are_the_planted_ones(study):
    words = text_of(drawn(study, "far_mass"))
    # .3, and .1 (or what is planted for the margin arms) more at 8L.
    assert {"rope 0.40", "log-margin-t050 0.34", "log-margin-t005 0.30", "root 0.40"} <= set(words)


def test_every_seed_is_a_point(study):
    with theme.style():
        figure = next(figure for figure in FIGURES if figure.name == "loss_length").draw(study.tables, theme.WIDE)
    for arm, seeds in SEEDS.items():
        looks = families.look(arm)
        panel = next(
            axes
            for axes in figure.axes
            if any(text.get_text().startswith(f"{arm} ") for text in axes.texts)
            and "size S" in axes.get_title("left")
            and (arm != "rope" or "Rotations" in axes.get_title("left"))
        )
        points = [line for line in panel.lines if line.get_linestyle() == "None" and line.get_color() == looks.colour]
        variants = 2 if arm == "rope" else 1
        assert sum(len(line.get_xdata()) for line in points) == 4 * seeds * variants


def test_swaps_show_every_checkpoint(study):
    words = text_of(drawn(study, "swaps"))
    lost = 1  # the diverged run, which cap was planned for
    assert words.count("+0.0100") == 17 - lost + 1  # and the reader's own arm
    assert words.count("−0.0100") == 13
    assert words.count("+0.050") == 17 - lost + 1
    assert words.count("−0.050") == 13
    assert sum(word.startswith("log C s") or "log  C  s" in word for word in words) == 3


def test_the_census_counts_heads_above_one(study):
    words = text_of(drawn(study, "census"))
    arms = {run.arm for run in planted.RUNS} & planted_report.WITH_EXPONENTS
    assert "kerple" in arms
    assert words.count("50% above one") == len(arms) + 1  # log is trained at both sizes


def test_training_tells_the_distance_from_one(study):
    words = text_of(drawn(study, "training"))
    # |.5 - 1| and |1.5 - 1| before; .46 and .54 after.
    assert "mean |α − 1|: 0.500 → 0.500" in words
    assert not any(word.startswith("log-fixed") for word in words)


def test_step_times_are_ratios_to_rope(study):
    ratio = step_times.ratios(study.tables).groupby("arm")["ratio"].mean()
    # Planted: .01 and .03 seconds, ten percent more for each further seed; rope and ot-75 have three seeds.
    assert ratio["ot-75"] == pytest.approx(3.0)
    assert ratio["rope"] == pytest.approx(1.0)
    assert ratio["alibi"] == pytest.approx(0.02 * 1.05 / (0.01 * 1.1))
    words = text_of(drawn(study, "step_times"))
    assert any(word.startswith("3.00×") for word in words)
    assert any("0.94" in word or "6.16×" in word for word in words)


def test_the_transport_figure_reads_the_theory(study):
    words = " ".join(text_of(drawn(study, "transport")))
    assert "40.0% (i = 512), 10.0% (i = 4096)" in words


def test_margins_show_tolerance_and_choice(study):
    words = " ".join(text_of(drawn(study, "margins")))
    for arm, tolerance in (("log-margin-t050", 0.05), ("log-margin-t020", 0.02), ("log-margin-t005", 0.005)):
        assert f"τ = {tolerance:g} → δ = {study.tables.margins[arm]:.3f}" in words


def test_a_diverged_run_is_named_on_the_figures(study):
    for name in ("loss_length", "swaps", "census"):
        assert f"{planted_report.DIVERGED} diverged at step 3" in " ".join(text_of(drawn(study, name)))


def test_own_arms_are_called_exploratory(study):
    assert any("Exploratory arms" in word for word in text_of(drawn(study, "loss_length")))
    assert any("root (exploratory)" in word for word in text_of(drawn(study, "step_times")))
    assert study.tables.swaps.set_index("arm").loc["root", "status"] == "exploratory"


MISSING = {
    "rope": lambda frame: frame["arm"] == "rope",
    "size C": lambda frame: frame["size"] == "C",
    "all but one run": lambda frame: frame["run"] != "S-rope-L16-s0",
    "everything": lambda frame: pd.Series(True, index=frame.index),
    "own arm": lambda frame: ~frame["arm"].isin(list(ARMS)),
}


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("name", NAMES)
def test_figures_are_drawn_from_what_is_there(study, name, missing):
    fewer = without(study.tables, MISSING[missing])
    picture = redraw(dataclasses.replace(fewer, absent=("S-rope-L16-s1 (missing)",)), name, theme.NARROW)
    words = " ".join(text_of(picture))
    assert "nan" not in picture.lower()
    assert name == "transport" or "S-rope-L16-s1 (missing)" in words
    if missing == "own arm":
        assert "root" not in words


def test_two_figures_on_a_page_share_no_id(study):
    one, other = (inline_svg(drawn(study, "census"), prefix, "Census") for prefix in ("a", "b"))
    ids = [set(re.findall(r'\bid="([^"]+)"', text)) for text in (one, other)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for text, known in zip((one, other), ids, strict=True):
        referred = set(re.findall(r'href="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text))
        assert referred == known
        # Every colour follows the reader's scheme, and every font the page.
        assert not re.search(r"#[0-9a-f]{6}", text)
        assert "font-family" not in text


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12).map(sorted), st.floats(0.1, 20))
def test_labels_move_as_little_as_keeps_them_apart(places, gap):
    moved = np.array(theme.spread(places, gap, -1e9, 1e9))
    ranks = np.arange(len(places)) * gap
    assert np.allclose(moved - ranks, isotonic_regression(np.array(places) - ranks).x, atol=1e-9)


@given(st.lists(st.floats(-50, 150), min_size=1, max_size=8).map(sorted))
def test_labels_stay_inside_where_there_is_room(places):
    moved = np.array(theme.spread(places, 10.0, 0.0, 100.0))
    assert moved.min() >= -1e-9
    assert moved.max() <= 100 + 1e-9
    assert (np.diff(moved) >= 10 - 1e-9).all()


def test_labels_that_touch_are_set_in_together():
    _, (place,) = theme.panels(theme.WIDE, 1, 2.0)
    place.set(xlim=(0, 2), ylim=(0, 1))
    # The middle one of the three stays where it is, and the hairlines of the others pass it.
    heights = {"low": 0.1, "one": 0.69, "two": 0.7, "three": 0.71}
    theme.label_ends(place, 1.0, [theme.Label(y, name, "black") for name, y in heights.items()])
    starts = {text.get_text(): text.get_position()[0] for text in place.texts}
    assert starts["one"] == starts["two"] == starts["three"] > starts["low"] > 0.5
    assert len(place.lines) == 3


def test_numbers_too_small_for_their_digits_are_written_in_powers():
    assert theme.signed(-0.0123, 3) == "−0.012"
    assert theme.signed(3e-14, 3) == "+3e−14"
    assert theme.signed(0.0) == "+0.000"
