"""Fixtures of several test files: a planted study in a repository, made once, and copies of it to forge in."""

import shutil

import planted_study
import pytest
from audit_cases import git


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A repository with sealed protocols, and a study in it that no commit holds."""
    folder = tmp_path_factory.mktemp("audit")
    planted_study.write_register(folder / "preregistration")
    (folder / ".gitignore").write_text("results\ntexts\n")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "Seal")
    planted_study.write_study(folder)
    return folder


@pytest.fixture
def repository(whole, tmp_path):
    """A copy to forge in."""
    return shutil.copytree(whole, tmp_path / "copy")
