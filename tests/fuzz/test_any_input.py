"""Any file whatever is read or refused in one line: hypothesis writes configs, registers, corpora, cards, tables, runs.

The short form tries the same inputs each time; the long one (`make test-all`) forty times as many, other ones each time.
"""

import gzip
import json
import shutil

import helpers
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from causal_priors.arms import ARMS
from causal_priors.artifacts import digest_of, read_json, read_signed_json, sha256_file, write_json, write_signed_json
from causal_priors.config import ROOT, SCALES, load_config, load_scale
from causal_priors.data.corpus import read_corpus_card
from causal_priors.data.documents import iter_documents
from causal_priors.data.shards import open_shards, spans
from causal_priors.data.split import index_totals
from causal_priors.data.tokenizer import load_tokenizer
from causal_priors.errors import UserError
from causal_priors.loading import load_run
from causal_priors.own_arms import own_arm
from causal_priors.prereg.decidable import check_decidable
from causal_priors.prereg.ledger import check_references, load_amendments
from causal_priors.prereg.protocol import load_protocols
from causal_priors.prereg.seal import check_seals
from causal_priors.prereg.verdict_tables import read_verdicts
from causal_priors.runs import Run
from causal_priors.tables import SCHEMAS, iter_table, read_metadata, read_table, write_table
from causal_priors.theory.margin import read_margins
from causal_priors.train.loop import train_stage
from causal_priors.train.resume import STATE_FILE, TrainingState, load_state, save_state
from causal_priors.yamlfile import load_yaml, parse_yaml

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12),
    st.sampled_from(
        ["rope", "log", "cap", "S", "C", "plain", "even", "..", "/etc", "0001-a", "A1", "2026-01-01", "loss"]
    ),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcdeij_-", max_size=5), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(params=[1, pytest.param(40, marks=pytest.mark.slow)], ids=["short", "long"])
def times(request):
    """How many times the number of examples of the short form."""
    return request.param


def fuzz(strategy, check, examples, times):
    """Call `check` with inputs that hypothesis chooses."""

    @settings(
        deadline=None,
        max_examples=examples * times,
        derandomize=times == 1,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def run(data):
        check(data)

    run()


def outcome(load, *arguments):
    """What `load` returns, or the text of its one error; any other exception goes through."""
    try:
        return load(*arguments)
    except UserError as error:
        text = str(error)
        assert text
        assert "\n" not in text
        return text


def places(data, place=()):
    """Every place inside nested lists and mappings."""
    yield place
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from places(value, (*place, key))


@st.composite
def damaged(draw, data):
    """`data` with some parts replaced, removed, doubled or exchanged."""
    data = json.loads(json.dumps(data))
    for _ in range(draw(st.integers(1, 3))):
        found = list(places(data))[1:]
        if not found:
            break
        *way, last = draw(st.sampled_from(found))
        inside = data
        for key in way:
            inside = inside[key]
        action = draw(st.sampled_from(["replace", "remove", "double", "add"]))
        if action == "replace":
            inside[last] = draw(ANYTHING)
        elif action == "remove":
            del inside[last]
        elif isinstance(inside, list):
            inside.append(json.loads(json.dumps(inside[last])))
        else:
            inside[draw(st.text("abcdeij_-", max_size=5))] = draw(ANYTHING)
    return data


@st.composite
def changed(draw, content):
    """`content`, bytes, with a few others in it, and sometimes cut short."""
    found = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        found[draw(st.integers(0, len(found) - 1))] = draw(st.integers(0, 255))
    return bytes(found[: draw(st.integers(0, len(found)))] if draw(st.booleans()) else found)


CONFIG = load_yaml(ROOT / "workflow" / "config" / "config.yaml")
MICRO = load_yaml(SCALES / "micro.yaml")


def test_any_config(times):
    fuzz(damaged(CONFIG) | ANYTHING, lambda data: outcome(load_config, data, "config.yaml"), 60, times)


def test_any_scale(tmp_path, times):
    path = tmp_path / "micro.yaml"

    def check(data):
        path.write_text(yaml.safe_dump(data, allow_unicode=True), encoding="utf-8")
        found = outcome(load_scale, path)
        assert isinstance(found, str) or len(found.digest()) == 64

    fuzz(damaged(MICRO) | ANYTHING, check, 60, times)


def test_any_text_is_yaml(times):
    text = st.text(max_size=200) | st.text("{}[]:,-&*!|>'\"#%@ \nab01.", max_size=80)
    fuzz(text, lambda text: outcome(parse_yaml, text, "file"), 150, times)


def test_any_bytes_are_yaml_or_json(tmp_path, times):
    path = tmp_path / "file"
    good = json.dumps(MICRO).encode()

    def check(data):
        path.write_bytes(data)
        outcome(load_yaml, path)
        outcome(read_json, path)

    fuzz(st.binary(max_size=60) | changed(good), check, 100, times)


COMPOSED = {"key": "fox-rope", "rotation": "rope", "log_prior": "fox", "transport": {"strength": 0.75}, "log_n": True}


def test_any_composition_of_an_arm(times):
    fuzz(damaged(COMPOSED) | ANYTHING, lambda data: outcome(own_arm, f" {json.dumps(data)}", ARMS), 60, times)


def test_any_register(tmp_path, times):
    register = shutil.copytree(ROOT / "preregistration", tmp_path / "preregistration")
    files = {path: path.read_text(encoding="utf-8") for path in sorted(register.rglob("*.yaml"))}

    def load():
        protocols = load_protocols(register)
        check_references(protocols, register)
        for protocol in protocols:
            check_decidable(protocol)
            load_amendments(protocol, "0" * 64, "2026-01-01")

    def check(data):
        path = data.draw(st.sampled_from(list(files)))
        good = yaml.safe_load(files[path])
        path.write_text(yaml.safe_dump(data.draw(damaged(good) | ANYTHING), allow_unicode=True), encoding="utf-8")
        try:
            outcome(load)
            outcome(check_seals, register)
        finally:
            path.write_text(files[path], encoding="utf-8")

    fuzz(st.data(), check, 25, times)


def test_any_json_as_a_card_or_a_tokenizer(tmp_path, times):
    path = tmp_path / "card.json"

    def check(data):
        write_json(path, data)
        for load in (read_signed_json, read_margins, read_corpus_card, load_tokenizer, read_verdicts):
            outcome(load, path)
        outcome(open_shards, tmp_path)
        if isinstance(data, dict):
            write_signed_json(path, data)
            for load in (read_margins, read_corpus_card, load_tokenizer, read_verdicts):
                outcome(load, path)
            outcome(open_shards, tmp_path)

    fuzz(ANYTHING, check, 60, times)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return helpers.write_shards(tmp_path_factory.mktemp("shards"), helpers.scale("nano"))


def test_any_shards(tmp_path, shards, times):
    good = {path.name: path.read_bytes() for path in shards.iterdir() if path.is_file()}
    card = {key: value for key, value in json.loads(good["card.json"]).items() if key != "digest"}
    rows = read_table(shards / "documents.parquet", "documents")

    def check(data):
        for name in ("train.bin", "heldout.bin"):
            (tmp_path / name).write_bytes(good[name])
        write_signed_json(tmp_path / "card.json", data.draw(damaged(card)))
        place, wrong = data.draw(st.integers(0, len(rows) - 1)), rows.copy()
        for key in ("offset", "tokens"):
            wrong.loc[place, key] = data.draw(st.sampled_from([0, -1, 2**62, int(rows.loc[place, key])]))
        write_table(wrong, tmp_path / "documents.parquet", "documents")
        outcome(open_shards, tmp_path)
        for split in ("train", "heldout"):
            outcome(spans, tmp_path, split)

    fuzz(st.data(), check, 30, times)


COLUMNS = {
    "bytes": st.integers(-(2**62), 2**62) | st.none(),
    "document": st.text(max_size=5) | st.none(),
    "sha256": st.text(max_size=5) | st.none(),
    "split": st.sampled_from(["train", "heldout", "duplicate", "", "x"]) | st.none(),
}


def test_any_index(tmp_path, times):
    def check(rows):
        frame = pd.DataFrame(rows, columns=SCHEMAS["corpus"].names).astype({"bytes": "Int64"})
        write_table(frame, tmp_path / "index.parquet", "corpus")
        outcome(index_totals, tmp_path / "index.parquet")

    fuzz(st.lists(st.fixed_dictionaries(COLUMNS), max_size=4), check, 30, times)


def test_any_table(tmp_path, times):
    """Bytes of a good table changed; tables of other columns; metadata that is no text."""
    path = tmp_path / "table.parquet"
    write_table({"step": [1, 2], "loss": [1.0, 2.0], "lr": [0.1, 0.1], "grad_norm": [1.0, 1.0]}, path, "losses")
    good = path.read_bytes()

    def check(data):
        if data.draw(st.booleans()):
            path.write_bytes(data.draw(changed(good)))
        else:
            names = data.draw(st.lists(st.text(max_size=4), max_size=3, unique=True))
            keys = st.sampled_from([b"kind", b"version", b"sha256", b"\xff"])
            metadata = data.draw(st.dictionaries(keys, st.binary()))
            pq.write_table(pa.table({name: [1] for name in names}).replace_schema_metadata(metadata), path)
        for kind in ("losses", "evaluation"):
            outcome(read_table, path, kind)
            outcome(read_metadata, path, kind)
            outcome(lambda kind=kind: list(iter_table(path, kind)))

    fuzz(st.data(), check, 80, times)


def read(folder):
    return [document.text.encode() for document in iter_documents(folder)]


LINE = st.one_of(
    ANYTHING.map(lambda data: json.dumps(data).encode()),
    st.dictionaries(st.sampled_from(["text", "a", "\ud800"]), SCALARS, max_size=2).map(
        lambda data: json.dumps(data).encode()
    ),
    st.sampled_from([b"[" * 3000, b'{"text": ' * 3000, b'{"text": "\\ud800"}', b'{"text": 1e999}', b"\xff\xfe", b""]),
    st.binary(max_size=20),
)


def test_any_lines_as_jsonl(tmp_path, times):
    def check(data):
        lines, packed = data
        content = b"\n".join(lines)
        (tmp_path / "a.jsonl").unlink(missing_ok=True)
        (tmp_path / "a.jsonl.gz").unlink(missing_ok=True)
        if packed:
            (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(content, 1))
        else:
            (tmp_path / "a.jsonl").write_bytes(content)
        outcome(read, tmp_path)

    fuzz(st.tuples(st.lists(LINE, max_size=5), st.booleans()), check, 100, times)


TYPES = {
    pa.string(): st.text(max_size=9) | st.none(),
    pa.large_binary(): st.binary(max_size=9) | st.none(),
    pa.int64(): st.integers(-5, 5),
    pa.list_(pa.string()): st.lists(st.text(max_size=3), max_size=2),
    pa.dictionary(pa.int8(), pa.string()): st.sampled_from(["x", "y", "\0", ""]),
    pa.struct([("text", pa.string())]): st.fixed_dictionaries({"text": st.text(max_size=3)}),
}


@st.composite
def parquet(draw):
    """A file with a column `text` of any type, as it was written or with other bytes in it."""
    kind = draw(st.sampled_from(list(TYPES)))
    rows = pa.array(draw(st.lists(TYPES[kind], max_size=6)), kind)
    sink = pa.BufferOutputStream()
    compression = draw(st.sampled_from(["zstd", "snappy", "none"]))
    pq.write_table(pa.table({"text": rows}), sink, compression=compression, row_group_size=2)
    content = sink.getvalue().to_pybytes()
    return draw(changed(content)) if draw(st.booleans()) else content


def test_any_parquet(tmp_path, times):
    def check(content):
        (tmp_path / "a.parquet").write_bytes(content)
        outcome(read, tmp_path)

    fuzz(parquet(), check, 80, times)


NANO, RUN = helpers.scale("nano"), Run("S", "log", 1, 0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, shards):
    folder = tmp_path_factory.mktemp("run") / RUN.name(NANO)
    train_stage(RUN, NANO, ARMS[RUN.arm], shards, folder, "c" * 64)
    return folder


def test_any_run(tmp_path, trained, times):
    """A card with other entries, weights of other bytes, a scale of its own: all signed as if they were meant."""
    folder = shutil.copytree(trained, tmp_path / "run")
    good = (folder / "model.safetensors").read_bytes()
    card = {key: value for key, value in json.loads((folder / "run.json").read_text()).items() if key != "digest"}

    def check(data):
        forged = data.draw(damaged(card)) if data.draw(st.booleans()) else json.loads(json.dumps(card))
        # The header is where forging pays.
        start = int.from_bytes(good[:8], "little") + 8
        head = data.draw(changed(good[:start])) if data.draw(st.booleans()) else good[:start]
        (folder / "model.safetensors").write_bytes(head + good[start:])
        if isinstance(forged.get("outputs"), dict):
            forged["outputs"]["model.safetensors"] = sha256_file(folder / "model.safetensors")
        (folder / "scale.json").unlink(missing_ok=True)
        if data.draw(st.booleans()):
            own = data.draw(damaged(NANO.resolved()))
            write_json(folder / "scale.json", own)
            if isinstance(forged.get("parameters"), dict):
                forged["parameters"]["scale"] = digest_of(own)
        write_signed_json(folder / "run.json", forged)
        outcome(load_run, folder)

    fuzz(st.data(), check, 40, times)


def test_any_resume_state(tmp_path, times):
    save_state(TrainingState(losses=[], positions=[]), tmp_path, {"a": "b"})
    good = (tmp_path / STATE_FILE).read_bytes()

    def check(data):
        (tmp_path / STATE_FILE).write_bytes(data)
        state, reason = load_state(tmp_path, {"a": "b"})
        assert data == good or (state is None and "\n" not in reason)

    fuzz(changed(good) | st.binary(max_size=40), check, 100, times)
