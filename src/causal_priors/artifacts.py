"""Files that are whole or absent: atomic writes, digests, and one writer at a time.

A file is written beside its final name, flushed to the disk, then renamed; a reader never sees half of one. Digests are
sha256 in hexadecimal. Nothing here imports torch.
"""

import fcntl
import glob
import hashlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from causal_priors.errors import refuse
from causal_priors.place import batch_job, process_space
from causal_priors.progress import note

CHUNK = 1 << 20
# The largest JSON file of a study, its verdicts, has a tenth of a megabyte; parsed, JSON takes up to 25 times its size.
MAX_JSON = 16 << 20
_MAX_INT_DIGITS = 19
# How long a batch job waits for another writer: of a node that failed, file servers keep the locks for some minutes.
_PATIENCE_SECONDS = 600.0
_LOOK_AGAIN_SECONDS = 1.0
# Whether a writer on another machine lives cannot be seen; what it has not touched for so long is given up.
_ABANDONED_SECONDS = 86_400.0


def sha256_bytes(data: bytes) -> str:
    """Return the sha256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: str | Path) -> str:
    """Return the sha256 of a file's bytes, read in pieces.

    Raises `UserError` where the file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while piece := file.read(CHUNK):
                digest.update(piece)
    except OSError as error:
        raise refuse(f"cannot be read ({error.strerror})", file=path) from error
    return digest.hexdigest()


def read_at_most(path: str | Path, limit: int, remedy: str = "") -> bytes:
    """Return the bytes of a file that may come from elsewhere, at most `limit` of them.

    Raises `UserError` where it cannot be read, is larger, is a link that leads out of its folder, or is no regular file
    (a pipe would be waited for, a device has no end).
    """
    file = Path(path)
    try:
        if file.is_symlink() and not Path(os.path.realpath(file)).is_relative_to(os.path.realpath(file.parent)):
            raise refuse("is a link that leads out of its folder", file=path, remedy="put a copy there instead")
        if file.exists() and not file.is_file():
            raise refuse("is no regular file", file=path, remedy=remedy)
        with open(file, "rb") as content:
            # Looked at before reading: a file of holes takes no space on the disk.
            if os.fstat(content.fileno()).st_size > limit:
                raise refuse(f"is larger than {limit >> 20} MB", file=path, remedy=remedy)
            return content.read(limit)
    except OSError as error:
        raise refuse(f"cannot be read ({error.strerror})", file=path, remedy=remedy) from error


def canonical_json(value: Any) -> bytes:
    """Return the one JSON form of `value`: sorted keys, no spaces, UTF-8, NaN and infinity refused (ValueError)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_of(value: Any) -> str:
    """Return the sha256 of the canonical JSON of `value`."""
    return sha256_bytes(canonical_json(value))


def own_digest(content: Mapping[str, Any]) -> str:
    """Return the digest of `content` without its entry "digest"."""
    return digest_of({key: value for key, value in content.items() if key != "digest"})


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on a clean exit it is flushed and renamed to `path`.

    On an exception the temporary file is removed and `path` stays as it was; what a killed writer of `path` left behind
    goes as well. A full disk or a read-only folder becomes
    a `UserError` that names the file.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{process_space()}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        yield temporary
        _flush(temporary)
        temporary.replace(target)
        _flush(target.parent)
    except OSError as error:
        _remove(temporary)
        raise refuse(
            f"cannot be written ({error.strerror or error})",
            file=target,
            remedy="free some space or make the folder writable; earlier files are untouched",
        ) from error
    except BaseException:
        _remove(temporary)
        raise


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8 to `path`, whole or not at all."""
    write_bytes(path, text.encode())


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented, sorted JSON with a final newline, whole or not at all."""
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n")


def read_json(path: str | Path, remedy: str = "") -> Any:
    """Return the content of a JSON file.

    Raises `UserError` where it is missing, above 16 MB, not JSON, or holds what `write_json` never writes: numbers that
    are not finite or above 64 bits, halves of surrogate pairs, a key twice in one mapping.
    """
    data = read_at_most(path, MAX_JSON, remedy)
    try:
        text = data.decode()
        value = json.loads(
            text, parse_constant=_number, parse_float=_number, parse_int=_integer, object_pairs_hook=_mapping
        )
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError) as error:
        raise refuse(f"is not JSON ({error})", file=path, remedy=remedy) from error


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two values of one key a reader would see one and a parser take the other."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:40]!r} stands twice in one mapping")
        found[key] = value
    return found


def _number(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return value


def _integer(text: str) -> int:
    if len(text.lstrip("-")) > _MAX_INT_DIGITS:
        raise ValueError(f"{text[:_MAX_INT_DIGITS]}... is above 64 bits")
    return int(text)


def write_signed_json(path: str | Path, content: Mapping[str, Any]) -> None:
    """Write `content` as `write_json` does, with its digest as the entry "digest"."""
    write_json(path, {**content, "digest": own_digest(content)})


def read_signed_json(path: str | Path, remedy: str = "") -> dict[str, Any]:
    """Return what `write_signed_json` wrote, the entry "digest" included.

    Raises `UserError` where the file is missing, not JSON, or differs from its digest.
    """
    content = read_json(path, remedy)
    if not isinstance(content, dict) or content.get("digest") != own_digest(content):
        raise refuse("is damaged (its digest differs)", file=path, remedy=remedy)
    return content


@contextmanager
def writer_lock(folder: str | Path) -> Iterator[None]:
    """Hold the only writer's lock of `folder`; a second writer is refused at once, in a batch job after ten minutes.

    The lock is the kernel's (flock), so it vanishes with the process that held it, however that ended. Batch jobs wait
    because a cluster may start a job again while its first copy still runs, or before its locks are given up.
    """
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise refuse(f"cannot be written ({error.strerror})", file=path) from error
    try:
        try:
            _lock(handle, path)
        except BlockingIOError as error:
            raise refuse(
                "another process is writing here",
                file=path,
                remedy="wait for it, or stop it and call again",
            ) from error
        except OSError as error:
            raise refuse(f"cannot be locked ({error.strerror})", file=path) from error
        yield
    finally:
        os.close(handle)


def _lock(handle: int, path: Path) -> None:
    """Take the lock. Raises `BlockingIOError` where another process has it, in a batch job only if it keeps it."""
    until = time.monotonic() + (_PATIENCE_SECONDS if batch_job() else 0.0)
    said = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise
        if not said:
            note(f"{path}: waiting up to {_PATIENCE_SECONDS / 60:.0f} minutes for another process that writes here")
            said = True
        time.sleep(_LOOK_AGAIN_SECONDS)


def _sweep(target: Path) -> None:
    """Remove temporary files of `target` whose writers are no more."""
    for path in target.parent.glob(f".{glob.escape(target.name)}.*.*.tmp"):
        space, number = path.name.split(".")[-3:-1]
        if number.isdigit() and not (_alive(int(number)) if space == process_space() else _fresh(path)):
            path.unlink(missing_ok=True)
    if target.suffix == ".safetensors":
        # The library writes beside its target under a name of its own; a folder with weights has one writer.
        for path in target.parent.glob(".tmp??????"):
            if _is_rest_of_tensors(path):
                path.unlink(missing_ok=True)


def _is_rest_of_tensors(path: Path) -> bool:
    with open(path, "rb") as file:
        start = file.read(10)
    return not start or start[8:] == b'{"'


def _fresh(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime < _ABANDONED_SECONDS
    except FileNotFoundError:
        return False


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        # The folder itself went away or is read-only: nothing of ours is left to clean up.
        return
