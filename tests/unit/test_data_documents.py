"""Corpus folders: what is read, in which order, and that everything doubtful is refused with its file and row named."""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from causal_priors.data import documents
from causal_priors.data.documents import corpus_files, iter_documents
from causal_priors.errors import UserError


def read(folder, column="text"):
    return [(document.name, document.text) for document in iter_documents(folder, column)]


def refused(folder, *parts, column="text"):
    with pytest.raises(UserError) as caught:
        read(folder, column)
    for part in parts:
        assert part in str(caught.value)
    return str(caught.value)


def write_parquet(path, values, kind=None, column="text"):
    pq.write_table(pa.table({"id": range(len(values)), column: pa.array(values, type=kind or pa.string())}), path)


def write_lines(path, *lines):
    path.write_bytes(b"\n".join(line.encode() if isinstance(line, str) else line for line in lines))


def test_all_kinds_are_read_and_named(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "a.txt").write_text("one")
    write_lines(tmp_path / "b.jsonl", '{"text": "two", "id": 1}', "", '{"text": "three"}')
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b'{"text": "four"}\n'))
    write_parquet(tmp_path / "d.parquet", ["five", "six"])
    (tmp_path / "E.TXT").write_text("seven")
    assert read(tmp_path) == [
        ("E.TXT", "seven"),
        ("b.jsonl#1", "two"),
        ("b.jsonl#3", "three"),
        ("c.jsonl.gz#1", "four"),
        ("d.parquet#1", "five"),
        ("d.parquet#2", "six"),
        ("deep/er/a.txt", "one"),
    ]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_every_kind_of_parquet_text_is_read(tmp_path, kind):
    write_parquet(tmp_path / "a.parquet", ["x", "y", "x"], kind)
    assert [text for _, text in read(tmp_path)] == ["x", "y", "x"]


def test_another_column_is_read_by_name(tmp_path):
    write_parquet(tmp_path / "a.parquet", ["x"], column="content")
    write_lines(tmp_path / "b.jsonl", '{"content": "y"}')
    assert read(tmp_path, "content") == [("a.parquet#1", "x"), ("b.jsonl#1", "y")]


def test_a_large_parquet_is_read_in_order_across_row_groups(tmp_path):
    values = [f"document {i} " * (1 + i % 50) for i in range(3000)]
    pq.write_table(pa.table({"text": values}), tmp_path / "a.parquet", row_group_size=700)
    assert [text for _, text in read(tmp_path)] == values


def test_order_of_creation_and_of_the_directory_does_not_matter(tmp_path, monkeypatch):
    names = ["b.txt", "a.txt", "sub/z.txt", "a#.txt", "B.txt", "sub.txt"]
    listings = []
    for run, order in enumerate((names, names[::-1])):
        folder = tmp_path / str(run)
        for name in order:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(name)
        listings.append(read(folder))
    scandir = os.scandir
    monkeypatch.setattr(documents.os, "scandir", lambda path: sorted(scandir(path), key=lambda e: e.name, reverse=True))
    listings.append(read(tmp_path / "0"))
    assert listings[0] == listings[1] == listings[2] == [(name, name) for name in sorted(names)]


def test_other_kinds_are_left_out_and_named_and_hidden_files_ignored(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    for name in ("README.md", "data.csv", "notes.txt.bak", ".DS_Store", "no_ending"):
        (tmp_path / name).write_text("y")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "b.txt").write_text("z")
    files = corpus_files(tmp_path)
    assert [name for name, _ in files.files] == ["a.txt"]
    assert files.ignored == ("README.md", "data.csv", "no_ending", "notes.txt.bak")


def test_no_corpus_files(tmp_path):
    (tmp_path / "a.csv").write_text("x")
    refused(tmp_path, str(tmp_path), "holds no corpus files", "a.csv", ".parquet")
    refused(tmp_path / "nowhere", "is not a folder")
    refused(tmp_path / "a.csv", "is not a folder")


@pytest.mark.parametrize("mark", ["\ufeff", ""])
def test_marks_and_line_ends_are_cleaned_in_every_kind(tmp_path, mark):
    text = "a\r\nb\rc\nd"
    (tmp_path / "a.txt").write_bytes((mark + text).encode())
    line = json.dumps({"text": text})
    write_lines(tmp_path / "b.jsonl", mark + line)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress((mark + line).encode()))
    write_parquet(tmp_path / "d.parquet", [mark + text])
    assert {text for _, text in read(tmp_path)} == {"a\nb\nc\nd"}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
@pytest.mark.parametrize("name", ["bad.txt", "bad.jsonl", "bad.jsonl.gz"])
def test_other_encodings_are_refused(tmp_path, encoding, name):
    data = '{"text": "Grüße an alle"}\n'.encode(encoding)
    (tmp_path / "a.txt").write_text("fine")
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    message = refused(tmp_path, name)
    assert re.search(r"UTF-16|UTF-8|NUL|not JSON", message)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        (" \n\t ", "is empty"),
        ("a\0b", "NUL at character 2"),
        ("ok \ud800", "surrogate pair at character 4"),
    ],
)
@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_texts_that_are_no_text_are_refused(tmp_path, text, problem, kind):
    path = tmp_path / f"bad.{kind}"
    if kind == "txt":
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
    elif kind == "jsonl":
        write_lines(path, '{"text": "fine"}', json.dumps({"text": text}))
    else:
        data = [b"fine", text.encode("utf-8", "surrogatepass")]
        pq.write_table(pa.table({"text": pa.array(data, pa.binary()).view(pa.string())}), path)
    message = refused(tmp_path, f"bad.{kind}" if kind == "txt" else f"bad.{kind}: row 2")
    assert problem in message or ("surrogate" in problem and "not UTF-8" in message and kind != "jsonl")


@pytest.mark.parametrize("name", ["e.txt", "e.jsonl", "e.jsonl.gz"])
def test_files_without_bytes_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    refused(tmp_path, name, "is empty")


def test_files_without_rows_are_refused(tmp_path):
    write_parquet(tmp_path / "e.parquet", [])
    refused(tmp_path, "e.parquet", "is empty")
    (tmp_path / "e.parquet").unlink()
    write_lines(tmp_path / "e.jsonl", "", "  ", "")
    refused(tmp_path, "e.jsonl", "is empty")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{not json}", "is not JSON"),
        ("[1, 2]", "is no JSON object but list"),
        ('{"id": 1}', "fields there: id; set text_column"),
        ("{}", "fields there: none"),
        ('{"text": null}', "is null, not text"),
        ('{"text": 5}', "is int, not text"),
        ('{"text": ["a"]}', "is list, not text"),
        ("[" * 200_000, "is not JSON"),
        ('{"text": ' + "9" * 5000 + "}", "is not JSON"),
        (b'{"text": "\xff"}', "is not UTF-8"),
    ],
)
def test_bad_json_lines_are_refused_by_row(tmp_path, line, problem):
    write_lines(tmp_path / "a.jsonl", '{"text": "fine"}', line)
    refused(tmp_path, "a.jsonl: row 2", problem)


def test_a_column_named_like_a_field_of_another_is_the_one_that_is_read(tmp_path):
    rows = pa.table({"meta": [{"text": "of the struct"}], "meta.text": ["of the column"]})
    pq.write_table(rows, tmp_path / "a.parquet")
    assert [document.text for document in iter_documents(tmp_path, "meta.text")] == ["of the column"]


def test_bad_parquet_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    write_parquet(path, ["x", None, "y"])
    refused(tmp_path, "a.parquet: row 2", "is null")
    write_parquet(path, [1, 2], pa.int64())
    refused(tmp_path, "a.parquet", "is of type int64, not text")
    write_parquet(path, [None], pa.null())
    refused(tmp_path, "a.parquet", "is of type null")
    write_parquet(path, [["x"]], pa.list_(pa.string()))
    refused(tmp_path, "a.parquet", "is of type list")
    write_parquet(path, ["x"], column="content")
    refused(tmp_path, "a.parquet", "text_column = 'text'", "columns there: id, content")
    pq.write_table(pa.table([["x"], ["y"]], names=["text", "text"]), path)
    refused(tmp_path, "a.parquet", "several columns")
    path.write_bytes(b"PAR1 nothing of the kind PAR1")
    refused(tmp_path, "a.parquet", "cannot be read as parquet")


def test_damage_inside_a_parquet_file_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    values = [np.random.default_rng(i).bytes(2000).hex() for i in range(200)]
    pq.write_table(pa.table({"text": values}), path, use_dictionary=False, write_page_checksum=True)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    refused(tmp_path, "a.parquet", "cannot be read as parquet")


def test_damaged_gzip_is_refused(tmp_path):
    data = gzip.compress(
        b'{"text": "' + np.random.default_rng(0).bytes(5000).hex().encode() + b'"}\n' + b'{"text": "x"}\n'
    )
    path = tmp_path / "a.jsonl.gz"
    for damaged in (data[:-20], b"no gzip at all", data[:100] + bytes(50) + data[150:]):
        path.write_bytes(damaged)
        refused(tmp_path, "a.jsonl.gz", "damaged")


def test_names_that_differ_in_unicode_form_only_are_refused(tmp_path):
    for name in ("caf\u00e9.txt", "cafe\u0301.txt"):
        (tmp_path / name).write_text(name)
    refused(tmp_path, "same name", "rename one")


def test_names_are_the_same_for_every_unicode_form(tmp_path):
    (tmp_path / "cafe\u0301.txt").write_text("x")
    assert read(tmp_path) == [("caf\u00e9.txt", "x")]


def test_names_that_are_no_text_are_refused(tmp_path):
    with open(os.fsencode(tmp_path) + b"/\xff.txt", "wb") as file:
        file.write(b"x")
    refused(tmp_path, "not UTF-8", "rename")


def test_a_file_beside_its_compressed_form_is_refused(tmp_path):
    write_lines(tmp_path / "a.jsonl", '{"text": "x"}')
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "x"}'))
    refused(tmp_path, "a.jsonl", "compressed form", "keep one")


def test_links(tmp_path):
    outside = tmp_path / "secret.txt"
    outside.write_text("outside")
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_text("inside")
    link = folder / "b.txt"
    link.symlink_to("a.txt")
    assert read(folder) == [("a.txt", "inside"), ("b.txt", "inside")]
    for target in (outside, "../secret.txt"):
        link.unlink()
        link.symlink_to(target)
        refused(folder, "b.txt", "leads out of the corpus folder")
    link.unlink()
    link.symlink_to(tmp_path, target_is_directory=True)
    refused(folder, "leads out")
    link.unlink()
    link.symlink_to(".", target_is_directory=True)
    refused(folder, "link to a folder")
    link.unlink()
    link.symlink_to("gone.txt")
    refused(folder, "link to nothing")


def test_a_linked_corpus_folder_itself_is_fine(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.txt").write_text("x")
    (tmp_path / "link").symlink_to("real")
    assert read(tmp_path / "link") == [("a.txt", "x")]


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.txt")
    refused(tmp_path, "a.txt", "no regular file")


def test_an_unreadable_file_is_named(tmp_path, monkeypatch):
    # Tests may run as root, whom no permission stops; so the operating system's answer is played.
    (tmp_path / "a.txt").write_text("x")

    def no(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", no)
    refused(tmp_path, "a.txt", "Permission denied")


SIZE_CAP = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from causal_priors.data.documents import iter_documents
from causal_priors.errors import UserError
try:
    for _ in iter_documents(sys.argv[1]):
        pass
except UserError as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.jsonl.gz"])
def test_a_line_of_200_mb_ends_in_an_error_not_in_memory(tmp_path, name):
    path = tmp_path / name
    block = b"x" * (1 << 20)
    with gzip.open(path, "wb", compresslevel=1) if name.endswith("gz") else open(path, "wb") as file:
        for _ in range(200):
            file.write(block)
    done = subprocess.run([sys.executable, "-c", SIZE_CAP, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "longer than 32 MiB" in done.stdout
    assert name in done.stdout


def test_a_parquet_value_above_the_cap_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MAX_BYTES", 1 << 20)
    write_parquet(tmp_path / "a.parquet", ["fine", "x" * ((1 << 20) + 1)])
    refused(tmp_path, "a.parquet: row 2", "longer than 1 MiB")


PARQUET_MEMORY = """
import resource, sys
from causal_priors.data.documents import iter_documents
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(sum(len(document.text) for document in iter_documents(sys.argv[1])))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


def test_a_repeated_long_text_in_parquet_does_not_fill_the_memory(tmp_path):
    # 700 MB of text in a file of some kilobytes: one dictionary entry of 1 MB, named in 700 rows.
    indices = pa.array([0] * 700, pa.int32())
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["word " * 200_000]))
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    done = subprocess.run(
        [sys.executable, "-c", PARQUET_MEMORY, str(tmp_path)], capture_output=True, text=True, check=True
    )
    characters, megabytes = map(int, done.stdout.split())
    assert characters == 700 * 1_000_000
    assert megabytes < 400


TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), min_size=1).filter(
    lambda text: text.strip("\ufeff\r\n ").strip() != ""
)


def outcome(folder):
    """The names of the documents, or the error; anything else goes through."""
    try:
        return " ".join(name for name, text in read(folder) if text.encode())
    except UserError as error:
        return str(error)


def expected(text):
    return re.sub("\r\n|\r", "\n", text[1:] if text[0] == "\ufeff" else text)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(TEXT, min_size=1, max_size=8))
def test_any_text_comes_back_from_every_kind(tmp_path, texts):
    for old in tmp_path.iterdir():
        old.unlink()
    write_parquet(tmp_path / "a.parquet", texts)
    write_lines(tmp_path / "b.jsonl", *(json.dumps({"text": text}) for text in texts))
    write_lines(tmp_path / "c.jsonl", *(json.dumps({"text": text}, ensure_ascii=False) for text in texts))
    for i, text in enumerate(texts):
        (tmp_path / f"d{i}.txt").write_bytes(text.encode())
    wanted = [expected(text) for text in texts]
    assert [text for _, text in read(tmp_path)] == wanted * 4


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300), name=st.sampled_from(["a.txt", "a.jsonl", "a.jsonl.gz", "a.parquet"]))
def test_any_bytes_give_documents_or_one_named_error(tmp_path, data, name):
    (tmp_path / name).write_bytes(data)
    assert name in outcome(tmp_path)
    (tmp_path / name).unlink()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_to_a_good_file_gives_documents_or_one_named_error(tmp_path, data):
    good = tmp_path / "good.parquet"
    if not good.exists():
        write_parquet(good, [f"text number {i}" for i in range(100)])
    (tmp_path / "corpus").mkdir(exist_ok=True)
    path = tmp_path / "corpus" / "a.parquet"
    content = bytearray(good.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    assert "a.parquet" in outcome(tmp_path / "corpus")


def test_reading_leaves_no_file_open(tmp_path):
    handles = Path("/proc/self/fd")
    before = len(list(handles.iterdir()))
    for i in range(20):
        (tmp_path / f"{i}.txt").write_text("x")
        write_lines(tmp_path / f"{i}.jsonl", '{"text": "x"}')
        write_parquet(tmp_path / f"{i}.parquet", ["x"])
    assert len(read(tmp_path)) == 60
    assert len(list(handles.iterdir())) == before
