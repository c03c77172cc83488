"""Seals: what each protocol said, on which day, before any result of this code existed.

A seal keeps the protocol's parsed data, so that formatting and comments are free and a change is named by its key. It
also keeps digests of every part of the register (all protocols and plans, the ledger, the published numbers), so that
rewriting one protocol together with its own seal still contradicts the other seals. Rewriting all of them at once is
left to the repository's history, to the digests in the tests, and to those printed with earlier verdicts.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from causal_priors.artifacts import digest_of, read_at_most, read_json, write_json, write_text
from causal_priors.errors import UserError, refuse, shown
from causal_priors.prereg.decidable import check_decidable
from causal_priors.prereg.ledger import (
    AMENDMENTS,
    ASSUMPTIONS,
    PUBLISHED,
    Amendment,
    check_date,
    check_references,
    load_amendments,
    load_assumptions,
    load_published,
)
from causal_priors.prereg.protocol import load_protocols, protocol_folders, read_data
from causal_priors.prereg.terms import Protocol
from causal_priors.yamlfile import MAX_BYTES

STATEMENT = "no result of this code existed"
PROTOCOL, PLAN, SEAL = "protocol.yaml", "plan.md", "seal.json"
_KEYS = {"statement", "date", "protocol", "sealed", "register", "digest"}
_RESTORE = "restore it from the repository's history; a change of mind goes into amendments.yaml"


def canonical(value: Any) -> Any:
    """Return parsed data without what formatting may change: runs of white space in texts, and 1.0 for 1."""
    if isinstance(value, dict):
        return {key: canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [canonical(item) for item in value]
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def seal(folder: str | Path, date: str, results: str | Path | None = None) -> list[Path]:
    """Seal every unsealed protocol under `folder` with `date` (as 2026-11-29); return the files written.

    Raises `UserError` for a rule that cannot hold, cannot fail or has no direction, for a damaged earlier seal, and
    where `results` holds a trained run: the seal would then say what is not true.
    """
    check_date(date, folder, "date")
    protocols = load_protocols(folder)
    check_references(protocols, folder)
    for protocol in protocols:
        check_decidable(protocol)
    unsealed = [protocol for protocol in protocols if not (protocol.folder / SEAL).exists()]
    if not unsealed:
        raise refuse(
            "every protocol is sealed already", file=folder, remedy="what changes later goes into amendments.yaml"
        )
    _check_no_result(results)
    register = _register(Path(folder))
    for protocol in protocols:
        if protocol not in unsealed:
            _check_one(protocol, register)
    written = []
    for protocol in unsealed:
        content = {
            "statement": STATEMENT,
            "date": date,
            "protocol": protocol.id,
            "sealed": canonical(protocol.data),
            "register": register,
        }
        path = protocol.folder / SEAL
        write_json(path, {**content, "digest": digest_of(content)})
        written.append(path)
    return written


def check_seals(folder: str | Path) -> dict[str, str]:
    """Return the seal digest of each protocol under `folder`, by id, after checking all of them.

    Raises `UserError` naming the file and the changed keys, or the seal that is missing or does not fit.
    """
    # Names first: a protocol that no longer loads would hide which key was changed.
    for path in protocol_folders(folder):
        _compare_with_seal(path, read_data(path / PROTOCOL))
    register = _register(Path(folder))
    return {protocol.id: _check_one(protocol, register) for protocol in load_protocols(folder)}


def load_sealed(folder: str | Path) -> tuple[tuple[Protocol, ...], dict[str, str], dict[str, tuple[Amendment, ...]]]:
    """Return protocols, seal digests by id and amendments by id, all checked. Raises `UserError`."""
    digests = check_seals(folder)
    protocols = load_protocols(folder)
    check_references(protocols, folder)
    amendments = {
        protocol.id: load_amendments(protocol, digests[protocol.id], _read_seal(protocol.folder)["date"])
        for protocol in protocols
    }
    return protocols, digests, amendments


def append_amendment(folder: str | Path, date: str, tests: list[str], reason: str) -> Path:
    """Append one amendment to the protocol folder `folder` and return the file.

    Raises `UserError` where the result would not be a valid chain; the file is then as before.
    """
    path = Path(folder)
    protocols, digests, amendments = load_sealed(path.parent)
    protocol = next((item for item in protocols if item.folder == path), None)
    if protocol is None:
        raise refuse("is not a protocol folder", file=path)
    file = path / AMENDMENTS
    before = file.read_text(encoding="utf-8")
    rows = read_data(file)["amendments"]
    previous = digest_of(rows[-1]) if amendments[protocol.id] else digests[protocol.id]
    row = {"date": date, "tests": tests, "reason": " ".join(reason.split()), "previous": previous}
    comments = "".join(f"{line}\n" for line in before.splitlines() if line.startswith("#"))
    write_text(
        file, comments + yaml.safe_dump({"amendments": [*rows, row]}, sort_keys=False, allow_unicode=True, width=118)
    )
    try:
        load_amendments(protocol, digests[protocol.id], _read_seal(path)["date"])
    except UserError:
        write_text(file, before)
        raise
    return file


def changed_keys(sealed: Any, current: Any, key: str = "") -> Iterator[str]:
    """Yield one line for each key at which two canonical values differ: its dotted name, then sealed and current."""
    if isinstance(sealed, dict) and isinstance(current, dict):
        if list(sealed) != list(current) and sealed.keys() == current.keys() and key.endswith("*"):
            yield f"{key[:-1]} (order)"
        for name in dict.fromkeys([*sealed, *current]):
            inner = f"{key.rstrip('*')}.{name}".lstrip(".")
            if name not in current:
                yield f"{inner} (removed)"
            elif name not in sealed:
                yield f"{inner} (added)"
            else:
                yield from changed_keys(sealed[name], current[name], inner)
    elif (named := _by_name(sealed)) is not None and (others := _by_name(current)) is not None:
        # The star marks rows whose order counts.
        yield from changed_keys(named, others, f"{key}*")
    elif sealed != current or type(sealed) is not type(current):
        yield f"{key} (sealed {shown(sealed)}, now {shown(current)})"


def _by_name(rows: Any) -> dict[str, Any] | None:
    """Return a list of rows that each have an id, name or test as a mapping by that; else None."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return None
    names = [next((str(row[key]) for key in ("id", "name", "test") if key in row), None) for row in rows]
    if not names or None in names or len(set(names)) < len(names):
        return None
    return {str(name): row for name, row in zip(names, rows, strict=True)}


def _register(folder: Path) -> dict[str, dict[str, str]]:
    """Digests of all parts of all sealed files under `folder`: {file: {key: digest}}."""
    files: dict[str, dict[str, Any]] = {}
    for path in protocol_folders(folder):
        files[f"{path.name}/{PROTOCOL}"] = _parts(read_data(path / PROTOCOL))
        files[f"{path.name}/{PLAN}"] = {"text": read_plan(path / PLAN)}
    files[ASSUMPTIONS] = {entry.id: vars(entry) for entry in load_assumptions(folder).values()}
    files[PUBLISHED] = _parts(load_published(folder))
    return {file: {key: digest_of(canonical(part)) for key, part in parts.items()} for file, parts in files.items()}


def _parts(data: dict[str, Any]) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for key, value in data.items():
        named = _by_name(value)
        parts.update({key: value} if named is None else {f"{key}.{name}": row for name, row in named.items()})
    return parts


def read_plan(path: Path) -> str:
    """Return the plan in words that each protocol needs. Raises `UserError` where there is none."""
    remedy = "each protocol needs its plan in plain words"
    try:
        text = read_at_most(path, MAX_BYTES, remedy).decode()
    except UnicodeDecodeError as error:
        raise refuse(f"is not UTF-8 ({error.reason} at byte {error.start})", file=path, remedy=remedy) from error
    if not text.strip():
        raise refuse("is empty", file=path, remedy=remedy)
    return text


def _read_seal(folder: Path) -> dict[str, Any]:
    path = folder / SEAL
    if not path.exists():
        raise refuse("is missing: the protocol is not sealed", file=path, remedy=_RESTORE)
    content = read_json(path, remedy=_RESTORE)
    if not isinstance(content, dict) or content.keys() != _KEYS:
        raise refuse(f"must hold exactly {', '.join(sorted(_KEYS))}", file=path, remedy=_RESTORE)
    return content


def _compare_with_seal(folder: Path, data: Any) -> None:
    changes = list(changed_keys(_read_seal(folder)["sealed"], canonical(data)))
    if changes:
        raise refuse(f"was changed after it was sealed: {', '.join(changes)}", file=folder / PROTOCOL, remedy=_RESTORE)


def _check_one(protocol: Protocol, register: dict[str, dict[str, str]]) -> str:
    """Return the digest of one seal after comparing it with the protocol and with the whole register."""
    path = protocol.folder / SEAL
    content = _read_seal(protocol.folder)
    digest = content.pop("digest")
    if digest != digest_of(content):
        raise refuse("does not fit its own digest: the seal was edited", file=path, remedy=_RESTORE)
    if content["statement"] != STATEMENT or content["protocol"] != protocol.id:
        raise refuse("is the seal of something else", file=path, remedy=_RESTORE)
    check_date(content["date"], path, "date")
    _compare_with_seal(protocol.folder, protocol.data)
    own = {f"{protocol.folder.name}/{name}" for name in (PROTOCOL, PLAN)} | {ASSUMPTIONS, PUBLISHED}
    if missing := own - content["register"].keys():
        raise refuse(f"does not cover {', '.join(sorted(missing))}", file=path, remedy=_RESTORE)
    for file, parts in content["register"].items():
        current = register.get(file, {})
        # A later protocol may add assumptions and published outcomes; what was sealed must stay.
        if changed := [key for key, value in parts.items() if current.get(key) != value]:
            where = protocol.folder.parent / file
            problem = f"differs from what {protocol.folder.name}/{SEAL} recorded: {', '.join(changed)}"
            raise refuse(problem, file=where, remedy=_RESTORE)
    return str(digest)


def _check_no_result(results: str | Path | None) -> None:
    found = sorted(Path(results).glob("*/runs/*/run.json")) if results is not None else []
    if found:
        remedy = "a seal says that no result existed: register before the first run"
        raise refuse("is a result of this code", file=found[0], remedy=remedy)
