"""The command at the end of an error message is one that Snakemake takes."""

from pathlib import Path

import pytest

from causal_priors.remedies import rebuild_command


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("results/nano/tables/summary.csv", " --config scale=nano"),
        ("elsewhere/nano/tables/summary.csv", " --config scale=nano results=elsewhere"),
        ("/some/place/micro/verdicts.json", " --config scale=micro results=/some/place"),
        ("results/corpus/default/card.json", ""),
    ],
)
def test_the_command_names_scale_and_results(path, options):
    assert rebuild_command(path) == f"snakemake --cores all --force {path}{options}"


def test_a_file_below_this_folder_is_named_from_here():
    path = Path.cwd() / "results" / "nano" / "verdicts.json"
    assert rebuild_command(path) == "snakemake --cores all --force results/nano/verdicts.json --config scale=nano"
