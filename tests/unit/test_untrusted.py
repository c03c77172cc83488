"""Files from elsewhere are data: nothing in them is executed, leads out of its folder, or fills the memory.

Fuzzing is in tests/fuzz; corpus files are in test_data_documents.py.
"""

import ast
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile

import helpers
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from causal_priors.arms import ARMS
from causal_priors.artifacts import read_json, sha256_file, write_signed_json
from causal_priors.audit.run_chain import count_parameters
from causal_priors.config import ROOT, load_config, scale_file
from causal_priors.data.archives import read_members
from causal_priors.errors import UserError, refuse, shown
from causal_priors.prereg.protocol import load_protocols
from causal_priors.prereg.seal import check_seals
from causal_priors.runs import Run
from causal_priors.train.checkpoint import build_model, is_committed, read_card, read_checkpoint, save_weights
from causal_priors.train.resume import STATE_FILE, load_state
from causal_priors.yamlfile import load_yaml, parse_yaml

SOURCE = ROOT / "src" / "causal_priors"
NANO, RUN = helpers.scale("nano"), Run("S", "rope", 1, 0)


# Nothing is executed.


def called(tree):
    """Dotted names of all calls in a syntax tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_module_unpickles_or_evaluates(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names])
    }
    assert not imported & {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    for name, node in called(tree):
        if name == "torch.load":
            assert ast.unparse(node).endswith("weights_only=True)"), ast.unparse(node)
        # An arm of one's own is code, and the README says so; `yamlfile` has the one safe loader.
        assert name not in {"eval", "np.load", "pd.read_pickle", "yaml.unsafe_load", "yaml.full_load", "os.system"}
        assert name != "exec" or path.name == "own_arms.py"
        assert name != "yaml.load" or path.name == "yamlfile.py"
        # shtab's `shell` is the name of one to write completions for.
        assert name == "shtab.complete" or all(word.arg != "shell" for word in node.keywords), ast.unparse(node)


def test_the_readme_says_that_an_arm_file_is_code():
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert "The file is code and is executed: list only what you trust." in text


# YAML and JSON.


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("!!python/object/apply:os.system ['true']", "tags are refused"),
        ("a: !!binary aGk=", "tags are refused"),
        ("!!bool maybe", "tags are refused"),
        ("!!str [a]", "tags are refused"),
        ("!!int [1]", "tags are refused"),
        ("a: ! b", "tags are refused"),
        ("a: &x [1]\nb: *x", "aliases are refused"),
        ("<<: {a: 1}", "is not YAML"),
        ("a: .inf", "is not a plain finite number"),
        ("a: .NaN", "is not a plain finite number"),
        ("a: 1.0e+999", "is not a plain finite number"),
        ("a: 1:30.5", "is not a plain finite number"),
        ("a: 9223372036854775808", "is a number above 64 bits"),
        ("a: " + "9" * 5000, "is a number above 64 bits"),
        ('a: "\\ud800"', "is a character that no text may hold|invalid Unicode character"),
        ('a: "x\\0y"', "is a character that no text may hold"),
        # Newer builds of libyaml have a limit of their own.
        ("[" * 100_000, "is nested more than 32 deep|exceeded maximum nesting depth"),
        ("{a: " * 100_000, "is nested more than 32 deep"),
        ("- " * 100_000, "is nested more than 32 deep"),
    ],
)
def test_what_yaml_could_do_is_refused(text, problem):
    with pytest.raises(UserError, match=problem) as error:
        parse_yaml(text, "file")
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("text", ["a: .5", "a: 5.e-1", "a: +0.5", "a: 50.0e-2"])
def test_plain_numbers_are_read(text):
    assert parse_yaml(text.replace("5.e-1", "5.0e-1"), "file") == {"a": 0.5}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 100_000, "is not JSON"),
        ("[NaN]", "NaN is not a finite number"),
        ("[-Infinity]", "is not a finite number"),
        ("[1e999]", "1e999 is not a finite number"),
        ("[" + "1" * 30 + "]", "is above 64 bits"),
        ('["\\ud800"]', "is not JSON"),
        ("", "is not JSON"),
    ],
)
def test_json_that_this_program_never_writes_is_refused(tmp_path, text, problem):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UserError, match=problem):
        read_json(tmp_path / "a.json")


def test_pipes_and_devices_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "a")
    for load in (load_yaml, read_json):
        with pytest.raises(UserError, match="is no regular file"):
            load(tmp_path / "a")
        with pytest.raises(UserError, match="is no regular file"):
            load("/dev/zero")


def test_an_error_is_one_short_line():
    error = refuse("is wrong", file="a\nb\x1b[31m\ud800.txt", value="x" * 10_000)
    assert str(error).startswith("a\\nb\\x1b[31m\\ud800.txt: 'xxx")
    assert len(str(error)) < 400
    str(error).encode()
    assert shown("short") == "'short'"


# Memory: each case may take this much above what the loaded modules take.
HEADROOM = """
import resource, sys
from causal_priors.data.documents import iter_documents
from causal_priors.errors import UserError
from causal_priors.artifacts import read_json
from causal_priors.yamlfile import load_yaml
import pyarrow.parquet
kind, path, megabytes = sys.argv[1:]
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (int(megabytes) << 20)
resource.setrlimit(resource.RLIMIT_AS, (size, size))
load = {"yaml": load_yaml, "json": read_json, "corpus": lambda folder: sum(1 for _ in iter_documents(folder))}[kind]
try:
    print(load(path))
except UserError as error:
    print("refused:", error)
"""
LAUGHS = "\n".join(["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))])


def in_limits(kind, path, megabytes):
    command = [sys.executable, "-c", HEADROOM, kind, str(path), str(megabytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("kind", ["yaml", "json"])
def test_100_mb_in_one_line_end_in_an_error(tmp_path, kind):
    with open(tmp_path / "long", "wb") as file:
        file.write(b'"')
        file.truncate(100 << 20)
    assert "refused" in (found := in_limits(kind, tmp_path / "long", 96))
    assert "is larger than" in found


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_100_mb_of_corpus_in_one_line_end_in_an_error(tmp_path, name):
    with open(tmp_path / name, "wb") as file:
        file.write(b'{"text": "')
        file.truncate(100 << 20)
    assert "longer than 32 MiB" in in_limits("corpus", tmp_path, 160)


def test_a_yaml_bomb_ends_in_an_error(tmp_path):
    (tmp_path / "bomb.yaml").write_text(LAUGHS)
    assert "aliases are refused" in in_limits("yaml", tmp_path / "bomb.yaml", 64)


def test_a_kilobyte_of_parquet_that_repeats_a_long_text_does_not_fill_the_memory(tmp_path):
    # 2,000 rows of 4 MB are 8 GB; the file's schema does not say that they are one value.
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array(["word " * 800_000]))
    options = {"compression": "zstd", "store_schema": False, "dictionary_pagesize_limit": 1 << 30}
    pq.write_table(pa.table({"text": text.slice(0, 40)}), tmp_path / "a.parquet", **options)
    assert in_limits("corpus", tmp_path, 400) == "40\n"
    assert (tmp_path / "a.parquet").stat().st_size < 4096


# Names lead nowhere.


@pytest.mark.parametrize("name", ["../scales/micro", "/etc/passwd", "micro.yaml", "", "..", "micro\n"])
def test_a_scale_is_a_name_and_no_path(name):
    with pytest.raises(UserError, match="is not a scale; known scales: micro"):
        scale_file(name)


CONFIG = load_yaml(ROOT / "workflow" / "config" / "config.yaml")


@pytest.mark.parametrize("key", ["results", "preregistration"])
@pytest.mark.parametrize(
    "value", ["a; touch b", "a b", "$(id)", "a{b}", "-rf", "a'b", "a\tb", "a*", "`id`", "a&b", "a\n"]
)
def test_a_folder_of_the_config_can_be_no_command(key, value):
    with pytest.raises(UserError, match=f"{key} = .*: has a wrong value"):
        load_config({**CONFIG, key: value}, "config.yaml")


@pytest.mark.parametrize("key", ["corpus", "text_column", "corpus_archives"])
def test_what_is_quoted_is_no_pattern_of_snakemake(key):
    for value in ("a b'c", "ä;x"):
        assert getattr(load_config({**CONFIG, key: value}, "config.yaml"), key) == value
    for value in ("{run}", "a\nb"):
        with pytest.raises(UserError, match=f"{key} = .*: has a wrong value"):
            load_config({**CONFIG, key: value}, "config.yaml")


@pytest.mark.parametrize("value", ["results", "/scratch/me/x-1_2", "../elsewhere", "r.1/é"])
def test_ordinary_folders_are_taken(value):
    assert load_config({**CONFIG, "results": value}, "config.yaml").results == value


def archive(path, names):
    """A .tar.gz or a wheel with members of these names, and links."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path, "w") as file:
            for name in names:
                file.writestr(name, "text")
        return path
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"text"))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            member = tarfile.TarInfo(f"link{kind.decode()}")
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
    return path


@pytest.mark.parametrize("file", ["a.tar.gz", "a.whl"])
def test_members_of_an_archive_are_read_and_written_nowhere(tmp_path, file, monkeypatch):
    names = ["../../evil", "/tmp/evil", "a/../../evil", "fine"]
    path = archive(tmp_path / file, names)
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert read_members(path, lambda name: True) == dict.fromkeys(names, b"text")
    assert sorted(found.name for found in tmp_path.rglob("*")) == [file, "here"]


def test_an_encrypted_member_is_a_damage(tmp_path):
    path = archive(tmp_path / "a.whl", ["fine"])
    data = bytearray(path.read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + flags] |= 1
    path.write_bytes(bytes(data))
    with pytest.raises(UserError, match="is damaged"):
        read_members(path, lambda name: True)


def test_a_member_that_unpacks_to_more_than_the_limit_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.whl", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("bomb", b"\0" * (65 << 20))
    with pytest.raises(UserError, match="bomb of more than 64 MiB"):
        read_members(tmp_path / "a.whl", lambda name: True)


def test_a_run_card_that_names_other_files_is_refused(tmp_path):
    card = {"status": "finished", "inputs": {}, "parameters": {"margins": None}}
    outputs = dict.fromkeys(("model.safetensors", "losses.parquet", "positions.parquet"), "0")
    write_signed_json(tmp_path / "run.json", {**card, "outputs": outputs})
    assert read_card(tmp_path)["status"] == "finished"
    for wrong in ({**outputs, "../../x": "0"}, {"/etc/passwd": "0"}):
        write_signed_json(tmp_path / "run.json", {**card, "outputs": wrong})
        with pytest.raises(UserError, match="is not the card of a training run"):
            read_card(tmp_path)
        assert not is_committed(tmp_path, {})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run at scale nano, untrained but whole."""
    folder = tmp_path_factory.mktemp("run") / "run"
    folder.mkdir()
    save_weights(build_model(RUN, NANO, ARMS["rope"], None), folder / "model.safetensors")
    return sealed(folder)


def sealed(folder):
    """Write the card of the run in `folder` for the files that lie there."""
    parameters = {"run": RUN.name(NANO), "scale": NANO.digest(), "arm": ARMS["rope"].resolved(), "margins": None}
    outputs = {
        "model.safetensors": sha256_file(folder / "model.safetensors"),
        "losses.parquet": "",
        "positions.parquet": "",
    }
    card = {"status": "finished", "inputs": {}, "parameters": parameters, "outputs": outputs}
    write_signed_json(folder / "run.json", card)
    return folder


def read_run(folder):
    return read_checkpoint(RUN, NANO, ARMS["rope"], folder).model(RUN, NANO, ARMS["rope"])


@pytest.mark.parametrize("name", ["model.safetensors", "run.json"])
@pytest.mark.parametrize("target", ["absolute", "relative", "device", "inside"])
def test_a_checkpoint_does_not_reach_out_of_its_folder(tmp_path, trained, name, target):
    folder = shutil.copytree(trained, tmp_path / "run")
    read_run(folder)
    (folder / name).rename(tmp_path / name if target != "inside" else folder / "other")
    way = {"absolute": tmp_path / name, "relative": f"../{name}", "device": "/dev/zero", "inside": "other"}[target]
    (folder / name).symlink_to(way)
    if target == "inside":
        read_run(folder)
    else:
        with pytest.raises(UserError, match=f"{name}: is a link that leads out of its folder"):
            read_run(folder)


def test_a_register_does_not_reach_out_of_its_folders(tmp_path):
    register = shutil.copytree(ROOT / "preregistration", tmp_path / "register")
    folder = register / "0002-position-screening"
    for name in ("protocol.yaml", "seal.json", "plan.md"):
        (folder / name).rename(tmp_path / name)
        (folder / name).symlink_to(tmp_path / name)
        with pytest.raises(UserError, match=f"{name}: is a link that leads out of its folder"):
            check_seals(register)
        (folder / name).unlink()
        (tmp_path / name).rename(folder / name)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="0002-position-screening: is a link to a folder"):
        load_protocols(register)


def test_a_config_does_not_reach_out_of_its_folder(tmp_path):
    (tmp_path / "config.yaml").symlink_to(ROOT / "workflow" / "config" / "config.yaml")
    with pytest.raises(UserError, match=r"config\.yaml: is a link that leads out of its folder"):
        load_yaml(tmp_path / "config.yaml")


def test_a_header_as_large_as_a_model_is_not_parsed(tmp_path, trained):
    """Parsing it would take 28 times its size."""
    folder = shutil.copytree(trained, tmp_path / "run")
    header = json.dumps(
        {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(20_000)}
    ).encode()
    assert len(header) > 1 << 20
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(UserError, match=r"model\.safetensors: is not safetensors \(its header is larger than 1 MB\)"):
        read_run(sealed(folder))
    with pytest.raises(UserError, match="is not safetensors"):
        count_parameters(folder / "model.safetensors")
    shutil.copy(folder / "model.safetensors", folder / STATE_FILE)
    assert "is damaged (its header is larger than 1 MB)" in load_state(folder, {})[1]


def test_weights_larger_than_a_model_can_be_are_not_read(tmp_path, trained):
    folder = shutil.copytree(trained, tmp_path / "run")
    with open(folder / "model.safetensors", "r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match=r"model\.safetensors: is larger than 1024 MB; rebuild it: snakemake"):
        read_run(folder)
