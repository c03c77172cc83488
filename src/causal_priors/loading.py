"""A trained run in a few lines, for a notebook: `from causal_priors import load_run`. And a folder to hand on.

Shape legend: A layers, B batch, H heads, T tokens of a window, D distances. Nothing but the folder is needed for a run of
a registered scale: `run.json` names arm, scale, seeds and margins, and the weights must have the digest it names. An
exported folder holds its scale too, so that it loads where that scale is not registered.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from causal_priors.arms import ARMS, Arm, Part, Transport
from causal_priors.artifacts import (
    digest_of,
    read_at_most,
    read_json,
    sha256_bytes,
    write_bytes,
    write_json,
    write_text,
)
from causal_priors.config import SCALES, load_scale, make_scale
from causal_priors.errors import UserError, refuse
from causal_priors.model import Transformer
from causal_priors.own_arms import MODULES, check_types, own_arm
from causal_priors.priors.base import LogPrior
from causal_priors.runs import Run, parse_run
from causal_priors.scale import Scale
from causal_priors.train.checkpoint import (
    CARD,
    LOSSES,
    MODEL,
    POSITIONS,
    Checkpoint,
    as_device,
    read_card,
    read_checkpoint,
)

SCALE = "scale.json"
_PARTS = {part.ref for arm in ARMS.values() for part in (arm.rotation, arm.log_prior) if part is not None}
_README = """# {run}

A trained run of causal-priors: `{model}` (weights), `{losses}` and `{positions}` (its history), `{card}` (what made it,
with the sha256 of each file), `{scale}` (sizes and budget).

```python
from causal_priors import load_run

loaded = load_run("this/folder")
print(loaded.run, loaded.arm.source_name, sum(p.numel() for p in loaded.model.parameters()))
```
"""


@dataclass(frozen=True)
class LoadedRun:
    """A run read from its folder, digests verified. `model` is in evaluation mode and needs no gradient.

    card: what `run.json` says. status: "finished" or "diverged at step k".
    """

    model: Transformer
    arm: Arm
    run: Run
    scale: Scale
    card: dict[str, Any]

    @property
    def name(self) -> str:
        """The run's name, as S-rope-L64-s0."""
        return self.run.name(self.scale)

    @property
    def status(self) -> str:
        """How training ended."""
        return str(self.card["status"])

    @torch.no_grad()
    def log_prior(self, length: int, ids_T: Tensor | None = None) -> Tensor:
        """Biases b[i, i - d] of the last query i = length - 1 against distance d = 0 .. length - 1: [A, H, D].

        In nats, added to the attention logit. A prior that looks at tokens (gates, sums along the path) needs `ids_T`,
        `length` token ids, and answers for that window. Raises `UserError` for an arm without a log-prior, and for a
        prior of tokens without ids.
        """
        if self.arm.log_prior is None:
            raise refuse("has no log-prior", key="arm", value=self.arm.key)
        if ids_T is None:
            prior = self.model.layers[0].log_prior
            if prior is not None and type(prior).tokens is not LogPrior.tokens:
                raise refuse("looks at tokens: give ids_T", key="arm", value=self.arm.key)
            # Position is all that counts: any window will do.
            ids_T = torch.zeros(length, dtype=torch.int64)
        if ids_T.shape != (length,):
            raise refuse(f"is not of shape [{length}]", key="ids_T", value=list(ids_T.shape))
        device = next(self.model.parameters()).device
        x_BTC = self.model.embedding(ids_T[None].to(device))
        columns = torch.arange(length, device=device)
        found = []
        for block in self.model.layers:
            bound = block.place(*block.content(x_BTC))[3]
            assert bound is not None
            found.append(bound(columns[-1:], columns)[0, :, 0].flip(-1))
            x_BTC, _ = block(x_BTC)
        return torch.stack(found)


def load_run(
    folder: str | Path, *, arm: str | Path | None = None, device: str = "cpu", dtype: str = "float32"
) -> LoadedRun:
    """Return the trained run in `folder`: model, arm, run, scale and card.

    folder: a run folder of a study, or one that `export` wrote. arm: the Python file of an arm of one's own, needed where
    the run's arm was defined in one (it is executed; see README). Raises `UserError` where a file is missing, does not
    have the digest that `run.json` names, or does not fit.
    """
    path = Path(folder)
    card = read_card(path)
    name, wanted, row = (card["parameters"].get(key) for key in ("run", "scale", "arm"))
    if not (isinstance(name, str) and isinstance(wanted, str) and isinstance(row, dict)):
        raise refuse("is not the card of a training run: it names no run, scale or arm", file=path / CARD)
    scale = _scale_of(path, wanted)
    run = parse_run(name, scale)
    table_row = _arm_of(row, arm, path)
    checkpoint = read_checkpoint(run, scale, table_row, path)
    model = as_device(_model(checkpoint, run, scale, table_row), device, dtype)
    return LoadedRun(model, table_row, run, scale, checkpoint.card)


def export_run(folder: str | Path, out: str | Path, *, arm: str | Path | None = None) -> list[Path]:
    """Copy a run to the folder `out` with all that loads it (`load_run(out)`); return the files written.

    The run is loaded first, so that nothing damaged is handed on. Raises `UserError` as `load_run` does, and where `out`
    holds another run.
    """
    source, target = Path(folder), Path(out)
    loaded = load_run(source, arm=arm)
    if (target / CARD).is_file() and read_card(target)["parameters"].get("run") != loaded.name:
        raise refuse("holds another run", file=target, remedy="give a folder of its own")
    for name in (MODEL, LOSSES, POSITIONS):
        data = read_at_most(source / name, 1 << 32)
        if sha256_bytes(data) != loaded.card["outputs"].get(name):
            raise refuse("differs from the digest in run.json", file=source / name, remedy="train the run again")
        write_bytes(target / name, data)
    write_json(target / SCALE, loaded.scale.resolved())
    names = {"run": loaded.name, "model": MODEL, "losses": LOSSES, "positions": POSITIONS, "card": CARD, "scale": SCALE}
    write_text(target / "README.md", _README.format(**names))
    # Last, as in training: a folder without its card holds no run.
    write_bytes(target / CARD, (source / CARD).read_bytes())
    return [target / name for name in (MODEL, LOSSES, POSITIONS, SCALE, "README.md", CARD)]


def _scale_of(folder: Path, digest: str) -> Scale:
    own = folder / SCALE
    if own.is_file():
        data = read_json(own)
        if digest_of(data) != digest:
            raise refuse("differs from the digest in run.json", file=own, remedy="export the run again")
        return make_scale(data, own)
    for path in sorted(SCALES.glob("*.yaml")):
        scale = load_scale(path)
        if scale.digest() == digest:
            return scale
    remedy = "the scale's file has changed since; export runs before changing it"
    raise refuse("is of no registered scale", file=folder / CARD, key="scale", value=digest, remedy=remedy)


def _arm_of(row: Mapping[str, Any], argument: str | Path | None, folder: Path) -> Arm:
    """The arm of a card: the one given, the table's where the row is the same, else one built from the card."""
    if argument is not None:
        return own_arm(str(argument), set(ARMS)).arm
    known = ARMS.get(str(row.get("key")))
    if known is not None and digest_of(known.resolved()) == digest_of(row):
        return known
    try:
        parts = {name: None if row[name] is None else Part(**row[name]) for name in ("rotation", "log_prior")}
        transport = None if row["transport"] is None else Transport(**row["transport"])
        made = Arm(**{**row, **parts, "transport": transport, "source_name": "from its card", "exploratory": True})
        check_types(made, folder / CARD)
    except (KeyError, TypeError) as error:
        raise refuse(f"describes no arm ({error})", file=folder / CARD, key="arm") from None
    for part in filter(None, parts.values()):
        # A card is data: it may name parts that arms of this package have, and import nothing else.
        if part.ref not in _PARTS:
            if part.module.startswith(f"{MODULES}."):
                file = part.module.partition(".")[2] + ".py"
                raise refuse(
                    "was trained with an arm of its own", file=folder / CARD, remedy=f"give its file: arm={file!r}"
                )
            raise refuse("names a part outside this package", file=folder / CARD, key="arm", value=part.ref)
    return made


def _model(checkpoint: Checkpoint, run: Run, scale: Scale, arm: Arm) -> Transformer:
    """The trained model. What a card or a scale made up, and its weights or parts do not fit, is told as its fault."""
    size = run.budget(scale)
    held = sum(weight.numel() for weight in checkpoint.weights.values())
    if held < scale.vocabulary * size.width + size.non_embedding_parameters():
        raise refuse("holds fewer numbers than a model of its scale", file=checkpoint.folder / MODEL)
    try:
        return checkpoint.model(run, scale, arm)
    except Exception as error:
        if isinstance(error, UserError) or arm in ARMS.values():
            raise
        problem = f"describes an arm that cannot be built ({error})"
        raise refuse(problem, file=checkpoint.folder / CARD, key="arm") from error
