"""The pictures that the repository keeps: small, whole, and of the rules and figures that there are; the README's links."""

import re

import pytest

from causal_priors.config import ROOT
from causal_priors.report.figures import FIGURES

KEPT = ROOT / "results" / "reference" / "micro" / "figures"


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_each_figure_is_kept_small_and_loads_nothing(figure):
    text = (KEPT / f"{figure.name}.svg").read_text(encoding="utf-8")
    assert len(text.encode()) < 200_000
    assert text.rstrip().endswith("</svg>")
    assert re.findall(r'(?:href|src)="(?!#)', text) == []


def test_the_kept_figures_are_all_and_light():
    files = sorted(KEPT.iterdir())
    assert [file.stem for file in files] == sorted(figure.name for figure in FIGURES)
    assert sum(file.stat().st_size for file in files) < 1_500_000


def test_the_rule_graph_shows_every_rule_of_the_study():
    text = (ROOT / "docs" / "rulegraph.svg").read_text(encoding="utf-8")
    shown = set(re.findall(r"<text[^>]*>([^<]+)</text>", text))
    # Rules by name in the files; those that only name targets are not part of the whole study's graph.
    files = (ROOT / "workflow" / "rules").glob("*.smk")
    rules = {name for file in files for name in re.findall(r"^rule (\w+):", file.read_text(), flags=re.MULTILINE)}
    aside = {name for name in rules if name.startswith(("experiment_", "goat"))}
    assert shown == (rules - aside) | {"all"}


def test_links_and_pictures_of_the_readme_lead_somewhere():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    # As GitHub makes them: lower case, no punctuation, a dash for each space.
    anchors = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in re.findall(r"(?m)^#+ (.+)$", text)}
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 30
    for link in links:
        if link.startswith("#"):
            assert link[1:] in anchors
        elif not link.startswith("https://"):
            assert (ROOT / link).exists(), link
