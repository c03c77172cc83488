"""YAML as plain data, without its traps.

Only `true` and `false` are booleans; `yes`, `on`, `1e-3` and other spellings that YAML 1.1 reads in a surprising way
are refused with the spelling to use. So are duplicate keys, aliases (the means of a YAML bomb), tags (the means of
making objects), numbers that are not finite or above 64 bits, characters that are no text, deep nesting, and files
above 1 MB.
"""

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from causal_priors.artifacts import read_at_most
from causal_priors.errors import UserError, refuse

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
_MAX_INT = (1 << 63) - 1
_BOOLEAN_WORDS = {"yes", "no", "on", "off", "y", "n"}
_LOOKS_NUMERIC = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?|\d+(:\d+)+")
_INT_TAG, _FLOAT_TAG = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_PLAIN_INT = re.compile(r"[-+]?(0|[1-9]\d*)")
_PLAIN_FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
# NUL ends a file's name where nobody sees it; half of a surrogate pair can be written to no file.
_NO_TEXT = re.compile(r"[\x00\ud800-\udfff]")


if TYPE_CHECKING:
    from yaml import SafeLoader as _SafeLoader
else:
    try:
        from yaml.cyaml import CParser
    except ImportError:
        from yaml import SafeLoader as _SafeLoader
    else:

        class _SafeLoader(Composer, SafeConstructor, Resolver, CParser):
            """SafeLoader on libyaml's events, five times as fast: each of some 200 jobs reads the sealed protocols."""

            def __init__(self, text):
                CParser.__init__(self, text)
                for part in (Composer, SafeConstructor, Resolver):
                    part.__init__(self)


class _Loader(_SafeLoader):
    """SafeLoader that refuses what a reader of the file would misread."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.events.AliasEvent):
            raise _trap(event.start_mark, f"*{event.anchor}", "aliases are refused", "write the value out")
        if event.tag is not None:
            raise _trap(event.start_mark, event.tag, "tags are refused", "remove it")
        if self.depth == MAX_DEPTH:
            raise _trap(event.start_mark, ..., f"is nested more than {MAX_DEPTH} deep", "is this the right file?")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _trap(key_node.start_mark, key, "is not a text key", "put it in quotes")
            if key in seen:
                raise _trap(key_node.start_mark, key, "stands twice", "keep one")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def plain_scalar(self, node: Any) -> Any:
        if not node.style:
            if node.value.lower() in _BOOLEAN_WORDS:
                remedy = "write true or false, or put it in quotes"
                raise _trap(node.start_mark, node.value, "is read differently by different YAML readers", remedy)
            if _LOOKS_NUMERIC.fullmatch(node.value):
                remedy = "write it in full, as 0.001, or put it in quotes"
                raise _trap(node.start_mark, node.value, "looks like a number but YAML reads text", remedy)
        if found := _NO_TEXT.search(node.value):
            raise _trap(node.start_mark, found[0], "is a character that no text may hold", "remove it")
        return self.construct_scalar(node)

    def plain_int(self, node: Any) -> Any:
        if not _PLAIN_INT.fullmatch(node.value):
            raise _trap(
                node.start_mark, node.value, "is not a plain decimal number", "write it in full, or put it in quotes"
            )
        # More digits than Python reads are more than 64 bits as well.
        if len(node.value) > len(str(_MAX_INT)) + 1 or abs(int(node.value)) > _MAX_INT:
            raise _trap(node.start_mark, node.value, "is a number above 64 bits", "is it meant?")
        return int(node.value)

    def plain_float(self, node: Any) -> float:
        value = float(node.value) if _PLAIN_FLOAT.fullmatch(node.value) else math.nan
        if not math.isfinite(value):
            raise _trap(node.start_mark, node.value, "is not a plain finite number", "write it in full")
        return value

    def plain_date(self, node: Any) -> Any:
        raise _trap(node.start_mark, node.value, "is read as a date", "put it in quotes")


# PyYAML turns yes/no/on/off into booleans; here they stay words, which `plain_scalar` then refuses.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag != "tag:yaml.org,2002:bool"]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf"))
_Loader.add_constructor("tag:yaml.org,2002:str", _Loader.plain_scalar)
_Loader.add_constructor(_INT_TAG, _Loader.plain_int)
_Loader.add_constructor(_FLOAT_TAG, _Loader.plain_float)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.plain_date)


class _TrapError(Exception):
    pass


def _trap(mark: Any, value: Any, problem: str, remedy: str) -> _TrapError:
    return _TrapError(mark.line + 1, value, problem, remedy)


def parse_yaml(text: str, file: str | Path) -> Any:
    """Return the data in `text`; `file` is named in errors. Raises `UserError`."""
    try:
        return yaml.load(text, Loader=_Loader)
    except _TrapError as trap:
        line, value, problem, remedy = trap.args
        raise refuse(problem, file=f"{file}: line {line}", value=value, remedy=remedy) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        problem = " ".join(str(error).split()) or type(error).__name__
        raise refuse(f"is not YAML ({problem[:300]})", file=file) from None


def load_yaml(path: str | Path) -> Any:
    """Return the data in a YAML file. Raises `UserError` where it is missing, too large or not plain YAML."""
    file = Path(path)
    try:
        text = read_at_most(file, MAX_BYTES, "is this the right file?").decode()
    except UnicodeDecodeError as error:
        raise refuse(f"is not UTF-8 ({error.reason} at byte {error.start})", file=file) from error
    found = parse_yaml(text, file)
    if found is None:
        raise UserError(f"{file}: is empty")
    return found
