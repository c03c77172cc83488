"""The planted study, once for all tests of the report, with its figures and its page."""

from pathlib import Path
from types import SimpleNamespace

import planted_report
import pytest

from causal_priors.report.data import gather
from causal_priors.report.draw import draw_all
from causal_priors.report.html.page import report_stage


@pytest.fixture(scope="session")
def study(tmp_path_factory):
    """folder, tables, and page (text) of the planted study."""
    folder = Path(tmp_path_factory.mktemp("planted"))
    evaluations = planted_report.write_study(folder)
    tables = gather(
        planted_report.SCALE,
        planted_report.PREREGISTRATION,
        evaluations,
        folder / "tables/summary.csv",
        folder / "theory/theory.parquet",
        folder / "theory/margins.json",
    )
    tables.swaps.to_csv(folder / "tables/swaps.csv", index=False)
    draw_all(tables, folder / "figures")
    report_stage(planted_report.SCALE, planted_report.PREREGISTRATION, folder, folder / "report.html")
    page = (folder / "report.html").read_text(encoding="utf-8")
    return SimpleNamespace(folder=folder, tables=tables, page=page, evaluations=evaluations)
