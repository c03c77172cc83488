"""A corpus cut into units: put together they are the corpus, wherever it is cut."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from causal_priors.data import units
from causal_priors.data.documents import corpus_files, iter_documents
from causal_priors.data.units import plan_units, read_unit, unit_size
from causal_priors.errors import UserError


def write_mixed(folder):
    """Files of every kind; parquet of one and of many row groups, in folders; an empty group; text in another column."""
    (folder / "b").mkdir(parents=True)
    for i in range(12):
        (folder / f"a{i:02}.txt").write_text(f"text {i} " * 50)
    rows = [f"row {i} " * (i % 40 + 1) for i in range(1000)]
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    with pq.ParquetWriter(folder / "b" / "000.parquet", schema) as writer:
        for start in range(0, 1000, 100):
            part = rows[start : start + 100] if start != 300 else []
            writer.write_table(pa.table({"id": list(range(len(part))), "text": part}, schema=schema))
    pq.write_table(pa.table({"text": rows[:50]}), folder / "b" / "001.PARQUET")
    lines = "".join(json.dumps({"text": row}) + "\n\n" for row in rows[:30])
    (folder / "c.jsonl").write_text(lines)
    (folder / "d.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    return folder


@pytest.mark.parametrize("smallest", [1, 3000, 20_000, 1 << 30])
def test_units_put_together_are_the_corpus(tmp_path, monkeypatch, smallest):
    folder = write_mixed(tmp_path)
    monkeypatch.setattr(units, "_SMALLEST", smallest)
    monkeypatch.setattr(units, "_LARGEST", smallest)
    found = plan_units(corpus_files(folder).files, "text")
    assert [one for unit in found for one in read_unit(unit, "text")] == list(iter_documents(folder))
    assert len(found) == 1 if smallest == 1 << 30 else len(found) > 3
    # No unit but the last is below the size, and none goes on when it is reached.
    for unit in found[:-1]:
        assert unit_size(unit) >= smallest
        assert unit_size(unit[:-1]) < smallest


def test_what_is_known_of_a_slice_is_so(tmp_path, monkeypatch):
    monkeypatch.setattr(units, "_SMALLEST", 5000)
    for unit in plan_units(corpus_files(write_mixed(tmp_path)).files, "text"):
        for part in unit:
            names = [one.name for one in read_unit((part,), "text")]
            assert part.documents in (None, len(names))
            assert all(part.holds(name) for name in names)
            if part.documents:
                assert names == [part.document(number) for number in range(len(names))]
    assert not part.holds("d.jsonl")
    assert not part.holds("e.txt")


def test_the_size_of_parquet_is_that_of_its_text_unpacked(tmp_path):
    texts = ["a long line of text " * 500, "word " * 7] * 20
    pq.write_table(
        pa.table({"text": [f"{i} {text}" for i, text in enumerate(texts)], "other": [b"x" * 9000] * 40}),
        tmp_path / "a.parquet",
        use_dictionary=False,
    )
    ((part,),) = plan_units(corpus_files(tmp_path).files, "text")
    assert part.size == pytest.approx(sum(len(one.text) for one in iter_documents(tmp_path)), rel=0.01)


@pytest.mark.parametrize("data", [b"", b"PAR1 and nothing else", b"PAR1" + bytes(100) + b"PAR1"])
def test_a_damaged_file_is_planned_and_named_when_it_is_read(tmp_path, data):
    folder = write_mixed(tmp_path)
    (folder / "b" / "0005.parquet").write_bytes(data)
    planned = plan_units(corpus_files(folder).files, "text")
    with pytest.raises(UserError, match=r"0005\.parquet: cannot be read as parquet .*fetch or write it again"):
        for unit in planned:
            list(read_unit(unit, "text"))


def test_a_file_without_rows_is_named_when_it_is_read(tmp_path):
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "a.parquet")
    (unit,) = plan_units(corpus_files(tmp_path).files, "text")
    with pytest.raises(UserError, match=r"a\.parquet: is empty"):
        list(read_unit(unit, "text"))


def test_a_missing_column_is_named_when_it_is_read(tmp_path):
    folder = write_mixed(tmp_path)
    (unit, *_) = plan_units([("b/000.parquet", folder / "b" / "000.parquet")], "content")
    with pytest.raises(UserError, match=r"000\.parquet: text_column = 'content': has no such column; .*id, text"):
        list(read_unit(unit, "content"))
