"""Shards: the same bytes on every way, every id accounted for, damage found before use, poor corpora refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import scale, write_corpus, write_shards

from causal_priors.artifacts import sha256_file
from causal_priors.data import index as index_module
from causal_priors.data import parts, tokenise, units
from causal_priors.data.documents import iter_documents
from causal_priors.data.index import index_stage
from causal_priors.data.parts import write_part
from causal_priors.data.shards import open_shards, spans
from causal_priors.data.split import index_rows
from causal_priors.data.tokenise import shards_stage
from causal_priors.data.tokenizer import load_tokenizer, tokenizer_stage
from causal_priors.errors import UserError
from causal_priors.tables import read_table, table_writer

NANO = scale("nano")
FILES = ("train.bin", "heldout.bin", "documents.parquet", "card.json")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    write_shards(folder, NANO)
    return folder


@pytest.fixture
def copy(made, tmp_path):
    """A copy of the shards to damage."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for name in FILES:
        (folder / name).write_bytes((made / "shards" / name).read_bytes())
    return folder


def stage(made, out, **options):
    options = {"allow_packed_blocks": True, **options}
    of = options.pop("of", NANO)
    shards_stage(made / "corpus", made / "index.parquet", made / "tokenizer.json", of, out, **options)


def test_every_document_stands_once_followed_by_end_of_text(made):
    shards = open_shards(made / "shards")
    tokenizer = load_tokenizer(made / "tokenizer.json")
    texts = {document.name: document.text for document in iter_documents(made / "corpus")}
    frame = read_table(made / "shards" / "documents.parquet", "documents")
    index = read_table(made / "index.parquet", "corpus")
    assert list(frame.document) == list(index.document)
    assert list(frame.split) == list(index.split)
    assert list(frame.sha256) == list(index.sha256)
    for split, ids in (("train", shards.train), ("heldout", shards.heldout)):
        assert ids.dtype == np.dtype("<u2")
        rows = frame[frame.split == split]
        assert set(rows.shard) == {f"{split}.bin"}
        end = 0
        for row in rows.itertuples():
            assert row.offset == end
            end = row.offset + row.tokens + 1
            assert ids[end - 1] == shards.end_of_text == 299
            assert tokenizer.decode(ids[row.offset : end - 1]) == texts[row.document]
        assert end == len(ids)
        assert (ids == 299).sum() == len(rows)
        assert shards.card["splits"][split] == {"documents": len(rows), "tokens": rows.tokens.sum()}
        assert [(s.document, s.offset, s.tokens) for s in spans(made / "shards", split)] == list(
            zip(rows.document, rows.offset, rows.tokens, strict=True)
        )


def test_the_card_links_corpus_and_tokenizer(made):
    card = json.loads((made / "shards" / "card.json").read_text())
    origin = json.loads((made / "tokenizer.json").read_text())
    assert card["tokenizer"] == origin["digest"]
    assert card["corpus"] == origin["origin"]["corpus"]
    assert {name: value["sha256"] for name, value in card["files"].items()} == {
        name: sha256_file(made / "shards" / name) for name in FILES[:-1]
    }


@pytest.fixture
def cut_small(monkeypatch):
    """Many small units, and processes for any amount of text."""
    monkeypatch.setattr(units, "_SMALLEST", 30_000)
    monkeypatch.setattr(tokenise, "_BYTES_A_PROCESS", 1)


def same_bytes(one, other):
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in FILES)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_processes_and_units_change_no_byte(made, tmp_path, cut_small, threads):
    stage(made, tmp_path / "shards", threads=threads)
    assert same_bytes(tmp_path / "shards", made / "shards")
    assert sorted(path.name for path in (tmp_path / "shards").iterdir()) == sorted([*FILES, ".lock"])


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    """Three parquet files of several row groups, indexed, shards made in one process."""
    folder = tmp_path_factory.mktemp("parquet")
    text = (write_corpus(folder / "txt") / "text-000.txt").read_text()
    rows = [f"{i} {text[7 * i : 7 * i + 120]}" for i in range(800)]
    (folder / "corpus").mkdir()
    for number in range(3):
        part = pa.table({"id": list(range(800)), "text": [f"{number} {row}" for row in rows]})
        pq.write_table(part, folder / "corpus" / f"{number:03}_00000.parquet", row_group_size=300)
    index_stage(folder / "corpus", folder / "index.parquet", allow_packed_blocks=True)
    tokenizer_stage(folder / "corpus", folder / "index.parquet", NANO, folder / "tokenizer.json", cache=folder)
    stage(folder, folder / "shards", threads=1)
    return folder


@pytest.mark.parametrize("threads", [1, 3])
def test_parquet_gives_the_same_bytes_in_any_number_of_processes(parquet, tmp_path, monkeypatch, cut_small, threads):
    monkeypatch.setattr(index_module, "_BYTES_A_PROCESS", 1)
    index_stage(parquet / "corpus", tmp_path / "index.parquet", allow_packed_blocks=True, threads=threads)
    assert (tmp_path / "index.parquet").read_bytes() == (parquet / "index.parquet").read_bytes()
    stage(parquet, tmp_path / "shards", threads=threads)
    assert same_bytes(tmp_path / "shards", parquet / "shards")
    frame = read_table(parquet / "shards" / "documents.parquet", "documents")
    index = read_table(parquet / "index.parquet", "corpus")
    assert len(index) == 2400
    assert list(frame.document) == list(index.document[index.split != "duplicate"])


def interrupted(monkeypatch, after):
    """Let the stage fail when `after` parts are written; return the keys of those written, as they come."""
    written = []

    def write(folder, key, *rest):
        if len(written) == after:
            raise KeyboardInterrupt
        write_part(folder, key, *rest)
        written.append(key)

    monkeypatch.setattr(tokenise, "write_part", write)
    return written


def test_a_call_that_was_cut_short_goes_on_with_its_parts(made, tmp_path, monkeypatch, cut_small):
    out = tmp_path / "shards"
    first = interrupted(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        stage(made, out, threads=1)
    assert len(first) == 3
    assert sorted(path.name for path in out.iterdir()) == [".lock", "work"]
    # A part that is torn, one whose files are gone, and one that is whole.
    (out / "work" / f"{first[0]}.train").write_bytes(b"torn")
    (out / "work" / f"{first[1]}.counts").unlink()
    second = interrupted(monkeypatch, -1)
    stage(made, out, threads=1)
    assert first[0] in second
    assert first[1] in second
    assert first[2] not in second
    assert len(second) >= 4
    assert same_bytes(out, made / "shards")
    assert not (out / "work").exists()


def test_parts_of_another_tokenizer_or_split_are_not_taken(made, tmp_path, monkeypatch, cut_small):
    out = tmp_path / "shards"
    other = tmp_path / "other"
    write_shards(other, NANO)
    written = interrupted(monkeypatch, 3)
    smaller = replace(NANO, vocabulary=290)
    tokenizer_stage(other / "corpus", other / "index.parquet", smaller, other / "tokenizer.json", cache=other)
    with pytest.raises(KeyboardInterrupt):
        stage(other, out, threads=1)
    foreign = set(written)
    written = interrupted(monkeypatch, -1)
    stage(made, out, threads=1)
    assert foreign
    assert not foreign & set(written)
    assert same_bytes(out, made / "shards")


def test_a_killed_process_is_told_and_the_next_call_goes_on(made, tmp_path, monkeypatch, cut_small):
    flag = tmp_path / "killed"

    def write(folder, key, *rest):
        if len(list(folder.glob("*.json"))) >= 2 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        write_part(folder, key, *rest)

    monkeypatch.setattr(tokenise, "write_part", write)
    out = tmp_path / "shards"
    with pytest.raises(UserError, match="a worker process was killed by signal 9"):
        stage(made, out, threads=2)
    assert sorted(path.name for path in out.iterdir()) == [".lock", "work"]
    assert len(list((out / "work").glob("*.json"))) >= 2
    stage(made, out, threads=2)
    assert same_bytes(out, made / "shards")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_full_disk_in_a_process_leaves_no_torn_part(made, tmp_path, monkeypatch, cut_small, threads):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parts._Hashed, "write", full)
    with pytest.raises(UserError, match=r"work: cannot be written \(No space left on device\); free some space"):
        stage(made, tmp_path / "shards", threads=threads)
    assert [path.name for path in (tmp_path / "shards").rglob("*") if path.is_file()] == [".lock"]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_parquet_file_damaged_after_indexing_is_named_with_the_remedy(parquet, tmp_path, cut_small, threads):
    shutil.copytree(parquet / "corpus", tmp_path / "corpus")
    damaged = tmp_path / "corpus" / "001_00000.parquet"
    data = bytearray(damaged.read_bytes())
    data[len(data) // 3 : len(data) // 2] = bytes(len(data) // 2 - len(data) // 3)
    damaged.write_bytes(data)
    for name in ("index.parquet", "tokenizer.json"):
        shutil.copy(parquet / name, tmp_path / name)
    with pytest.raises(UserError, match=r"001_00000\.parquet.*if the corpus was meant to change: snakemake"):
        stage(tmp_path, tmp_path / "shards", threads=threads)
    with pytest.raises(UserError, match=r"001_00000\.parquet: .*"):
        index_stage(tmp_path / "corpus", tmp_path / "new.parquet", allow_packed_blocks=True, threads=threads)
    assert not (tmp_path / "new.parquet").exists()


@pytest.mark.parametrize("change", ["remove", "add", "shorter", "column"])
def test_a_parquet_corpus_that_changed_after_indexing_is_refused(parquet, tmp_path, cut_small, change):
    shutil.copytree(parquet / "corpus", tmp_path / "corpus")
    for name in ("index.parquet", "tokenizer.json"):
        shutil.copy(parquet / name, tmp_path / name)
    middle = tmp_path / "corpus" / "001_00000.parquet"
    table = pq.read_table(middle)
    if change == "remove":
        middle.unlink()
    elif change == "add":
        shutil.copy(middle, tmp_path / "corpus" / "001_00001.parquet")
    elif change == "shorter":
        pq.write_table(table.slice(0, len(table) - 1), middle, row_group_size=300)
    else:
        pq.write_table(table.rename_columns(["id", "content"]), middle, row_group_size=300)
    wanted = {
        "remove": r"002_00000\.parquet#1: is not where the index has it",
        "add": r"001_00001\.parquet#1: is not where the index has it",
        "shorter": r"002_00000\.parquet#1: is not where the index has it",
        "column": r"001_00000\.parquet: text_column = 'text': has no such column; columns there: id, content",
    }[change]
    with pytest.raises(UserError, match=wanted + ".*if the corpus was meant to change: snakemake"):
        stage(tmp_path, tmp_path / "shards", threads=2)
    assert not (tmp_path / "shards" / "card.json").exists()


def test_rows_of_the_index_come_from_any_place(tmp_path):
    with table_writer(tmp_path / "index.parquet", "corpus") as append:
        for start in range(0, 10_000, 900):
            names = [f"{number}.txt" for number in range(start, min(start + 900, 10_000))]
            count = len(names)
            append({"document": names, "bytes": [1] * count, "sha256": ["a"] * count, "split": ["train"] * count})
    for first, count in ((0, 10_000), (0, 1), (899, 2), (900, 900), (9_999, 1), (5_000, 4_100), (3, 0), (10_000, 0)):
        rows = [row.document for row in index_rows(tmp_path / "index.parquet", first, count)]
        assert rows == [f"{number}.txt" for number in range(first, first + count)]


def test_rows_of_a_large_table_lie_in_groups_that_grow(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenise, "_GROUP_DOCUMENTS", 2)
    monkeypatch.setattr(tokenise, "_GROUPS_ALIKE", 4)
    sizes = []
    rows = tokenise._Rows(lambda columns: sizes.append(len(columns["document"])))
    for number in range(10_001):
        rows.add((str(number), "train", "train.bin", number, 1, "a"), 1)
    rows.flush()
    assert sum(sizes) == 10_001
    assert sizes[:13] == [2] * 8 + [4] * 4 + [6]
    assert len(sizes) < 250


def test_the_same_command_gives_the_same_bytes_in_another_process_and_folder(made, tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nsys.path.insert(0, sys.argv[2])\n"
        "from helpers import scale, write_shards\nwrite_shards(Path(sys.argv[1]), scale('nano'))"
    )
    tests = str((tmp_path / __file__).parents[1])
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "elsewhere"), tests], check=True, capture_output=True)
    for name in FILES:
        assert sha256_file(tmp_path / "elsewhere" / "shards" / name) == sha256_file(made / "shards" / name)
    assert sha256_file(tmp_path / "elsewhere" / "tokenizer.json") == sha256_file(made / "tokenizer.json")
    assert sha256_file(tmp_path / "elsewhere" / "index.parquet") == sha256_file(made / "index.parquet")


def test_no_path_of_this_machine_is_in_the_artefacts(made):
    for path in (made / "tokenizer.json", made / "index.parquet", *(made / "shards" / name for name in FILES)):
        assert str(made).encode() not in path.read_bytes()


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-2])


def lengthen(path):
    path.write_bytes(path.read_bytes() + b"\0\0")


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [flip, truncate, lengthen, empty, lambda path: path.unlink()])
@pytest.mark.parametrize("name", FILES)
def test_damage_is_found_named_and_told_how_to_mend(copy, name, damage):
    damage(copy / name)
    if name == "card.json" and damage is lengthen:
        (copy / name).write_bytes((copy / name).read_bytes()[:-2] + b"{}")
    with pytest.raises(UserError) as caught:
        open_shards(copy)
    assert str(copy / name) in str(caught.value)
    assert f"snakemake --cores all --force {copy / 'card.json'}" in str(caught.value)


def test_every_edit_of_the_card_is_found(copy):
    path = copy / "card.json"
    card = json.loads(path.read_text())
    for key in card:
        path.write_text(json.dumps({**card, key: 0}))
        with pytest.raises(UserError, match=r"card\.json: is damaged"):
            open_shards(copy)
    path.write_text("[]")
    with pytest.raises(UserError, match=r"card\.json: is damaged"):
        open_shards(copy)


def test_a_swapped_file_of_other_shards_is_found(copy, tmp_path):
    other = write_shards(tmp_path / "other", NANO, seed=1)
    (copy / "heldout.bin").write_bytes((other / "heldout.bin").read_bytes())
    with pytest.raises(UserError, match=r"heldout\.bin"):
        open_shards(copy)


def test_a_failure_leaves_earlier_shards_whole(made, copy, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    before = {name: sha256_file(copy / name) for name in FILES}
    monkeypatch.setattr(tokenise._SplitWriter, "write", full)
    with pytest.raises(UserError, match="No space left"):
        stage(made, copy)
    monkeypatch.undo()
    assert before == {name: sha256_file(copy / name) for name in FILES}
    # Parts stay for the next call.
    assert sorted(path.name for path in copy.iterdir()) == sorted([*FILES, ".lock", "work"])
    open_shards(copy)
    stage(made, copy)
    assert before == {name: sha256_file(copy / name) for name in FILES}


def test_leftovers_of_a_killed_writer_are_swept(made, copy):
    (copy / ".train.bin.4711.tmp").write_bytes(b"half")
    stage(made, copy)
    assert not (copy / ".train.bin.4711.tmp").exists()


def test_a_second_writer_is_stopped(made, copy):
    from causal_priors.artifacts import writer_lock

    with writer_lock(copy), pytest.raises(UserError, match="another process is writing here"):
        stage(made, copy)


def test_a_corpus_edited_between_the_stages_is_refused(tmp_path):
    write_shards(tmp_path, NANO)
    (tmp_path / "corpus" / "text-003.txt").write_text("other words")
    with pytest.raises(UserError, match=r"text-003\.txt: changed since the corpus was indexed"):
        stage(tmp_path, tmp_path / "again")
    assert not (tmp_path / "again" / "card.json").exists()


def test_a_corpus_that_would_repeat_too_often_is_refused_unless_allowed(made, tmp_path):
    tokens = len(open_shards(made / "shards").train)
    budget = {"S": replace(NANO.sizes["S"], steps=tokens * 4 // 128 + 1), "C": NANO.sizes["C"]}
    of = replace(NANO, sizes=budget)
    with pytest.raises(UserError) as caught:
        stage(made, tmp_path / "shards", of=of)
    for part in (str(made / "corpus"), "size S", "repeat", "4.0 times, 4 at most", "allow_repeats: true"):
        assert part in str(caught.value)
    assert not (tmp_path / "shards" / "card.json").exists()
    stage(made, tmp_path / "shards", of=of, allow_repeats=True)
    just_enough = {"S": replace(NANO.sizes["S"], steps=tokens * 4 // 128), "C": NANO.sizes["C"]}
    stage(made, tmp_path / "shards", of=replace(NANO, sizes=just_enough))


def test_a_corpus_of_short_documents_is_refused_unless_packing_is_allowed(tmp_path):
    # Documents of some 150 tokens: too short for the longest block of 8 x 64 + 1.
    write_shards(tmp_path, NANO, documents=900, words=40)
    with pytest.raises(UserError) as caught:
        stage(tmp_path, tmp_path / "again", allow_packed_blocks=False)
    for part in (str(tmp_path / "corpus"), "0 evaluation blocks", "513 tokens", "allow_packed_blocks: true"):
        assert part in str(caught.value)
    card = open_shards(tmp_path / "shards").card
    assert card["blocks"]["64"]["packed"] is True


def test_a_tokenizer_with_more_ids_than_the_scale_is_refused(made, tmp_path):
    with pytest.raises(UserError, match=r"tokenizer\.json: has 300 ids.*vocabulary of 299"):
        stage(made, tmp_path / "shards", of=replace(NANO, vocabulary=299))


def test_documents_of_one_token_are_handled(tmp_path):
    texts = write_corpus(tmp_path / "corpus")
    for i in range(5):
        (texts / f"tiny-{i}.txt").write_text("abcde"[i])
    index_stage(texts, tmp_path / "index.parquet", allow_packed_blocks=True)
    tokenizer_stage(texts, tmp_path / "index.parquet", NANO, tmp_path / "tokenizer.json", cache=tmp_path)
    stage(tmp_path, tmp_path / "shards")
    frame = read_table(tmp_path / "shards" / "documents.parquet", "documents")
    assert (frame.tokens == 1).sum() == 5


def test_nothing_in_the_data_stages_imports_torch():
    names = ("corpus", "documents", "index", "split", "tokenizer", "tokenise", "shards", "batches", "windows")
    code = "import sys; " + "; ".join(f"import causal_priors.data.{name}" for name in names)
    subprocess.run([sys.executable, "-c", code + "; assert 'torch' not in sys.modules"], check=True)
