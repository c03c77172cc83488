"""Datasets of the hub: the real client against a server on this machine that answers as the hub does."""

import hashlib
import http.server
import json
import re
import shlex
import sys
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from causal_priors.cli import main, parser
from causal_priors.config import ROOT
from causal_priors.data import hub
from causal_priors.data.documents import iter_documents
from causal_priors.data.hub import fetch_dataset
from causal_priors.errors import UserError

COMMIT, LATER = "1" * 40, "2" * 40


class Hub(http.server.ThreadingHTTPServer):
    """One dataset, `someone/texts`. files: by name; served: what is sent instead; asked: GET requests for files."""

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), Answer)
        self.files, self.served, self.asked, self.head = files, {}, [], COMMIT
        self.endpoint = f"http://127.0.0.1:{self.server_port}"

    def listing(self, commit):
        siblings = []
        for name, data in self.files.items():
            one = {"rfilename": name, "size": len(data), "blobId": git_digest(data)}
            if name.endswith(".parquet"):
                one["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            siblings.append(one)
        return {"id": "someone/texts", "sha": commit, "siblings": siblings, "private": False, "tags": []}


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(send=True)

    def do_HEAD(self):
        self.answer(send=False)

    def answer(self, send):
        at = self.server
        path = self.path.partition("?")[0].strip("/").split("/")
        if path[:5] == ["api", "datasets", "someone", "texts", "revision"] and path[5] in ("main", COMMIT, LATER):
            commit = at.head if path[5] == "main" else path[5]
            return self.reply(200, json.dumps(at.listing(commit)).encode(), {"Content-Type": "application/json"}, send)
        name = "/".join(path[5:])
        if path[:4] == ["datasets", "someone", "texts", "resolve"] and name in at.files:
            if send:
                at.asked.append(name)
            data = at.served.get(name, at.files[name])
            etag = hashlib.sha256(at.files[name]).hexdigest()
            return self.reply(200, data, {"ETag": f'"{etag}"', "X-Repo-Commit": path[4]}, send)
        return self.reply(404, b"", {"X-Error-Code": "RepoNotFound"}, send)

    def reply(self, code, data, headers, send):
        self.send_response(code)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if send:
            self.wfile.write(data)

    def log_message(self, *_):
        pass


def git_digest(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def parquet(*texts):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": list(texts)}), sink)
    return sink.getvalue().to_pybytes()


@pytest.fixture
def server():
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is optional")
    files = {
        "README.md": b"# Texts\n",
        "sample/10BT/000.parquet": parquet("one", "two"),
        "sample/10BT/001.parquet": parquet("three"),
        "sample/more.jsonl": b'{"text": "four"}\n',
    }
    with Hub(files) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.shutdown()


def fetch(server, folder, *include, **options):
    fetch_dataset("someone/texts", folder, include or ("*.parquet",), endpoint=server.endpoint, **options)


def test_the_files_that_were_asked_for_become_a_corpus(server, tmp_path, capsys):
    fetch(server, tmp_path / "texts", "sample/10BT/*.parquet", "*.jsonl")
    assert [one.text for one in iter_documents(tmp_path / "texts")] == ["one", "two", "three", "four"]
    card = json.loads((tmp_path / "texts" / ".hub.json").read_text())
    assert card["commit"] == COMMIT
    assert card["files"]["sample/10BT/000.parquet"] == {
        "bytes": len(server.files["sample/10BT/000.parquet"]),
        "sha256": hashlib.sha256(server.files["sample/10BT/000.parquet"]).hexdigest(),
    }
    assert card["files"]["sample/more.jsonl"]["git"] == git_digest(server.files["sample/more.jsonl"])
    assert "3 files of someone/texts at 1111" in capsys.readouterr().err


def test_a_second_call_stays_at_the_commit_and_fetches_what_is_missing_or_damaged(server, tmp_path):
    folder = tmp_path / "texts"
    fetch(server, folder)
    server.head = LATER
    server.asked.clear()
    fetch(server, folder)
    assert server.asked == []
    data = bytearray((folder / "sample/10BT/000.parquet").read_bytes())
    data[20] ^= 1
    (folder / "sample/10BT/000.parquet").write_bytes(data)
    (folder / "sample/10BT/001.parquet").unlink()
    fetch(server, folder)
    assert sorted(server.asked) == ["sample/10BT/000.parquet", "sample/10BT/001.parquet"]
    assert json.loads((folder / ".hub.json").read_text())["commit"] == COMMIT
    assert [one.text for one in iter_documents(folder)] == ["one", "two", "three"]


def test_a_file_that_comes_damaged_is_refused_and_does_not_stay(server, tmp_path):
    name = "sample/10BT/001.parquet"
    server.served[name] = bytes(len(server.files[name]))
    with pytest.raises(UserError, match=r"someone/texts/sample/10BT/001\.parquet: came damaged"):
        fetch(server, tmp_path / "texts")
    assert not (tmp_path / "texts" / name).exists()
    server.served.clear()
    server.asked.clear()
    fetch(server, tmp_path / "texts")
    assert server.asked == [name]


@pytest.mark.parametrize("change", ["dataset", "include", "revision"])
def test_a_folder_that_holds_something_else_is_not_mixed_with_it(server, tmp_path, change):
    fetch(server, tmp_path / "texts")
    asked = {"dataset": "someone/texts", "include": ("*.parquet",), "revision": "main"}
    asked |= {change: {"dataset": "someone/else", "include": ("*.jsonl",), "revision": LATER}[change]}
    with pytest.raises(UserError, match=rf"\.hub\.json: {change} = .*: the folder was begun with another one"):
        fetch_dataset(folder=tmp_path / "texts", endpoint=server.endpoint, **asked)


def test_no_file_that_fits_is_told_with_those_that_are_there(server, tmp_path):
    with pytest.raises(
        UserError, match=r"someone/texts: has no file that fits \*\.zst; files there: README\.md, sample"
    ):
        fetch(server, tmp_path / "texts", "*.zst")


@pytest.mark.parametrize("name", ["../up.parquet", "/root.parquet", "a/../../up.parquet", ".hidden/a.parquet"])
def test_a_name_that_leads_elsewhere_is_refused(server, tmp_path, name):
    server.files[name] = parquet("x")
    with pytest.raises(UserError, match="leads elsewhere or is hidden"):
        fetch(server, tmp_path / "deep" / "texts")
    assert not list(tmp_path.rglob("*.parquet"))


def test_what_is_no_corpus_file_is_refused(server, tmp_path):
    with pytest.raises(UserError, match=r"'README\.md': is no corpus file; choose files that end in \.txt"):
        fetch(server, tmp_path / "texts", "*")


def test_a_dataset_that_is_not_there(server, tmp_path):
    with pytest.raises(UserError, match=r"nobody/nothing: cannot be fetched \(.*; is the name right.*corpus:"):
        fetch_dataset("nobody/nothing", tmp_path / "texts", endpoint=server.endpoint)


def test_no_name_of_a_dataset(tmp_path):
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is optional")
    with pytest.raises(UserError, match="a b c: cannot be fetched"):
        fetch_dataset("a b c", tmp_path / "texts")


def test_no_network_ends_in_one_line_with_the_remedy(server, tmp_path, monkeypatch, capfd):
    endpoint = server.endpoint
    server.shutdown()
    server.server_close()
    real = hub.fetch_dataset
    monkeypatch.setattr(hub, "fetch_dataset", lambda *given: real(*given, endpoint=endpoint))
    assert main(["fetch", "someone/texts", "--out", str(tmp_path / "texts")]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: someone/texts: cannot be fetched (ConnectError")
    assert "copy the folder here, and name it as corpus: in the config" in line


def test_without_the_package_the_remedy_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        UserError, match=r"huggingface_hub: is not installed; install it: pip install huggingface_hub; or fetch"
    ):
        fetch_dataset("someone/texts", tmp_path / "texts")


def test_too_little_space_is_told_before_anything_is_fetched(server, tmp_path, monkeypatch):
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(UserError, match=r"texts: has 10 bytes of space, [\d,]+ are needed; free some space"):
        fetch(server, tmp_path / "texts")
    assert server.asked == []


def test_only_this_command_knows_the_hub():
    """No stage imports the client, whatever the config says."""
    from causal_priors.codedigest import STAGES, reached_modules

    roots = [root for stage in STAGES.values() for root in stage]
    assert "causal_priors.data.hub" not in reached_modules(roots)


def test_the_command_in_the_docs_is_one():
    (line,) = [line for line in (ROOT / "docs" / "data.md").read_text().splitlines() if "causal_priors fetch" in line]
    options = parser().parse_args(shlex.split(line)[3:])
    assert options.include == ["sample/10BT/*.parquet"]
    corpus = re.search(r"snakemake .*corpus=(\S+)", (ROOT / "docs" / "data.md").read_text())[1]
    assert str(options.out) == corpus
