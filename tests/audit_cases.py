"""What tests of the audit share: the planted study's report, and ways to forge one of its files with digests that fit."""

import os
import subprocess

from planted_study import SCALE

from causal_priors.artifacts import read_signed_json, write_signed_json
from causal_priors.audit.stage import audit
from causal_priors.tables import read_metadata, read_table, write_table

RUN, OTHER = "S-cable-L16-s0", "S-cable-L16-s1"


def git(folder, *arguments, day="2026-11-30"):
    """Run git; a commit is made on `day`."""
    command = ["git", "-C", str(folder), "-c", "user.name=test", "-c", "user.email=test@localhost", *arguments]
    dates = dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), f"{day}T12:00:00+0000")
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **dates})


def report_of(repository, folder="results/nano"):
    return audit(repository / folder, SCALE, repository / "preregistration", repository / "texts")


def broken(report):
    """{link: its findings in one text} of what is broken."""
    return {link.name: "\n".join(map(str, link.broken)) for link in report.links if link.broken}


def rewrite(path, change):
    """Put changed rows into a table, with all of its metadata and a digest that fits."""
    frame, metadata = read_table(path, "evaluation"), read_metadata(path, "evaluation")
    frame = change(frame)
    columns = {name: frame[name].tolist() for name in frame.columns}
    write_table(columns, path, "evaluation", {key: metadata[key] for key in ("status", "card")})


def edit_card(path, change):
    """Change a run card and sign it again."""
    card = read_signed_json(path)
    del card["digest"]
    change(card)
    write_signed_json(path, card)
