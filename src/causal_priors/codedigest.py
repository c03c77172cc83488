"""A digest of the code that a stage's numbers depend on, so that edits rerun what they touch and nothing else.

It covers the modules a stage reaches through module-level imports, plus the modules the arm's row names (imports inside
functions are how optional parts are reached). Comments, docstrings and blank lines do not count, nor does anything a
parser of another Python version would print differently: only source text is hashed. The table of arms is left out, its
one resolved row counts instead; so are modules that only carry numbers (files, errors, progress). The file of an arm of
one's own counts like a module.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from causal_priors.arms import Arm
from causal_priors.artifacts import digest_of, sha256_bytes

PACKAGE = "causal_priors"
_SOURCE = Path(__file__).resolve().parent

CARRIERS = frozenset(
    f"{PACKAGE}.{name}"
    for name in (
        "arms",
        "artifacts",
        "codedigest",
        "config",
        "errors",
        "place",
        "progress",
        "remedies",
        "runcard",
        "train.signals",
        "yamlfile",
    )
)

STAGES: dict[str, tuple[str, ...]] = {
    "corpus": ("causal_priors.data.corpus",),
    "index": ("causal_priors.data.index",),
    "tokenizer": ("causal_priors.data.tokenizer",),
    "shards": ("causal_priors.data.tokenise",),
    "margins": ("causal_priors.theory.margin",),
    "theory": ("causal_priors.theory.stage",),
    "train": ("causal_priors.train.loop",),
    "evaluate": ("causal_priors.evaluate", "causal_priors.attention.rows"),
    "intervene": ("causal_priors.intervene", "causal_priors.attention.rows", "causal_priors.priors.edits"),
    "control": ("causal_priors.control", "causal_priors.attention.rows"),
    "score": ("causal_priors.prereg.scoring",),
    "exploratory": ("causal_priors.exploratory.stage",),
    "summary": ("causal_priors.report.tables",),
    "source": ("causal_priors.report.source",),
    "figures": ("causal_priors.report.draw", "causal_priors.report.figures"),
    "page": ("causal_priors.report.html.page",),
    "crate": ("causal_priors.report.crate",),
    "goat": ("causal_priors.goat.probe",),
    "goat-tables": ("causal_priors.goat.collect", "causal_priors.goat.draw"),
}


def code_digest(stage: str, arm: Arm | None = None) -> str:
    """Return the digest of `stage`, for `arm` where the stage works on one."""
    roots = (*STAGES[stage], *(arm.modules() if arm else []))
    return digest_of({"modules": _texts(roots), "arm": arm.resolved() if arm else None})


@cache
def _texts(roots: tuple[str, ...]) -> dict[str, str]:
    return {module: sha256_bytes(bare_source(module).encode()) for module in reached_modules(roots)}


def reached_modules(roots: Iterable[str]) -> list[str]:
    """Return the modules of the package that `roots` reach by module-level imports. A root package counts whole."""
    found: set[str] = set()
    todo = [module for root in roots for module in _with_submodules(root)]
    while todo:
        module = todo.pop()
        if module in found or module in CARRIERS:
            continue
        found.add(module)
        todo.extend(_imports(module))
    return sorted(found)


@cache
def bare_source(module: str) -> str:
    """Return a module's source without comments, docstrings and blank lines."""
    source = _file(module).read_text(encoding="utf-8")
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for row in _docstring_rows(node):
                lines[row] = ""
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _docstring_rows(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> range:
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return range(first.lineno - 1, first.end_lineno or first.lineno)
    return range(0)


@cache
def _imports(module: str) -> tuple[str, ...]:
    found: list[str] = []
    for node in ast.parse(_file(module).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            found.extend(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append(node.module)
            found.extend(f"{node.module}.{name.name}" for name in node.names)
    return tuple(name for name in found if name.split(".")[0] == PACKAGE and _exists(name))


def _with_submodules(module: str) -> list[str]:
    file = _file(module)
    if file.name != "__init__.py":
        return [module]
    return [module, *(f"{module}.{path.stem}" for path in sorted(file.parent.glob("*.py")) if path != file)]


def _path(module: str) -> Path:
    return _SOURCE.joinpath(*module.split(".")[1:])


def _exists(module: str) -> bool:
    path = _path(module)
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def _file(module: str) -> Path:
    if not module.startswith(f"{PACKAGE}.") and module != PACKAGE:
        # The file of an arm of one's own, which was loaded under this name (own_arms.py).
        return Path(str(sys.modules[module].__file__))
    path = _path(module)
    return path / "__init__.py" if (path / "__init__.py").is_file() else path.with_suffix(".py")
