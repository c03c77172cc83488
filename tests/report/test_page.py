"""The page as a file: valid, complete, and holding the numbers of the tables it was made from."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pandas as pd
import planted
import planted_report
import pytest

from causal_priors.cli import main
from causal_priors.prereg.ledger import load_assumptions
from causal_priors.report.html import markdown
from causal_priors.report.html.board import number

VOID = {"meta", "link", "br", "hr", "img", "input", "circle", "rect", "line", "path", "use"}


class Outline(HTMLParser):
    """Reads a page and refuses what is not nested well; keeps ids, links, loaded addresses and text."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.links, self.loads, self.headings, self.words, self.rows = [], [], [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        assert len(values) == len(attributes), f"<{tag}> has an attribute twice"
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "a":
            self.links.append(values["href"])
        self.loads += [values[name] for name in ("src", "srcset", "data", "poster") if name in values]
        self.loads += [values[name] for name in ("href", "xlink:href") if name in values and tag != "a"]
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "svg" and values.get("aria-hidden") != "true":
            assert values.get("aria-label"), "a picture without words"
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"} and self.rows:
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data):
        self.words.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def outline(study):
    return Outline(study.page)


def test_the_page_is_well_formed(study, outline):
    assert study.page.startswith("<!doctype html>")
    assert 'lang="en"' in study.page
    assert len(outline.ids) == len(set(outline.ids))
    assert outline.headings.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(outline.headings, outline.headings[1:], strict=False))
    assert len(study.page) < 5_000_000


def test_every_link_leads_somewhere(study, outline):
    for link in outline.links:
        if link.startswith("#"):
            assert link[1:] in outline.ids
        else:
            assert (study.folder / link).is_file()


def test_nothing_is_loaded_from_elsewhere(study, outline):
    assert [address for address in outline.loads if not address.startswith("#")] == []
    assert "<script" not in study.page
    assert "@import" not in study.page
    assert re.findall(r"url\((?!#)", study.page) == []


def test_every_verdict_is_on_the_board_with_its_numbers(study, outline):
    words = " ".join("".join(outline.words).split())
    cells = {cell for row in outline.rows for cell in row}
    records = json.loads((study.folder / "verdicts.json").read_text())
    assert len(records) == 11
    for record in records:
        assert f"test-{record['test_id']}" in outline.ids
        for text in (
            record["claim"],
            record["rule"],
            record["chance_note"],
            record["reason"],
            record["source"]["note"],
        ):
            assert " ".join(text.split()) in words
        assert number(record["margin"]) in words
        for row in record["observed"]:
            for name in ("value", "comparator_value", "before", "after"):
                assert name not in row or f"{row[name]:.6f}" in cells


def test_dots_lie_on_the_side_that_the_verdict_says(study):
    cards = re.split(r'<article class="card \w+" id="test-', study.page)[1:]
    found = {card[:6]: card for card in cards}
    # Planted: everything holds but what needs the diverged run.
    assert 'class="short"' not in found["0001-a"]
    assert found["0001-a"].count('class="holding"') == 3
    assert found["0003-a"].count('class="holding"') == 22  # eleven seeds, against YaRN and beside it plain rope
    assert "diverged at step 3" in found["0004-a"]
    assert found["0004-b"].count('class="holding"') == 13
    assert found["0005-a"].count('class="holding"') == 6


def test_the_assumptions_of_each_test_are_spelled_out(study, outline):
    words = " ".join("".join(outline.words).split())
    for item in load_assumptions(planted_report.PREREGISTRATION).values():
        assert item.id in outline.ids
        assert " ".join(item.text.split()) in words


def test_every_swap_has_a_row(study, outline):
    rows = [row for row in outline.rows if len(row) == 10 and row[1] in {"cap", "repair"}]
    assert len(rows) == 30 - 1 + 1  # one checkpoint diverged, one is the reader's own
    for row in rows:
        sign = 1 if row[1] == "cap" else -1
        assert float(row[3]) - float(row[2]) == pytest.approx(0.01 * sign, abs=2e-6)
        assert float(row[7]) - float(row[6]) == pytest.approx(0.05 * sign, abs=2e-4)
        assert row[5] == row[9] == "as predicted"
    assert sum("(exploratory)" in row[0] for row in rows) == 4


def test_the_run_matrix_links_every_card(study, outline):
    links = {link for link in outline.links if link.startswith("runs/")}
    expected = {f"runs/{run.name(planted_report.SCALE)}/run.json" for run in [*planted.RUNS, planted_report.OWN]}
    assert links == expected
    assert len(planted.RUNS) == 82
    assert "diverged at step 3" in study.page
    assert any(row[1].startswith("root") and "exploratory" in row[1] for row in outline.rows if len(row) == 9)


def test_theory_seals_and_environment_are_there(study, outline):
    cells = {cell for row in outline.rows for cell in row}
    assert {"0.347213", "9.08%", "1,000,000,000", "iff α > 1"} <= cells
    seals = planted_report.PREREGISTRATION.glob("[0-9]*/seal.json")
    assert {json.loads(path.read_text())["digest"] for path in seals} <= cells
    words = "".join(outline.words)
    assert "2.13.0" in words
    assert planted_report.SCALE.digest() in words
    assert "1,234,567 tokens" in words


def test_directions_of_the_source_are_those_of_its_table(study, outline):
    source = pd.read_csv(study.folder / "tables/source.csv").fillna("")
    expected = source.loc[
        source["compared"] == "direction", ["part", "name", "arm", "quantity", "source", "here", "agrees"]
    ]
    assert [row for row in outline.rows if row and row[0] in set(expected["part"])] == expected.to_numpy().tolist()


def test_the_exploratory_page_is_included(study, outline):
    assert "Planted part" in "".join(outline.words)
    assert ["1", "x < y"] in outline.rows


def test_the_page_is_the_same_bytes_each_time(study, tmp_path):
    arguments = ["report", "--scale", "nano", "--preregistration", str(planted_report.PREREGISTRATION)]
    assert main([*arguments, "--folder", str(study.folder), "--out", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == study.page


def test_an_unfinished_study_is_told_in_one_line(tmp_path, capfd):
    arguments = ["report", "--scale", "nano", "--preregistration", str(planted_report.PREREGISTRATION)]
    assert main([*arguments, "--folder", str(tmp_path)]) == 2
    assert capfd.readouterr().err.startswith(f"error: {tmp_path}/verdicts.json: cannot be read")


def test_markdown_is_escaped_and_read():
    ((heading, body),) = markdown.sections(
        "# Top\n\n## A & B\n\nWith *this*,\n`x < y` and 2 * 3 * 4.\n\n* one\n* two\n"
    )
    assert heading == "A & B"
    assert "<p>With <em>this</em>, <code>x &lt; y</code> and 2 * 3 * 4.</p>" in body
    assert "<ul><li>one</li><li>two</li></ul>" in body


def test_figures_and_page_need_no_torch_and_the_page_no_matplotlib():
    script = (
        "import sys\nimport causal_priors.report.html.page\nassert 'matplotlib' not in sys.modules\n"
        "import causal_priors.report.draw\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
