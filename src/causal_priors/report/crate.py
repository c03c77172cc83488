"""The study as an RO-Crate: `results/{scale}/ro-crate-metadata.json`, by the profile Workflow Run Crate 0.5.

Archives, workflow registries and provenance tools read this form: which file came from which step, by which program, from
which files, each with its sha256. The workflow's own files are copied beside the results, since a crate holds what it
talks about. Nothing in it depends on when or where it was written: times, hosts and users are left out, which the
profile allows, and the date is that of the software's release. Sources: w3id.org/ro/crate/1.1 and
w3id.org/ro/wfrun/workflow/0.5.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from causal_priors import __version__
from causal_priors.artifacts import read_json, read_signed_json, sha256_file, write_bytes, write_json
from causal_priors.config import ROOT
from causal_priors.errors import refuse
from causal_priors.exploratory import PAGE, TABLES
from causal_priors.report.figures import FIGURES
from causal_priors.runs import Run
from causal_priors.study import Study
from causal_priors.yamlfile import load_yaml

METADATA, CODE = "ro-crate-metadata.json", "code"
CONTEXT = ["https://w3id.org/ro/crate/1.1/context", "https://w3id.org/ro/terms/workflow-run/context"]
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
_LICENSE = "https://spdx.org/licenses/MIT"
_WORKFLOW, _SOFTWARE, _STUDY = f"{CODE}/Snakefile", "#causal-priors", "#study"
_FORMATS = {
    ".json": "application/json",
    ".csv": "text/csv",
    ".md": "text/markdown",
    ".parquet": "application/vnd.apache.parquet",
    ".yaml": "application/yaml",
    ".bin": "application/octet-stream",
    ".safetensors": "application/octet-stream",
    ".html": "text/html",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
_TABLES = ["tables/summary.csv", "tables/summary.md", "tables/source.csv", "tables/source.md"]
_VERDICTS = [f"verdicts.{kind}" for kind in ("json", "parquet", "csv", "md")]
_THEORY = ["theory/theory.parquet", "theory/theory.csv"]
_SHARDS = [f"data/shards/{name}" for name in ("card.json", "documents.parquet", "heldout.bin", "train.bin")]
_TRAINED = ["model.safetensors", "losses.parquet", "positions.parquet", "run.json"]
EXPLORED = [f"tables/exploratory/{name}" for name in (PAGE, *(f"{table}.csv" for table in TABLES))]
DRAWN = [f"figures/{figure.name}.{kind}" for figure in FIGURES for kind in ("svg", "png")]
REPORT = "report.html"
_FINISH = "finish the study first"
Entity = dict[str, Any]


def workflow_files(scale: str) -> list[str]:
    """Files that make the workflow, from the repository's top: Snakefile, rules, config, the scale."""
    rules = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "workflow" / "rules").glob("*.smk"))
    return ["Snakefile", *rules, "workflow/config/config.yaml", f"workflow/config/scales/{scale}.yaml"]


def crate_stage(study: Study) -> None:
    """Copy the workflow's files into the study's folder and write the crate, last.

    Raises `UserError` where the study is not finished.
    """
    out = study.folder
    for name in workflow_files(study.scale.name):
        write_bytes(out / CODE / name, (ROOT / name).read_bytes())
    write_json(out / METADATA, {"@context": CONTEXT, "@graph": graph(study)})


def graph(study: Study) -> list[Entity]:
    """Return the crate's entities. Raises `UserError` where a file of the study is missing."""
    code = [f"{CODE}/{name}" for name in workflow_files(study.scale.name)]
    actions = [*_steps(study), *_runs(study)]
    used = dict.fromkeys(name for action in actions for name in (*action["object"], *action["result"]))
    results = [name for name in used if not name.startswith("#")]
    inputs = _inputs(study)
    study_action = _action(
        _STUDY,
        f"Study at scale {study.scale.name}",
        "Every step of the workflow, from text to verdicts.",
        [entity["@id"] for entity in inputs if entity["@type"] == "PropertyValue"],
        [*_VERDICTS, *_TABLES, *_THEORY],
        instrument=_WORKFLOW,
    )
    return [
        _descriptor(),
        _root(study, [*code, *results], [study_action, *actions]),
        *(
            {"@id": url, "@type": "CreativeWork", "name": name, "version": url.rpartition("/")[2]}
            for url, name in PROFILES.items()
        ),
        {"@id": _LICENSE, "@type": "CreativeWork", "name": "MIT licence", "identifier": "MIT"},
        {
            "@id": "#snakemake",
            "@type": "ComputerLanguage",
            "name": "Snakemake",
            "url": {"@id": "https://snakemake.github.io"},
        },
        {
            "@id": _SOFTWARE,
            "@type": "SoftwareApplication",
            "name": "causal-priors",
            "softwareVersion": __version__,
            "description": "Stages of the study: python -m causal_priors",
        },
        *inputs,
        *_outputs(),
        _workflow(code, inputs),
        *(_file(study.folder, name, {}) for name in code[1:]),
        *_files(study, results),
        _linked(study_action),
        *map(_linked, actions),
    ]


def _descriptor() -> Entity:
    return {
        "@id": METADATA,
        "@type": "CreativeWork",
        "about": {"@id": "./"},
        "conformsTo": _ids(["https://w3id.org/ro/crate/1.1", "https://w3id.org/workflowhub/workflow-ro-crate/1.0"]),
    }


def _root(study: Study, files: Iterable[str], actions: Iterable[Entity]) -> Entity:
    citation = load_yaml(ROOT / "CITATION.cff")
    return {
        "@id": "./",
        "@type": "Dataset",
        "name": f"{citation['title']}: the study at scale {study.scale.name}",
        "description": " ".join(str(citation["abstract"]).split()),
        "datePublished": str(citation["date-released"]),
        "license": {"@id": _LICENSE},
        "conformsTo": _ids(PROFILES),
        "mainEntity": {"@id": _WORKFLOW},
        "hasPart": _ids(files),
        "mentions": _ids(action["@id"] for action in actions),
    }


def _inputs(study: Study) -> list[Entity]:
    """Formal parameters of the workflow and their values: scale, corpus, and the sealed protocols."""
    corpus = str(read_signed_json(study.folder / "data/shards/card.json", remedy=_FINISH)["corpus"])
    seals = [
        f"{path.parent.name}: {read_json(path)['digest']}"
        for path in sorted(Path(study.config.preregistration).glob("*/seal.json"))
    ]
    found: list[Entity] = []
    for name, words, value in (
        ("scale", "sizes and budgets; value: name and digest", f"{study.scale.name} {study.scale.digest()}"),
        ("corpus", "the text; value: sha256 over its documents", corpus),
        ("preregistration", "the sealed protocols; value: the digest of each seal", seals),
    ):
        parameter, given = f"#parameter-{name}", f"#{name}"
        found.append(
            {
                "@id": parameter,
                "@type": "FormalParameter",
                "additionalType": "PropertyValue",
                "name": name,
                "description": words,
                "workExample": {"@id": given},
            }
        )
        found.append(
            {"@id": given, "@type": "PropertyValue", "name": name, "value": value, "exampleOfWork": {"@id": parameter}}
        )
    return found


def _outputs() -> list[Entity]:
    words = {
        "verdicts.json": "every registered test with all its numbers",
        "tables/summary.csv": "loss and far mass of each run",
    }
    return [
        {
            "@id": _parameter(name),
            "@type": "FormalParameter",
            "additionalType": "File",
            "name": Path(name).stem,
            "description": text,
            "workExample": {"@id": name},
        }
        for name, text in words.items()
    ]


def _parameter(output: str) -> str:
    return f"#parameter-{Path(output).stem}"


def _workflow(code: Sequence[str], inputs: Sequence[Entity]) -> Entity:
    return {
        "@id": _WORKFLOW,
        "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow"],
        "name": "causal-priors workflow",
        "description": "From text to verdicts: corpus, shards, training, evaluation, bias swaps, scoring, tables.",
        "version": __version__,
        "conformsTo": {"@id": "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"},
        "programmingLanguage": {"@id": "#snakemake"},
        "license": {"@id": _LICENSE},
        "input": _ids(entity["@id"] for entity in inputs if entity["@type"] == "FormalParameter"),
        "output": _ids(entity["@id"] for entity in _outputs()),
        "hasPart": _ids([_SOFTWARE, *code[1:]]),
    }


def _steps(study: Study) -> Iterator[Entity]:
    """The steps that are no run's: data, theory, verdicts, tables."""
    tables = [_inside(study, path) for path in study.evaluation_files()]
    yield _action(
        "#shards", "shards", "Tokenise the corpus into shards.", ["#corpus"], ["data/tokenizer.json", *_SHARDS]
    )
    yield _action("#theory", "theory", "Compute what needs no training.", ["#scale"], ["theory/margins.json", *_THEORY])
    yield _action("#verdicts", "score", "Score the registered tests.", ["#preregistration", *tables], _VERDICTS)
    yield _action("#exploratory", "exploratory", "Analyse what nobody registered.", tables, EXPLORED)
    yield _action("#summary", "summary", "Summarise loss and far mass.", tables, _TABLES[:2])
    yield _action(
        "#source", "source", "Set the outcome beside the source's.", ["verdicts.json", _TABLES[0]], _TABLES[2:]
    )
    yield _action("#figures", "figures", "Draw the figures.", [*tables, _TABLES[0], _THEORY[0]], DRAWN)
    yield _action("#page", "report", "Write the page.", ["verdicts.json", *_TABLES[::2], EXPLORED[0], *DRAWN], [REPORT])


def _runs(study: Study) -> Iterator[Entity]:
    """One action per job of a run: train, evaluate, each bias swap."""
    edits: dict[Run, list[str]] = {}
    for item in study.interventions():
        edits.setdefault(item.run, []).append(item.edit)
    for run in study.runs():
        name, folder = run.name(study.scale), _inside(study, study.run_folder(run))
        trained = [f"{folder}/{file}" for file in _TRAINED]
        given = [*_SHARDS, *(["theory/margins.json"] if study.needs_margins(run) else [])]
        read = [trained[0], trained[-1], *_SHARDS]
        yield _action(f"#train-{name}", f"train {name}", "Train one run.", given, trained)
        yield _action(
            f"#evaluate-{name}", f"evaluate {name}", "Evaluate one run.", read, [f"{folder}/evaluation.parquet"]
        )
        for edit in edits.get(run, []):
            words = f"Change the log-prior beyond the training length ({edit})."
            yield _action(f"#{edit}-{name}", f"intervene {name} {edit}", words, read, [f"{folder}/{edit}.parquet"])


def _action(
    key: str, name: str, words: str, given: Sequence[str], made: Sequence[str], instrument: str = _SOFTWARE
) -> Entity:
    """An action; `object` and `result` hold plain names until `_linked` turns them into references."""
    return {
        "@id": key,
        "@type": "CreateAction",
        "name": name,
        "description": words,
        "instrument": {"@id": instrument},
        "actionStatus": {"@id": "http://schema.org/CompletedActionStatus"},
        "object": list(given),
        "result": list(made),
    }


def _linked(action: Entity) -> Entity:
    return {**action, "object": _ids(action["object"]), "result": _ids(action["result"])}


def _files(study: Study, names: Iterable[str]) -> Iterator[Entity]:
    known: dict[str, str] = {}
    for run in study.runs():
        folder = study.run_folder(run)
        # A run's card names its files' digests, which whoever used them has checked: gigabytes need no second look.
        outputs = read_signed_json(folder / "run.json", remedy=_FINISH)["outputs"]
        known.update({f"{_inside(study, folder)}/{file}": digest for file, digest in outputs.items()})
    for name in names:
        extra = {"exampleOfWork": {"@id": _parameter(name)}} if name in ("verdicts.json", "tables/summary.csv") else {}
        yield _file(study.folder, name, extra, known.get(name))


def _file(folder: Path, name: str, extra: Entity, digest: str | None = None) -> Entity:
    path = folder / name
    if not path.is_file():
        raise refuse("is not there", file=path, remedy=_FINISH)
    return {
        "@id": name,
        "@type": "File",
        "name": name,
        "contentSize": str(path.stat().st_size),
        "encodingFormat": _FORMATS.get(path.suffix, "text/plain"),
        "sha256": digest or sha256_file(path),
        **extra,
    }


def _inside(study: Study, path: Path) -> str:
    return path.relative_to(study.folder).as_posix()


def _ids(names: Iterable[str]) -> list[Entity]:
    return [{"@id": name} for name in names]
