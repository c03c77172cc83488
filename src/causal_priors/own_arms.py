"""Arms of one's own: a Python file with one row, or a mapping of existing parts. They are exploratory, always.

A file is code and is executed, here, once per process; its module is called `own_arms.{stem}`, so that neither digests
nor run cards know where it lies. Whatever is wrong with it (or with a mapping) is told in one line: also an exception
that its code raises later, in the middle of a job. No key of the registered study can be taken. Imports torch only to
try out a file, which needs it anyway.
"""

import difflib
import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from causal_priors.arms import ARMS, ROPE, Arm, Part, Transport
from causal_priors.config import check_schema
from causal_priors.errors import UserError, refuse
from causal_priors.yamlfile import parse_yaml

MODULES = "own_arms"
ROTATIONS: Mapping[str, Part | None] = {"none": None, "rope": ROPE, "grape-m": ARMS["grape-m"].rotation}
_NOT_TEXT = {"log_n", "strength", "iterations", "position_lr", "yarn"}
_KEY = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_STEM = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class OwnArm:
    """An arm of one's own. argument: what hands it to `python -m causal_priors ... --arm`."""

    arm: Arm
    argument: str


def own_arms(items: Sequence[str | Mapping[str, Any]], file: str | Path, reserved: Collection[str]) -> list[OwnArm]:
    """Return the arms that the config's list `arms` gives. `reserved`: keys of the registered study.

    Raises `UserError` naming the item for whatever is wrong with it, and for two items of one key or file name.
    """
    found: list[OwnArm] = []
    for number, item in enumerate(items):
        where = f"{file}: arms.{number}"
        argument = item if isinstance(item, str) else json.dumps(_typed(item, where), sort_keys=True)
        own = own_arm(argument, reserved, where)
        if own.arm.key in {other.arm.key for other in found}:
            raise refuse("stands twice", file=where, key="key", value=own.arm.key, remedy="give each arm its own key")
        found.append(own)
    return found


def _typed(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A mapping given as `snakemake --config arms=...` holds text only: read numbers and truth values again."""
    found = {}
    for key, value in item.items():
        if isinstance(value, Mapping):
            found[key] = _typed(value, f"{where}.{key}")
        else:
            found[key] = parse_yaml(value, f"{where}.{key}") if key in _NOT_TEXT and isinstance(value, str) else value
    return found


def own_arm(argument: str, reserved: Collection[str], where: str = "--arm") -> OwnArm:
    """Return the arm in a Python file, or the one that a composition in JSON describes. Raises `UserError`."""
    if argument.lstrip().startswith("{"):
        place, arm = where, _composed(argument, where)
    else:
        place, arm = argument, _from_file(argument, where)
    arm = replace(arm, exploratory=True)
    _check_row(arm, place, reserved)
    if place == argument:
        _try_out(arm, place)
    return OwnArm(arm, argument)


def _composed(text: str, where: str) -> Arm:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refuse(f"is not JSON ({error})", file=where, value=text) from None
    check_schema(data, "arm", where)
    transport = data.get("transport")
    return Arm(
        data["key"],
        data.get("name", "composed"),
        rotation=ROTATIONS[data.get("rotation", "none")],
        log_n=data.get("log_n", False),
        log_prior=_prior_of(data.get("log_prior", "none"), where),
        transport=None if transport is None else Transport(**transport),
        position_lr=data.get("position_lr", Arm.position_lr),
        yarn=data.get("yarn", False),
    )


def _prior_of(key: str, where: str) -> Part | None:
    if key == "none":
        return None
    known = [name for name, arm in ARMS.items() if arm.log_prior and "tolerance" not in arm.log_prior.options]
    if key in known:
        return ARMS[key].log_prior
    problem = "is not an arm whose log-prior can be taken"
    if key in ARMS and ARMS[key].log_prior is None:
        problem = f"has no log-prior; {problem}"
    close = difflib.get_close_matches(key, known, n=1)
    remedy = f"did you mean {close[0]}?" if close else f"use none, {', '.join(known)}"
    raise refuse(problem, file=where, key="log_prior", value=key, remedy=remedy)


def _check_row(arm: Arm, place: str, reserved: Collection[str]) -> None:
    """Refuse a row whose parts are not what they should be, or cannot work together."""

    def wrong(key: str, problem: str, remedy: str) -> UserError:
        return refuse(problem, file=place, key=key, value=getattr(arm, key), remedy=remedy)

    if not (isinstance(arm.key, str) and _KEY.fullmatch(arm.key) and len(arm.key) <= 60):
        raise wrong("key", "is not a key", "use a-z, 0-9 and single hyphens, as in my-prior")
    if arm.key in reserved:
        raise wrong("key", "is an arm of the registered study", "choose another key")
    check_types(arm, place)
    if arm.yarn and (arm.rotation is None or arm.rotation.ref != ROPE.ref):
        raise wrong("yarn", "needs RoPE, which this arm does not have", "set rotation to rope, or yarn to false")
    if arm.log_prior is not None and "tolerance" in arm.log_prior.options:
        raise wrong("log_prior", "takes a margin that theory chooses for a registered arm", "give the option margin")


def check_types(arm: Arm, place: str | Path) -> None:
    """Refuse a row with an entry of another type than the table's rows have. Raises `UserError`."""
    for key, kind, remedy in (
        ("rotation", Part, "write a Part, such as ROPE"),
        ("log_prior", Part, "write Part.of(YourClass)"),
        ("transport", Transport, "write Transport(0.75)"),
        ("log_n", bool, "write True or False"),
    ):
        value = getattr(arm, key)
        if not isinstance(value, kind if kind is bool else kind | None):
            raise refuse(f"is not a {kind.__name__}", file=place, key=key, value=value, remedy=remedy)
    for key in ("rotation", "log_prior"):
        part = getattr(arm, key)
        if part is not None and not (isinstance(part.ref, str) and isinstance(part.options, Mapping)):
            raise refuse("is no reference with options", file=place, key=key, value=part, remedy="use Part.of")
    rate = arm.position_lr
    if not (isinstance(rate, int | float) and 0 < rate < float("inf")):
        remedy = "it multiplies the model's learning rate"
        raise refuse("is not a positive number", file=place, key="position_lr", value=rate, remedy=remedy)
    if arm.transport is not None:
        _check_transport(arm.transport, place)


def _check_transport(transport: Transport, place: str | Path) -> None:
    if not (isinstance(transport.strength, int | float) and 0 <= transport.strength < 1):
        raise refuse("is outside [0, 1)", file=place, key="transport.strength", value=transport.strength)
    if transport.solver not in ("exact", "sweeps"):
        remedy = "use exact or sweeps"
        raise refuse("is not a solver", file=place, key="transport.solver", value=transport.solver, remedy=remedy)
    if not isinstance(transport.iterations, int if transport.solver == "sweeps" else type(None)):
        remedy = "give the number with solver sweeps only"
        raise refuse(
            f"does not go with solver {transport.solver}",
            file=place,
            key="transport.iterations",
            value=transport.iterations,
            remedy=remedy,
        )


def _from_file(name: str, where: str) -> Arm:
    """Execute a Python file and return the one row it defines."""
    path = Path(name)
    if not path.resolve().is_relative_to(Path.cwd().resolve()):
        remedy = "copy it into the folder where the command runs"
        raise refuse("lies outside the working folder", file=where, value=name, remedy=remedy)
    if path.suffix != ".py" or not _STEM.fullmatch(path.stem):
        remedy = "name it in letters, digits, _ and -, as my_prior.py"
        raise refuse("is not the name of a Python file", file=where, value=name, remedy=remedy)
    module = _executed(path, where)
    registered = {id(arm) for arm in ARMS.values()}
    rows = {id(value): value for value in vars(module).values() if isinstance(value, Arm)}
    own = [arm for number, arm in rows.items() if number not in registered]
    if len(own) != 1:
        found = f"holds {len(own)} rows ({', '.join(str(arm.key) for arm in own)})" if own else "holds no row"
        raise refuse(found, file=path, remedy='define exactly one: ARM = Arm("my-prior", ...)')
    return own[0]


def _executed(path: Path, where: str) -> ModuleType:
    name = f"{MODULES}.{path.stem}"
    try:
        source = path.read_text(encoding="utf-8")
    except OSError as error:
        raise refuse(f"cannot be read ({error.strerror})", file=where, value=str(path)) from None
    except UnicodeDecodeError as error:
        raise refuse(f"is not UTF-8 ({error.reason} at byte {error.start})", file=path) from None
    before = sys.modules.get(name)
    if before is not None and before.__file__ != str(path.resolve()):
        raise refuse("has the name of another arm's file", file=where, value=str(path), remedy="rename one of the two")
    module = ModuleType(name)
    module.__file__ = str(path.resolve())
    sys.modules[name] = module
    with explained(path):
        exec(compile(source, module.__file__, "exec"), module.__dict__)
    return module


@contextmanager
def explained(path: str | Path | None) -> Iterator[None]:
    """Turn what the code of the Python file `path` raises into one line; what this package raises stays as it is.

    None, or anything but a Python file, changes nothing.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        line = _line_in(error, path)
        if path is None or line is None:
            raise
        what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise refuse(f"raised {what}", file=f"{path}: line {line}") from None


def _line_in(error: BaseException, path: str | Path | None) -> int | None:
    """The last line of the file that took part in `error`, if any did."""
    if path is None or not str(path).endswith(".py"):
        return None
    file = str(Path(path).resolve())
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    trace, found = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            found = trace.tb_lineno
        trace = trace.tb_next
    return found


def _try_out(arm: Arm, path: str) -> None:
    """Build a tiny model of the row and ask its log-prior what every log-prior is asked. Raises `UserError`."""
    from causal_priors.trial import problem_of

    with explained(path):
        try:
            problem = problem_of(arm)
        except TypeError as error:
            # Raised by the call of a class of the file, so that no line of the file took part.
            if _line_in(error, path) is not None:
                raise
            problem = f"cannot be built ({error})"
        if problem:
            raise refuse(problem, file=path, key="log_prior", remedy="see priors/base.py for what a log-prior returns")
