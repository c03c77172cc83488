"""Colours against their paper, and from one another, as people with and without full colour vision see them."""

from itertools import combinations

import numpy as np
import pytest

from causal_priors.report.figures.colours import DARK, LIGHT, PALETTE

# Viénot-like projections of Machado, Oliveira and Fernandes (2009) at full severity, on linear RGB.
VISION = {
    "full": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
# From linear sRGB to CIE XYZ (D65), and its white.
XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]])
WHITE = np.array([0.95047, 1.0, 1.08883])


def linear(colour):
    value = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    low, high = sorted(linear(colour) @ [0.2126, 0.7152, 0.0722] for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb):
    scaled = XYZ @ np.clip(rgb, 0, 1) / WHITE
    f = np.where(scaled > 0.008856, np.cbrt(scaled), 7.787 * scaled + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("scheme", [LIGHT, DARK])
@pytest.mark.parametrize("name", [*PALETTE, "ink", "muted"])
def test_text_colours_stand_against_the_paper(scheme, name):
    assert contrast(scheme[name], scheme["paper"]) >= 4.5


@pytest.mark.parametrize("scheme", [LIGHT, DARK])
@pytest.mark.parametrize("vision", VISION)
def test_palette_colours_stay_apart(scheme, vision):
    seen = [lab(np.array(VISION[vision]) @ linear(scheme[name])) for name in (*PALETTE, "ink")]
    # Ten units of CIE76 are several just noticeable differences.
    assert min(np.linalg.norm(one - other) for one, other in combinations(seen, 2)) > 20


@pytest.mark.parametrize("scheme", [LIGHT, DARK])
def test_every_colour_has_both_forms_and_is_its_own(scheme):
    assert LIGHT.keys() == DARK.keys()
    assert len(set(scheme.values())) == len(scheme)


def test_the_contrast_here_is_the_published_one():
    # WCAG's own extremes, and #767676 on white, which is known to be just above 4.5.
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)
