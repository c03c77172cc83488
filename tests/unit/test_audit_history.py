"""The audit's reading of git: what is hidden from git itself is caught, and nothing that a repository names is run."""

import shutil
import stat
import subprocess

import planted_study
import pytest
from audit_cases import broken, git, report_of
from test_audit import ease

from causal_priors.audit.findings import BROKEN, CANNOT_TELL, SOUND, Report
from causal_priors.audit.git import Git
from causal_priors.audit.scale_history import check_scale
from causal_priors.config import load_scale, scale_file
from causal_priors.prereg.seal import append_amendment, seal

LINK = "seals before results (git)"


def seal_again(register):
    """Every seal made anew, after an eased threshold."""
    ease(register)
    for path in register.glob("*/seal.json"):
        path.unlink()
    seal(register, "2026-11-29")


def links_of(report, name):
    return next(link for link in report.links if link.name == name)


def test_nothing_that_a_repository_names_is_run(repository, tmp_path):
    """Filters, signature checkers, differs, hooks, monitors, pagers and transports each leave a trace where they run."""
    traces = tmp_path / "traces"
    traces.mkdir()
    program = tmp_path / "program.sh"
    program.write_text(f'#!/bin/sh\ntouch "{traces}/$(basename "$0")-ran"\ncat\nexit 0\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    git(repository, "add", "--force", "results/nano/verdicts.json")
    git(repository, "commit", "--quiet", "-m", "Results")
    aliases = [("alias.rev-list", f"!{program}"), ("alias.rev-parse", f"!{program}"), ("core.pager", str(program))]
    transports = [("core.sshCommand", str(program)), ("remote.origin.url", f"ext::{program}")]
    transports += [("remote.origin.promisor", "true"), ("extensions.partialClone", "origin")]
    transports += [("protocol.ext.allow", "always"), ("core.repositoryformatversion", "1")]
    for key, value in [
        ("filter.x.clean", str(program)),
        ("filter.x.smudge", str(program)),
        ("filter.x.process", str(program)),
        ("diff.external", str(program)),
        ("diff.x.textconv", str(program)),
        ("diff.x.command", str(program)),
        ("log.showSignature", "true"),
        ("gpg.program", str(program)),
        ("core.fsmonitor", str(program)),
        ("core.hooksPath", str(tmp_path)),
        *aliases,
        *transports,
    ]:
        git(repository, "config", key, value)
    shutil.copy(program, tmp_path / "post-index-change")
    (repository / ".gitattributes").write_text("*.json filter=x diff=x\n*.yaml filter=x diff=x\n")
    # An object that is not there, which a partial clone would fetch.
    listed = subprocess.run(
        ["git", "-C", repository, "rev-parse", "HEAD:results/nano/verdicts.json"], capture_output=True, check=True
    )
    blob = listed.stdout.decode().strip()
    (repository / ".git/objects" / blob[:2] / blob[2:]).unlink()
    seals = sorted(repository.glob("preregistration/*/seal.json"))
    for path in seals:
        # A time that differs from the index's makes git look into the file, through its filter.
        path.touch()
    reader = Git(repository / "preregistration")
    commit = reader.touched(repository / "results/nano/verdicts.json")[-1]
    assert reader.held(commit, repository / "results/nano/verdicts.json") is None
    report = report_of(repository)
    assert not list(traces.iterdir())
    assert report.outcome == SOUND, report.text()


@pytest.mark.parametrize("hidden", ["--assume-unchanged", "--skip-worktree"])
def test_a_seal_made_again_and_hidden_in_the_index_is_caught(repository, hidden):
    register = repository / "preregistration"
    seal_again(register)
    planted_study.score(repository / "results/nano")
    git(repository, "update-index", hidden, *(str(path) for path in register.glob("*/*")))
    report = report_of(repository)
    assert report.outcome == BROKEN
    assert "seal.json: differs from the one in HEAD" in broken(report)[LINK]


def test_a_seal_made_again_and_put_in_the_place_of_the_committed_one_is_caught(repository):
    register = repository / "preregistration"
    before = {path: path.relative_to(repository) for path in register.glob("*/*") if path.is_file()}
    names = [name.as_posix() for name in before.values()]
    old = [_id_of(repository, f"HEAD:{name}") for name in names]
    seal_again(register)
    planted_study.score(repository / "results/nano")
    for name, blob in zip(names, old, strict=True):
        new = _id_of(repository, "--", name, command="hash-object")
        if new != blob:
            git(repository, "hash-object", "-w", "--", name)
            git(repository, "replace", blob, new)
    report = report_of(repository)
    assert report.outcome == BROKEN
    assert "seal.json: differs from the one in HEAD" in broken(report)[LINK]


def _id_of(repository, *arguments, command="rev-parse"):
    done = subprocess.run(["git", "-C", repository, command, *arguments], capture_output=True, check=True)
    return done.stdout.decode().strip()


def test_a_repository_made_of_an_archive_has_no_order(repository):
    shutil.rmtree(repository / ".git")
    git(repository, "init", "--quiet")
    git(repository, "add", ".")
    git(repository, "add", "--force", "results/nano/verdicts.json")
    git(repository, "commit", "--quiet", "-m", "Start")
    report = report_of(repository)
    assert report.outcome == CANNOT_TELL, report.text()
    assert "stands beside results in the first commit" in report.text()
    # Results beside seals in a later commit are as before: the seal was written too late.
    seal_again(repository / "preregistration")
    planted_study.score(repository / "results/nano")
    git(repository, "commit", "--quiet", "-am", "Both")
    assert "after or beside results in" in broken(report_of(repository))[LINK]


AMENDMENTS = "amendments in the history (git)"


def amend(repository, day, reason="A typo in a note of this test."):
    append_amendment(repository / "preregistration/0002-position-screening", day, ["0002-a"], reason)
    planted_study.score(repository / "results/nano")


def test_an_amendment_that_no_commit_holds_cannot_be_dated(repository):
    amend(repository, "2026-11-29")
    report = report_of(repository)
    assert report.outcome == CANNOT_TELL, report.text()
    assert "amendments.yaml: the amendment of 2026-11-29 on 0002-a is in no commit" in report.text()
    git(repository, "commit", "--quiet", "-am", "Amend")
    report = report_of(repository)
    assert report.outcome == SOUND, report.text()
    assert "0002-position-screening: the amendment of 2026-11-29 on 0002-a first stands in" in report.text()


def test_an_amendment_dated_back_is_caught(repository):
    amend(repository, "2026-11-29")
    git(repository, "commit", "--quiet", "-am", "Amend", day="2026-12-01")
    found = broken(report_of(repository))
    assert found.keys() == {AMENDMENTS}
    assert "of 2026-12-01: it was dated back" in found[AMENDMENTS]


def test_an_amendment_after_results_that_is_dated_before_them_is_told(repository):
    git(repository, "add", "--force", "results/nano/verdicts.json")
    git(repository, "commit", "--quiet", "-m", "Results")
    amend(repository, "2026-11-29")
    git(repository, "commit", "--quiet", "-am", "Amend")
    report = report_of(repository)
    assert report.outcome == CANNOT_TELL, report.text()
    assert "after results of" in report.text()
    assert "whether it was written before them cannot be told" in report.text()


def test_an_amendment_dropped_or_rewritten_with_a_chain_that_fits_is_caught(repository):
    path = repository / "preregistration/0002-position-screening/amendments.yaml"
    empty = path.read_text()
    amend(repository, "2026-11-30")
    git(repository, "commit", "--quiet", "-am", "Amend")
    path.write_text(empty)
    amend(repository, "2026-11-30", "Other words than the first ones.")
    git(repository, "commit", "--quiet", "-am", "Amend again")
    found = broken(report_of(repository))
    assert found.keys() == {AMENDMENTS}
    assert "no longer holds the amendment of 2026-11-30 that" in found[AMENDMENTS]


def scale_report(path):
    report = Report("results/nano", "nano")
    check_scale(report, load_scale(path), path)
    return report


def test_a_scale_that_changed_after_results_or_in_no_commit_is_told(repository):
    path = repository / "workflow/config/scales/nano.yaml"
    path.parent.mkdir(parents=True)
    shutil.copy(scale_file("nano"), path)
    report = scale_report(path)
    assert report.outcome == CANNOT_TELL
    assert "nano.yaml: is in no commit" in report.text()
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "Scale")
    git(repository, "add", "--force", "results/nano/verdicts.json")
    git(repository, "commit", "--quiet", "-m", "Results")
    assert scale_report(path).outcome == SOUND
    # Words for readers change nothing that a result rests on.
    path.write_text(f"# One more comment.\n{path.read_text()}")
    assert "nano.yaml: differs from the one in HEAD" in scale_report(path).text()
    git(repository, "commit", "--quiet", "-am", "Comment")
    assert scale_report(path).outcome == SOUND
    path.write_text(path.read_text().replace("minimum_blocks: 8", "minimum_blocks: 7"))
    git(repository, "commit", "--quiet", "-am", "Another number")
    report = scale_report(path)
    assert report.outcome == CANNOT_TELL
    assert "after or beside results in" in report.text()
