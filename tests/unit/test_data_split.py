"""The split on planted sizes, and the index: one pass, checked, and noticed when the corpus changes under it."""

import hashlib
import json

import numpy as np
import pytest
from helpers import default_corpus
from hypothesis import given, settings
from hypothesis import strategies as st

from causal_priors.data.index import _first_of_each, index_stage
from causal_priors.data.split import CorpusDigest, hold_out, indexed_documents, order_of
from causal_priors.errors import UserError
from causal_priors.tables import read_table

LONG = 65_536


def keys(*order):
    """One sort key a document: document i is looked at as number order[i]."""
    return [bytes([place]) for place in order]


def test_documents_are_taken_in_the_order_of_their_keys_until_both_conditions_hold():
    # 30 documents of 100,000 bytes: 5% are 150,000, so two suffice for the share and three are needed for the count.
    sizes = [100_000] * 30
    order = [(7 * i) % 30 for i in range(30)]
    wanted = sorted(range(30), key=order.__getitem__)[:3]
    assert hold_out(keys(*order), sizes) == wanted
    # With a hundred, five suffice for the share, which now decides.
    assert len(hold_out(keys(*range(100)), [100_000] * 100)) == 5
    assert len(hold_out(keys(*range(101)), [100_000] * 101)) == 6


def test_a_document_just_short_of_long_does_not_count_as_long():
    # Ten of 65,535 bytes come first; the rule goes on until it met three of 65,536.
    sizes = [LONG - 1] * 10 + [LONG] * 90
    assert hold_out(keys(*range(100)), sizes) == list(range(13))
    assert hold_out(keys(*range(100)), [LONG] * 100) == list(range(5))


def test_documents_above_15_percent_are_passed_over_and_that_share_itself_is_not():
    sizes = [150_000] + [85_000] * 10
    assert hold_out(keys(*range(11)), sizes)[0] == 0
    sizes = [150_001] + [85_000] * 9 + [84_999]
    assert hold_out(keys(*range(11)), sizes)[0] == 1


def test_excluded_documents_are_passed_over():
    assert hold_out(keys(*range(30)), [100_000] * 30, never=[0, 2]) == [1, 3, 4]


def test_without_long_documents_the_share_alone_decides():
    assert hold_out(keys(*range(100)), [10] * 100, need_long=False) == list(range(5))
    # Else everything there is comes back, which the stage refuses.
    assert hold_out(keys(*range(100)), [10] * 100) == list(range(100))


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 300_000), min_size=1, max_size=60),
    seed=st.integers(0, 1000),
    need_long=st.booleans(),
)
def test_the_chosen_are_the_shortest_prefix_of_the_admissible_that_suffices(sizes, seed, need_long):
    names = [hashlib.sha256(f"{seed} {i}".encode()).digest() for i in range(len(sizes))]
    never = {seed % len(sizes)}
    total = sum(sizes)
    admissible = [
        i
        for _, i in sorted(zip(names, range(len(sizes)), strict=True))
        if 100 * sizes[i] <= 15 * total and i not in never
    ]

    def suffices(chosen):
        long = sum(sizes[i] >= LONG for i in chosen)
        return 20 * sum(sizes[i] for i in chosen) >= total and (long >= 3 or not need_long)

    wanted = next((admissible[:n] for n in range(len(sizes) + 1) if suffices(admissible[:n])), admissible)
    assert hold_out(names, sizes, never, need_long=need_long) == wanted


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([b"\0", b"a", b"b"]), st.integers(0, 3), st.sampled_from([b"\0", b"z"])), max_size=40
    )
)
def test_the_first_of_equal_digests_is_found_and_their_order_is_that_of_bytes(drawn):
    # Digests that agree in most of their bytes, zeros at the ends among them.
    digests = [head * 8 + bytes(8) + bytes([middle]) * 8 + tail * 8 for head, middle, tail in drawn]
    seen = set()
    expected = [not (digest in seen or seen.add(digest)) for digest in digests]
    array = np.array(digests, dtype="S32")
    assert _first_of_each(array).tolist() == expected
    assert order_of(digests).tolist() == sorted(range(len(digests)), key=digests.__getitem__)


def write(folder, sizes):
    folder.mkdir(parents=True, exist_ok=True)
    for i, size in enumerate(sizes):
        (folder / f"{i:03}.txt").write_text((f"document {i} " * (size // 10 + 1))[:size])
    return folder


def test_the_index_holds_names_sizes_digests_and_the_split_by_name(tmp_path):
    folder = write(tmp_path / "corpus", [70_000] * 40)
    index_stage(folder, tmp_path / "index.parquet")
    frame = read_table(tmp_path / "index.parquet", "corpus")
    assert list(frame.document) == [f"{i:03}.txt" for i in range(40)]
    assert list(frame.sha256) == [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in frame.document]
    assert set(frame.bytes) == {70_000}
    first = sorted(frame.document, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[:3]
    assert sorted(first) == list(frame.document[frame.split == "heldout"])
    assert (frame.split == "train").sum() == 37
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == [".lock"]


def test_repeated_texts_are_kept_once_and_never_on_both_sides(tmp_path, capsys):
    folder = write(tmp_path / "corpus", [70_000] * 40)
    for i in range(40):
        (folder / f"copy-{i:03}.txt").write_bytes((folder / f"{i:03}.txt").read_bytes())
    index_stage(folder, tmp_path / "index.parquet")
    frame = read_table(tmp_path / "index.parquet", "corpus")
    assert set(frame.document[frame.split == "duplicate"]) == {f"copy-{i:03}.txt" for i in range(40)}
    held = set(frame.sha256[frame.split == "heldout"])
    assert len(held) == 3
    assert not held & set(frame.sha256[frame.split == "train"])
    assert "40 documents repeat an earlier text" in capsys.readouterr().err
    assert len(list(indexed_documents(folder, tmp_path / "index.parquet"))) == 40


def test_files_left_out_are_named(tmp_path, capsys):
    folder = write(tmp_path / "corpus", [70_000] * 40)
    (folder / "table.csv").write_text("x")
    index_stage(folder, tmp_path / "index.parquet")
    assert "1 files of other kinds are left out: table.csv" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sizes", "packed", "accepted"),
    [
        ([500_000], False, False),
        ([500_000], True, False),
        ([70_000] * 6, False, False),
        ([70_000] * 7, False, True),
        ([1000] * 100, False, False),
        ([1000] * 100, True, True),
        ([70_000] * 2 + [1000] * 1000, False, False),
    ],
)
def test_corpora_from_which_too_little_can_be_held_out(tmp_path, sizes, packed, accepted):
    folder = write(tmp_path / "corpus", sizes)
    if accepted:
        index_stage(folder, tmp_path / "index.parquet", allow_packed_blocks=packed)
        return
    with pytest.raises(UserError) as caught:
        index_stage(folder, tmp_path / "index.parquet", allow_packed_blocks=packed)
    message = str(caught.value)
    assert message.startswith(f"{folder}: is too small or too uneven")
    assert ("allow_packed_blocks: true" in message) != packed
    assert not (tmp_path / "index.parquet").exists()


@pytest.fixture
def indexed(tmp_path):
    folder, index = write(tmp_path / "corpus", [70_000] * 20), tmp_path / "index.parquet"
    index_stage(folder, index)
    return folder, index


def test_the_corpus_comes_back_with_its_split(indexed):
    folder, index = indexed
    frame = read_table(index, "corpus")
    found = [(document.name, sha256, split) for document, sha256, split in indexed_documents(folder, index)]
    assert found == list(zip(frame.document, frame.sha256, frame.split, strict=True))


def edit(folder):
    (folder / "007.txt").write_text("something else")


def remove(folder):
    (folder / "007.txt").unlink()


def remove_last(folder):
    (folder / "019.txt").unlink()


def add(folder):
    (folder / "007a.txt").write_text("more")


def add_last(folder):
    (folder / "999.txt").write_text("more")


@pytest.mark.parametrize(
    ("change", "name"),
    [(edit, "007.txt"), (remove, "008.txt"), (remove_last, "019.txt"), (add, "007a.txt"), (add_last, "999.txt")],
)
def test_a_corpus_that_changed_after_indexing_is_refused(indexed, change, name):
    folder, index = indexed
    change(folder)
    with pytest.raises(UserError) as caught:
        list(indexed_documents(folder, index))
    assert name in str(caught.value)
    assert f"snakemake --cores all --force {index}" in str(caught.value)


def test_a_damaged_index_is_refused(indexed):
    folder, index = indexed
    index.write_bytes(index.read_bytes()[:-30])
    with pytest.raises(UserError, match=r"index\.parquet.*--force"):
        list(indexed_documents(folder, index))


def test_the_default_corpus_must_be_the_one_on_its_card(tmp_path):
    folder = write(tmp_path / "text", [70_000] * 20)
    documents = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    card = tmp_path / "card.json"
    card.write_text(json.dumps({"documents": documents, "never_held_out": ["003.txt"]}))
    index_stage(folder, tmp_path / "index.parquet", card=card)
    for change, name in ((add_last, "999.txt"), (edit, "007.txt"), (remove, "007.txt")):
        change(folder)
        with pytest.raises(UserError, match=rf"{name}: is missing, damaged or not of the corpus; .*--force {card}"):
            index_stage(folder, tmp_path / "index.parquet", card=card)
        (folder / "999.txt").unlink(missing_ok=True)


def test_documents_named_on_the_card_are_never_held_out(tmp_path):
    folder = write(tmp_path / "text", [70_000] * 20)
    index_stage(folder, tmp_path / "free.parquet")
    free = read_table(tmp_path / "free.parquet", "corpus")
    pilot = list(free.document[free.split == "heldout"])[:2]
    documents = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    (tmp_path / "card.json").write_text(json.dumps({"documents": documents, "never_held_out": pilot}))
    index_stage(folder, tmp_path / "index.parquet", card=tmp_path / "card.json")
    frame = read_table(tmp_path / "index.parquet", "corpus")
    assert not set(pilot) & set(frame.document[frame.split == "heldout"])
    assert (frame.split == "heldout").sum() == 3


def test_the_default_split(tmp_path):
    corpus = default_corpus()
    index_stage(corpus / "text", tmp_path / "index.parquet", card=corpus / "card.json")
    frame = read_table(tmp_path / "index.parquet", "corpus")
    held = frame[frame.split == "heldout"]
    assert list(held.document) == [
        f"shakespeare/{name}.txt"
        for name in ("lear", "lovers_complaint", "merchant_of_venice", "romeo_and_juliet", "taming_of_the_shrew")
    ]
    assert held.bytes.sum() == 551_791
    assert 0.05 * frame.bytes.sum() <= held.bytes.sum()


def test_the_corpus_digest_separates_its_parts():
    def digest(*rows):
        one = CorpusDigest()
        for row in rows:
            one.add(*row)
        return one.hexdigest()

    base = digest(("a", "1", "train"), ("b", "2", "heldout"))
    assert base == digest(("a", "1", "train"), ("b", "2", "heldout"))
    others = [
        (("b", "2", "heldout"), ("a", "1", "train")),
        (("a", "1", "heldout"), ("b", "2", "heldout")),
        (("a1", "", "train"), ("b", "2", "heldout")),
        (("a", "1", "train"),),
    ]
    assert len({base, *(digest(*rows) for rows in others)}) == 5
