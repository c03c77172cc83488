"""Strict loading of the config and scale files: what is not in the schema is refused, by name.

The schemas under `workflow/schemas` are the one description of what each file may hold.
"""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

from causal_priors.errors import UserError, refuse
from causal_priors.scale import Scale, Size
from causal_priors.yamlfile import load_yaml

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = ROOT / "workflow" / "schemas"
SCALES = ROOT / "workflow" / "config" / "scales"
# The one status that a single scale has, and that scale.
CONFIRMATORY, PAPER = "confirmatory", "paper"


@dataclass(frozen=True)
class Config:
    """`workflow/config/config.yaml` with what the command line changed."""

    scale: str
    corpus: str
    text_column: str
    corpus_archives: str
    allow_repeats: bool
    allow_packed_blocks: bool
    yarn_ramps: tuple[str, ...]
    arms: tuple[str | dict[str, Any], ...]
    results: str
    preregistration: str


def _pattern(_: Any, pattern: str, value: Any, __: Any) -> Iterator[ValidationError]:
    """The keyword `pattern`, whose `$` in Python would let a line break at the end pass."""
    if isinstance(value, str) and (re.search(pattern, value) is None or value.endswith("\n")):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


@cache
def _validator(name: str) -> Any:
    strict = extend(Draft202012Validator, {"pattern": _pattern})  # type: ignore[no-untyped-call]
    return strict(load_yaml(SCHEMAS / f"{name}.schema.yaml"))


def check_schema(data: Any, name: str, file: str | Path) -> None:
    """Refuse `data` where it does not fit the schema `name`. Raises `UserError` naming file, key, value and remedy."""
    errors = sorted(_validator(name).iter_errors(data), key=lambda error: [str(step) for step in error.absolute_path])
    if errors:
        raise _explain(errors[0], file)


def _explain(error: ValidationError, file: str | Path) -> UserError:
    where = ".".join(str(step) for step in error.absolute_path)
    schema: Any = error.schema
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = list(schema.get("properties", {}))
        unknown = next(key for key in error.instance if key not in known)
        close = difflib.get_close_matches(str(unknown), known, n=1)
        remedy = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"
        return refuse("is an unknown key", file=file, key=f"{where}.{unknown}".lstrip("."), remedy=remedy)
    if error.validator == "required":
        return refuse(error.message, file=file, key=where or None, remedy="add the key")
    if error.validator == "contains":
        return refuse(
            f"lacks {schema['contains']['const']!r}, which is registered",
            file=file,
            key=where,
            value=error.instance,
            remedy="keep it in the list",
        )
    remedy = f"expected {error.validator} {error.validator_value}"
    return refuse("has a wrong value", file=file, key=where or "(top level)", value=error.instance, remedy=remedy)


def load_config(data: Any, file: str | Path) -> Config:
    """Return the config in `data` (already parsed). Raises `UserError`."""
    check_schema(data, "config", file)
    return Config(**{**data, "arms": tuple(data["arms"]), "yarn_ramps": tuple(data["yarn_ramps"])})


def scale_file(name: str) -> Path:
    """Path of the scale called `name`. Raises `UserError` naming the known ones."""
    # Looked up and not opened: a name with `..` in it leads nowhere.
    known = {file.stem: file for file in sorted(SCALES.glob("*.yaml"))}
    if name not in known:
        raise refuse("is not a scale", key="scale", value=name, remedy=f"known scales: {', '.join(known)}")
    return known[name]


def load_scale(path: str | Path) -> Scale:
    """Return the scale in a YAML file.

    Raises `UserError` for anything outside the schema, and for sizes that cannot work together.
    """
    scale, name = make_scale(load_yaml(path), path), Path(path).stem
    if scale.name != name:
        raise refuse("differs from the file's name", file=path, key="name", value=scale.name, remedy=f"write {name}")
    return scale


def make_scale(data: Any, path: str | Path) -> Scale:
    """Return the scale in `data` (already parsed). Raises `UserError` as `load_scale` does."""
    check_schema(data, "scale", path)
    sizes = {
        name: Size(**{key: _plain(key, value) for key, value in size.items()}) for name, size in data["sizes"].items()
    }
    for name, size in sizes.items():
        _check_size(path, f"sizes.{name}", size)
    scale = Scale(**{**data, "max_corpus_repeats": float(data["max_corpus_repeats"]), "sizes": sizes})
    if scale.status == CONFIRMATORY and scale.name != PAPER:
        remedy = f"write exploratory: only the scale {PAPER} is of the sizes that the protocols were written for"
        raise refuse("is not for this scale", file=path, key="status", value=scale.status, remedy=remedy)
    _check_evaluation(path, scale)
    return scale


def _plain(key: str, value: Any) -> Any:
    return float(value) if key in {"learning_rate", "warmup_fraction", "final_fraction"} else value


def _check_size(path: str | Path, key: str, size: Size) -> None:
    if size.width % size.heads:
        raise refuse(
            "is no multiple of heads", file=path, key=f"{key}.width", value=size.width, remedy=f"heads = {size.heads}"
        )
    if size.head_dim % 2:
        raise refuse("gives an odd head dim, which RoPE cannot pair", file=path, key=f"{key}.width", value=size.width)
    if size.train_length % 8:
        remedy = "far mass is measured at w = L/8"
        raise refuse(
            "is no multiple of 8", file=path, key=f"{key}.train_length", value=size.train_length, remedy=remedy
        )
    if size.tokens_per_step % (4 * size.train_length):
        remedy = f"a step must hold whole windows of up to 4 L = {4 * size.train_length} tokens"
        raise refuse(
            "cannot be cut into windows",
            file=path,
            key=f"{key}.tokens_per_step",
            value=size.tokens_per_step,
            remedy=remedy,
        )


def _check_evaluation(path: str | Path, scale: Scale) -> None:
    # The longest block is 8 x (4 L of size C).
    longest = 8 * max(4 * scale.sizes["C"].train_length, scale.sizes["S"].train_length)
    if scale.evaluation_tokens % longest:
        remedy = f"make it a multiple of the longest evaluation block, {longest} tokens"
        raise refuse(
            "cannot be cut into blocks",
            file=path,
            key="evaluation_tokens",
            value=scale.evaluation_tokens,
            remedy=remedy,
        )
