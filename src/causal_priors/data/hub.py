"""A dataset of the Hugging Face hub as a folder of corpus files: fetched on request, never by the pipeline.

`huggingface_hub` (optional: `pip install huggingface_hub`) does the fetching, so its mirror, token and proxy
settings work here too. What is unusual: a branch is resolved to its commit once, and a call that is repeated stays at
that commit; every file is checked against the size and digest that the hub lists for it, also one that was there before.
"""

import fnmatch
import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from causal_priors.artifacts import CHUNK, read_json, write_json, writer_lock
from causal_priors.data.documents import KINDS
from causal_priors.errors import UserError, refuse
from causal_priors.progress import Progress, note

# Hidden, so that it is no file of the corpus.
CARD = ".hub.json"
_AT_HOME = "fetch it where there is a network, copy the folder here, and name it as corpus: in the config"


@dataclass(frozen=True)
class Remote:
    """A file of a dataset: its name, bytes, and digest as git (sha1 of a blob) or git-lfs (sha256) says it."""

    name: str
    size: int
    digest: str
    lfs: bool


def fetch_dataset(
    dataset: str,
    folder: str | Path,
    include: Sequence[str] = ("*.parquet",),
    revision: str = "main",
    endpoint: str | None = None,
) -> None:
    """Fetch the files of `dataset` (owner/name) that fit one of the patterns `include` into `folder`.

    A repeated call fetches what is missing or damaged, at the commit that `folder` was begun with. `endpoint` is the
    hub's address, by default the one that `huggingface_hub` is set to. Raises `UserError` where the package, the
    network, the dataset, matching files or space are missing, and for a file that is not the one that the hub lists.
    """
    target = Path(folder)
    with writer_lock(target):
        begun = _begun(target, dataset, include, revision)
        commit, files = list_files(dataset, include, begun or revision, endpoint)
        write_json(target / CARD, _card(dataset, include, revision, commit, files))
        missing = [file for file in files if not _is_whole(target, file)]
        needed, free = sum(file.size for file in missing), shutil.disk_usage(target).free
        if needed > free:
            problem = f"has {free:,} bytes of space, {needed:,} are needed"
            raise refuse(problem, file=target, remedy="free some space, or name another folder")
        with Progress(sum(file.size for file in files), dataset, "byte") as progress:
            progress.found(progress.total - needed if progress.total else 0)
            for file in missing:
                _fetch(dataset, file, commit, target, endpoint)
                progress.update(file.size)
    note(f"{target}: {len(files)} files of {dataset} at {commit}; use it with --config corpus={target}")


def list_files(
    dataset: str, include: Sequence[str], revision: str, endpoint: str | None = None
) -> tuple[str, list[Remote]]:
    """Return the commit of `revision` and the dataset's files that fit `include`, sorted by name. Raises `UserError`."""
    hub = _client()
    try:
        info = hub.HfApi(endpoint=endpoint).dataset_info(dataset, revision=revision, files_metadata=True)
    except Exception as error:
        raise _cannot_fetch(dataset, error) from error
    siblings = [one for one in info.siblings or [] if any(fnmatch.fnmatchcase(one.rfilename, p) for p in include)]
    files = sorted((_remote(dataset, one) for one in siblings), key=lambda file: file.name)
    if not files:
        names = sorted(one.rfilename for one in info.siblings or [])
        shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        remedy = f"files there: {shown or 'none'}; choose others with --include"
        raise refuse(f"has no file that fits {' or '.join(include)}", file=dataset, remedy=remedy)
    return str(info.sha), files


def _remote(dataset: str, sibling: Any) -> Remote:
    name, lfs = sibling.rfilename, sibling.lfs
    path = PurePosixPath(name)
    if path.is_absolute() or any(part.startswith(".") for part in path.parts) or "\\" in name or "\0" in name:
        raise refuse("has a file whose name leads elsewhere or is hidden", file=dataset, value=name)
    if not name.lower().endswith(KINDS):
        remedy = f"choose files that end in {', '.join(KINDS)} with --include"
        raise refuse("is no corpus file", file=dataset, value=name, remedy=remedy)
    return Remote(name, int(sibling.size or 0), str(lfs.sha256 if lfs else sibling.blob_id), bool(lfs))


def _fetch(dataset: str, file: Remote, commit: str, folder: Path, endpoint: str | None) -> None:
    # What lies there is damaged or another's, and the client may take it for the file.
    (folder / file.name).unlink(missing_ok=True)
    try:
        _client().hf_hub_download(
            dataset, file.name, repo_type="dataset", revision=commit, local_dir=folder, endpoint=endpoint
        )
    except Exception as error:
        raise _cannot_fetch(f"{dataset}/{file.name}", error) from error
    if not _is_whole(folder, file):
        (folder / file.name).unlink(missing_ok=True)
        raise refuse("came damaged (not the size or digest that the hub lists)", file=f"{dataset}/{file.name}")


def _is_whole(folder: Path, file: Remote) -> bool:
    path = folder / file.name
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    digest = hashlib.sha256() if file.lfs else hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    with open(path, "rb") as content:
        while piece := content.read(CHUNK):
            digest.update(piece)
    return digest.hexdigest() == file.digest


def _begun(folder: Path, dataset: str, include: Sequence[str], revision: str) -> str | None:
    """Return the commit that `folder` was begun with, None for a new one; refuse one that holds something else."""
    if not (folder / CARD).exists():
        return None
    remedy = "name another folder, or remove this one"
    card = read_json(folder / CARD, remedy=remedy)
    asked = {"dataset": dataset, "include": list(include), "revision": revision}
    if not isinstance(card, dict) or not isinstance(card.get("commit"), str):
        raise refuse("is no card of a fetched dataset", file=folder / CARD, remedy=remedy)
    for key, value in asked.items():
        if card.get(key) != value:
            problem = f"the folder was begun with another one than {value!r}"
            raise refuse(problem, file=folder / CARD, key=key, value=card.get(key), remedy=remedy)
    return str(card["commit"])


def _card(dataset: str, include: Sequence[str], revision: str, commit: str, files: Sequence[Remote]) -> dict[str, Any]:
    listed = {file.name: {"bytes": file.size, "sha256" if file.lfs else "git": file.digest} for file in files}
    asked = {"dataset": dataset, "include": list(include), "revision": revision}
    return {**asked, "commit": commit, "files": listed}


def _client() -> Any:
    # Its own bars would ruin logs.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        import huggingface_hub
    except ImportError as error:
        remedy = f"install it: pip install huggingface_hub; or {_AT_HOME}"
        raise refuse("is not installed", file="huggingface_hub", remedy=remedy) from error
    return huggingface_hub


def _cannot_fetch(what: str, error: Exception) -> UserError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    problem = f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"[:300]
    remedy = (
        "is the name right, and is there a network? A dataset behind a form wants `hf auth login`; what was "
        f"fetched is kept, the same command goes on; or {_AT_HOME}"
    )
    return refuse(f"cannot be fetched ({problem})", file=what, remedy=remedy)
