"""Runs: is each what its name says, are its files the ones its card names, is it one run and not another's copy?"""

import hashlib
import json
import math
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from causal_priors.arms import ARMS, Arm
from causal_priors.artifacts import CHUNK, sha256_file
from causal_priors.audit.claims import expect_there
from causal_priors.audit.data_chain import MARGINS, SHARDS
from causal_priors.audit.divergence import check_losses, check_status
from causal_priors.audit.evidence import RUN_CARD, Evidence, RunCard, dict_of
from causal_priors.audit.findings import Link, Report
from causal_priors.data.shards import CARD
from causal_priors.errors import UserError, refuse
from causal_priors.runs import Run, parse_run
from causal_priors.scale import Scale
from causal_priors.tables import read_table

MODEL, LOSSES, POSITIONS = "model.safetensors", "losses.parquet", "positions.parquet"
OUTPUTS = (MODEL, LOSSES, POSITIONS)
# A header names some hundred tensors.
_MAX_HEADER = 1 << 20


def check_runs(
    report: Report, evidence: Evidence, scale: Scale, registered: Sequence[Run], claimed: Collection[str]
) -> None:
    """Add the links of the registered runs, and of others that lie beside them. claimed: see `claimed_files`."""
    link = report.link("registered runs")
    wanted = {f"{run.name(scale)}/{RUN_CARD}" for run in registered}
    expect_there(link, evidence, wanted, {f"{name}/{RUN_CARD}" for name in evidence.runs}, claimed)
    link = report.link("run card -> run")
    for name, card in evidence.runs.items():
        _identity(link, evidence, name, card, scale)
    link = report.link("shards, margins -> run")
    _inputs(link, evidence, scale)
    link = report.link("run card -> weights and logs")
    for name, card in evidence.runs.items():
        _outputs(link, evidence, name, card, scale)
    if evidence.snapshot:
        problem = f"{', '.join(OUTPUTS)} of {len(evidence.runs)} runs are not part of a snapshot"
        link.absent(evidence.folder, problem, "run the study and audit it; the run cards can then be compared")
    link = report.link("no run twice")
    # The log of positions of an arm without any is the same for all of its runs.
    for output in (MODEL, LOSSES):
        cards = {name: card.content["outputs"].get(output) for name, card in evidence.runs.items()}
        distinct(
            link, cards, scale, f"have one {output}: one run under two names", lambda name: rebuild(evidence, name)
        )
    digests = {name: _tensors(evidence.output(name, MODEL)) for name in evidence.runs}
    there = {name: digest for name, digest in digests.items() if digest}
    distinct(link, there, scale, "have the same weights: one run under two names", lambda name: rebuild(evidence, name))


def rebuild(evidence: Evidence, run: str, file: str = RUN_CARD) -> str:
    """Advice to make a file of a run anew."""
    return evidence.rebuild(f"runs/{run}/{file}")


def distinct(link: Link, values: Mapping[str, Any], scale: Scale, problem: str, remedy: Callable[[str], str]) -> None:
    """Record runs that share a value, where their names say that they are different computations.

    An arm of one's own may be the same as a registered one: it is compared with itself alone, its seeds.
    """
    first: dict[Any, str] = {}
    for name, value in values.items():
        other = first.setdefault((value, _own_arm(name, scale)), name)
        same = other == name or _computation(other, scale) == _computation(name, scale)
        link.expect(same, f"{other} and {name}", problem, remedy(name))


def _own_arm(name: str, scale: Scale) -> str:
    """The arm of a run outside the registered study, empty within."""
    try:
        arm = parse_run(name, scale).arm
    except UserError:
        return ""
    return "" if arm in ARMS else arm


def _computation(name: str, scale: Scale) -> Any:
    """What a run computes, by its name: at nano both sizes are the same model, trained alike."""
    try:
        run = parse_run(name, scale)
    except UserError:
        # Said by another link.
        return name
    return run.budget(scale), run.arm, run.train_length(scale), run.init_seed, run.data_seed


def _identity(link: Link, evidence: Evidence, name: str, card: RunCard, scale: Scale) -> None:
    content, parameters, again = card.content, card.content["parameters"], rebuild(evidence, name)
    with link.reading():
        run = parse_run(name, scale)
        arm = ARMS.get(run.arm)
        expected: dict[str, Any] = {
            "run": name,
            "scale": scale.digest(),
            "init_seed": run.init_seed,
            "data_seed": run.data_seed,
        }
        if arm is not None:
            expected["arm"] = _plain(arm)
        for key, value in expected.items():
            same = json.loads(json.dumps(parameters.get(key))) == value
            link.expect(same, f"{card.file}: {key}", "is not what the run's name says", again)
        link.expect(content["stage"] == "train", card.file, "is the card of another stage", again)
        check_status(link, card, run.budget(scale).steps, again)


def _plain(arm: Arm) -> Any:
    return json.loads(json.dumps(arm.resolved()))


def _inputs(link: Link, evidence: Evidence, scale: Scale) -> None:
    """Every run names the shards that are there and, where its arm takes one, the margins."""
    found = {}
    for key, name in (("shards", f"{SHARDS}/{CARD}"), ("margins", MARGINS)):
        path = evidence.file(name)
        if path.is_file():
            found[key] = sha256_file(path)
        else:
            link.absent(path, "is not there", evidence.rebuild(name))
    for name, card in evidence.runs.items():
        inputs, margins = card.content["inputs"], card.content["parameters"].get("margins")
        for key, digest in found.items():
            if key in inputs or key == "shards":
                same = inputs.get(key) == digest
                link.expect(same, card.file, f"was trained with other {key}", rebuild(evidence, name))
        try:
            arm = ARMS.get(parse_run(name, scale).arm)
        except UserError:
            # Said by the link before.
            continue
        if arm is not None:
            takes = arm.log_prior is not None and "tolerance" in arm.log_prior.options
            there = ("margins" in inputs, margins is not None)
            problem = "lacks the margin of its arm" if takes else "has margins, which its arm does not take"
            link.expect(there == (takes, takes), card.file, problem, rebuild(evidence, name))


def _outputs(link: Link, evidence: Evidence, name: str, card: RunCard, scale: Scale) -> None:
    outputs, again = card.content["outputs"], rebuild(evidence, name)
    link.expect(outputs.keys() == {*OUTPUTS}, card.file, "names other files than a run has", again)
    for output in OUTPUTS:
        path = evidence.output(name, output)
        if path is None:
            continue
        if not path.is_file():
            link.expect(False, path, "is missing", again)
        elif link.expect(
            sha256_file(path) == outputs.get(output), path, f"differs from the digest in {RUN_CARD}", again
        ):
            with link.reading():
                _CHECKS[output](link, path, card, scale, again)


def _weights(link: Link, path: Path, card: RunCard, _: Scale, again: str) -> None:
    counts = card.content.get("parameter_counts")
    total = counts.get("total") if isinstance(counts, dict) else None
    found = count_parameters(path)
    link.expect(found == total, path, f"has {found} parameters, {RUN_CARD} says {total}", again)


def _losses(link: Link, path: Path, card: RunCard, scale: Scale, again: str) -> None:
    check_losses(link, path, read_table(path, "losses", again), card, scale.vocabulary, again)


def _positions(link: Link, path: Path, _: RunCard, __: Scale, again: str) -> None:
    read_table(path, "positions", again)
    link.checked += 1


_CHECKS: dict[str, Callable[[Link, Path, RunCard, Scale, str], None]] = {
    MODEL: _weights,
    LOSSES: _losses,
    POSITIONS: _positions,
}


def count_parameters(path: Path) -> int:
    """Return how many numbers the tensors in a safetensors file have, from its header alone. Raises `UserError`."""
    header, _ = _header(path)
    try:
        return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    except (KeyError, TypeError) as error:
        raise refuse(f"is not safetensors ({error})", file=path) from None


def _tensors(path: Path | None) -> str:
    """Digest of the numbers in a safetensors file, whatever its header says; empty where there is no such file."""
    if path is None or not path.is_file():
        return ""
    digest = hashlib.sha256()
    try:
        _, start = _header(path)
        with open(path, "rb") as file:
            file.seek(start)
            while piece := file.read(CHUNK):
                digest.update(piece)
    except (UserError, OSError):
        # Said by the link of weights and logs.
        return ""
    return digest.hexdigest()


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the header of a safetensors file, and where its numbers begin."""
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _MAX_HEADER:
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(file.read(length))
        return dict_of(header, path), 8 + length
    except (OSError, ValueError, struct.error, RecursionError) as error:
        raise refuse(f"is not safetensors ({error})", file=path) from None
