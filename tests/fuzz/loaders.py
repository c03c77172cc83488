"""Coverage-guided fuzzing of what reads files from elsewhere: `python tests/fuzz/loaders.py TARGET -runs=100000`.

Needs `atheris` (envs/fuzz.txt, which `make test-all` installs where there is a wheel of it). Any exception but
`UserError` ends the run with the input that caused it. Each target starts from a valid file, which is written into the
folder of inputs.
"""

import gzip
import json
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["causal_priors", "yaml", "json"]):
    import pyarrow as pa
    import pyarrow.parquet as pq

    from causal_priors.artifacts import read_signed_json, write_signed_json
    from causal_priors.audit.run_chain import count_parameters
    from causal_priors.config import ROOT, SCALES, load_config, load_scale
    from causal_priors.data.documents import iter_documents
    from causal_priors.data.tokenizer import load_tokenizer
    from causal_priors.errors import UserError
    from causal_priors.prereg.protocol import load_protocols
    from causal_priors.tables import read_table, write_table
    from causal_priors.yamlfile import parse_yaml

FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))


def corpus(name):
    """Read a corpus of one file."""

    def load(data):
        (FOLDER / name).write_bytes(data)
        for document in iter_documents(FOLDER):
            document.text.encode()

    return load


def placed(name, load):
    """Write the input to a file and load that."""

    def put_and_load(data):
        path = FOLDER / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        load(path)

    return put_and_load


def scale(path):
    """Load a scale and take its digest."""
    load_scale(path).digest()


def parquet(rows):
    """Bytes of a parquet file of texts."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": rows}), sink)
    return sink.getvalue().to_pybytes()


def table():
    """Bytes of a good table."""
    write_table({"step": [1], "loss": [1.0], "lr": [0.1], "grad_norm": [1.0]}, FOLDER / "good", "losses")
    return (FOLDER / "good").read_bytes()


def card():
    """Bytes of a signed card."""
    write_signed_json(FOLDER / "good", {"margins": {"a": 1.0}, "inputs": {}})
    return (FOLDER / "good").read_bytes()


CONFIG = (ROOT / "workflow/config/config.yaml").read_bytes()
PROTOCOL = (ROOT / "preregistration/0001-transport-screening/protocol.yaml").read_bytes()
LINES = b'{"text": "one"}\n{"text": "two", "n": [1.5, null]}\n'
SAFETENSORS = (
    (len(HEADER := json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode())).to_bytes(
        8, "little"
    )
    + HEADER
    + b"\0\0\0\0"
)

TARGETS = {
    "config": (lambda data: load_config(parse_yaml(data.decode(), "config"), "config"), CONFIG),
    "scale": (placed("micro.yaml", scale), (SCALES / "micro.yaml").read_bytes()),
    "protocol": (placed("0001-a/protocol.yaml", lambda path: load_protocols(path.parents[1])), PROTOCOL),
    "txt": (corpus("a.txt"), b"some text\r\n"),
    "jsonl": (corpus("a.jsonl"), LINES),
    "gz": (corpus("a.jsonl.gz"), gzip.compress(LINES)),
    "parquet": (corpus("a.parquet"), parquet(["one", "two"])),
    "table": (placed("a", lambda path: read_table(path, "losses")), table()),
    "card": (placed("a", read_signed_json), card()),
    "tokenizer": (placed("a", load_tokenizer), b'{"format": 1}'),
    "weights": (placed("a", count_parameters), SAFETENSORS),
}


def main():
    """Fuzz the target that the first argument names."""
    name = sys.argv.pop(1)
    load, seed = TARGETS[name]

    def one(data):
        try:
            load(data)
        except (UserError, UnicodeDecodeError) as error:
            # Text is decoded before `parse_yaml`; everything else must say it itself.
            if isinstance(error, UnicodeDecodeError) and name != "config":
                raise

    inputs = FOLDER / "inputs"
    inputs.mkdir()
    (inputs / "seed").write_bytes(seed)
    # libFuzzer ends the process where memory or time run away, too.
    limits = ["-rss_limit_mb=2048", "-timeout=20", f"-artifact_prefix={FOLDER}/"]
    atheris.Setup([sys.argv[0], str(inputs), *limits, *sys.argv[1:]], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
