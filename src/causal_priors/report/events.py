"""Loss curves as TensorBoard events, from the tables that training wrote; nothing in the training loop knows of it.

TensorBoard is optional (`pip install tensorboard`). Unusual: the events carry the training time that a step took by the
run's timing sidecar instead of the time of writing, and the file has a fixed name, so that exporting twice gives the
same bytes and no host name gets out.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from causal_priors.artifacts import atomic_path, read_json
from causal_priors.errors import UserError, refuse
from causal_priors.tables import read_table

EVENTS = "events.out.tfevents.0.causal-priors"
Scalar = tuple[int, str, float]


def export_events(folders: Iterable[Path], out: Path) -> list[Path]:
    """Write the curves of each run folder to `out/{run}`; return the files. `tensorboard --logdir out` shows them.

    Tags: train/loss (nats per target), train/learning_rate, train/gradient_norm, and position/{quantity}/layer{l}-head{h}.
    Raises `UserError` where TensorBoard is not installed or a run's tables cannot be read.
    """
    written = []
    for folder in folders:
        target = out / folder.name / EVENTS
        seconds = _seconds_per_step(folder)
        with atomic_path(target) as temporary:
            _write(temporary, scalars(folder), seconds)
        written.append(target)
    return written


def scalars(folder: Path) -> Iterator[Scalar]:
    """Yield (step, tag, value) of a run in order of steps: losses after update `step`, positions as logged."""
    losses = read_table(folder / "losses.parquet", "losses")
    positions = read_table(folder / "positions.parquet", "positions")
    rows: list[Scalar] = []
    for row in losses.to_dict("records"):
        step = int(row["step"])
        rows.append((step, "train/loss", float(row["loss"])))
        rows.append((step, "train/learning_rate", float(row["lr"])))
        rows.append((step, "train/gradient_norm", float(row["grad_norm"])))
    for row in positions.to_dict("records"):
        tag = f"position/{row['quantity']}/layer{row['layer']}-head{row['head']}"
        rows.append((int(row["step"]), tag, float(row["value"])))
    yield from sorted(rows, key=lambda row: row[0])


def _write(path: Path, rows: Iterable[Scalar], seconds: float) -> None:
    event, summary, record_writer = _tensorboard()
    with open(path, "wb") as file:
        writer = record_writer(file)
        writer.write(event(wall_time=0.0, file_version="brain.Event:2").SerializeToString())
        for step, tag, value in rows:
            content = summary(value=[summary.Value(tag=tag, simple_value=value)])
            writer.write(event(wall_time=step * seconds, step=step, summary=content).SerializeToString())
        writer.flush()


def _tensorboard() -> tuple[Any, Any, Any]:
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise refuse(f"TensorBoard is not installed ({error})", remedy="python -m pip install tensorboard") from None
    return Event, Summary, RecordWriter


def _seconds_per_step(folder: Path) -> float:
    try:
        return float(read_json(folder / "timing.json")["seconds_per_step"])
    except (UserError, KeyError, TypeError, ValueError):
        # Without the sidecar a step counts as a second.
        return 1.0
