"""The stage of the page: everything a finished study has, as one HTML file.

Nothing is loaded from elsewhere: style, figures and text are in the file. Links lead to places in it, and to run cards
beside it, which are there as long as the page lies in the study's folder.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from causal_priors import __version__
from causal_priors.artifacts import read_signed_json, sha256_file, write_text
from causal_priors.errors import refuse
from causal_priors.prereg.ledger import load_assumptions
from causal_priors.prereg.protocol import registered_runs
from causal_priors.prereg.seal import load_sealed
from causal_priors.prereg.verdict_tables import DIRECTION, NOTHING, read_verdicts
from causal_priors.report.data import read_theory, resolutions
from causal_priors.report.figures import FIGURES
from causal_priors.report.figures.colours import DARK, LIGHT
from causal_priors.report.html import markdown, sections
from causal_priors.report.html.board import experiments, tally
from causal_priors.report.html.inline import inline_svg
from causal_priors.scale import Scale

TEMPLATES = Path(__file__).parent
READ = ("verdicts.json", "tables/summary.csv", "tables/swaps.csv", "tables/source.csv", "theory/theory.parquet")
_STATUS = {"test": NOTHING, "exploratory": DIRECTION}
_REMEDY = "run the pipeline first"


def report_stage(scale: Scale, preregistration: str | Path, folder: Path, out: Path) -> None:
    """Write the page of the finished study in `folder` to `out`, which should lie in that folder.

    Raises `UserError` where something of the study is missing, damaged or of another scale, or a seal has changed.
    """
    write_text(out, page(scale, preregistration, folder))


def page(scale: Scale, preregistration: str | Path, folder: Path) -> str:
    """Return the page. Raises `UserError` as `report_stage` does."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    context = _context(scale, preregistration, folder)
    style = Markup(f"{_variables()}\n{(TEMPLATES / 'page.css').read_text(encoding='utf-8')}")
    return environment.get_template("page.html.j2").render(**context, style=style)


def _variables() -> str:
    """Colours of both schemes as CSS variables, the ones that the figures are drawn in."""
    light, dark = ("; ".join(f"--{name}: {colour}" for name, colour in scheme.items()) for scheme in (LIGHT, DARK))
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


def _context(scale: Scale, preregistration: str | Path, folder: Path) -> dict[str, Any]:
    protocols, digests, amendments = load_sealed(preregistration)
    records, ledger = read_verdicts(folder / "verdicts.json", scale.name), load_assumptions(preregistration)
    lengths, theory = _csv(folder / "tables/summary.csv"), read_theory(folder / "theory/theory.parquet")
    source = _csv(folder / "tables/source.csv")
    registered = registered_runs(protocols)
    names = [run.name(scale) for run in registered] + sorted(set(lengths["run"]))
    cards = {name: read_signed_json(path) for name in names if (path := folder / "runs" / name / "run.json").is_file()}
    tests = {record["test_id"]: record for record in records}
    return {
        "scale": scale,
        "status": _STATUS.get(scale.status, "").format(scale=scale.name).replace("`", ""),
        "version": __version__,
        "tally": tally(records),
        "experiments": experiments(records, protocols, ledger),
        "evaluated": sum(record["verdict"] != "not evaluated" for record in records),
        "registered_tests": len(records),
        "figures": [
            {
                "figure": figure,
                "tests": [tests[test] for test in figure.tests if test in tests],
                "wide": _figure(folder / "figures" / f"{figure.name}.svg", figure.name, figure.title),
                "narrow": _figure(folder / "figures/narrow" / f"{figure.name}.svg", f"n-{figure.name}", figure.title),
            }
            for figure in FIGURES
        ],
        "theory": sections.theory_tables(theory),
        "classification": sections.classification(theory),
        "swaps": sections.swap_table(_csv(folder / "tables/swaps.csv"), resolutions(protocols)),
        "directions": source[source["compared"] == "direction"].fillna("").to_dict("records"),
        "numbers": source[source["compared"] == "number"].fillna("").to_dict("records"),
        "matrix": sections.run_matrix(registered, lengths, cards, scale),
        "absent": [name for name in dict.fromkeys(names) if cards.get(name, {}).get("status") != "finished"],
        "arms": sections.arm_rows(lengths),
        "ledger": list(ledger.values()),
        "seals": sections.seal_rows(protocols, digests, amendments),
        "environment": sections.environment(cards.values()),
        "scale_rows": sections.scale_rows(scale),
        "scale_digest": scale.digest(),
        "shards": _shards(folder),
        "extra": _exploratory(folder / "tables/exploratory/exploratory.md"),
        "inputs": [(name, sha256_file(folder / name)) for name in READ],
    }


def _csv(path: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise refuse(f"cannot be read ({error})", file=path, remedy=_REMEDY) from error


def _figure(path: Path, prefix: str, title: str) -> Markup:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise refuse(f"cannot be read ({error.strerror})", file=path, remedy=_REMEDY) from error
    return Markup(inline_svg(text, prefix, title))


def _exploratory(path: Path) -> list[tuple[str, Markup]]:
    """The parts of the exploratory page, if there is one."""
    if not path.is_file():
        return []
    return [(heading, Markup(body)) for heading, body in markdown.sections(path.read_text(encoding="utf-8"))]


def _shards(folder: Path) -> Mapping[str, Any]:
    card: Mapping[str, Any] = read_signed_json(folder / "data/shards/card.json", remedy=_REMEDY)
    return card
