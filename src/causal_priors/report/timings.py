"""Where the minutes go: Snakemake's benchmark files and the stages' own timing sidecars, summed per rule.

Times are outside every digest. Snakemake samples a job's CPU time, up to half a minute before its end; the stages that
take most of it write their own, which is exact and stands here where there is one.
"""

from pathlib import Path

import pandas as pd

from causal_priors.errors import refuse
from causal_priors.report.sidecar import read_timing

_MINUTE = 60.0
# Rule -> sidecar of a job, beside its artefact.
_SIDECARS = {
    "train": "runs/{run}/timing.json",
    "evaluate": "runs/{run}/evaluation.timing.json",
    "intervene": "runs/{run}/{edit}.timing.json",
    "control": "runs/{run}/control.timing.json",
    "goat": "experiments/0006/arms/{run}.timing.json",
}
# Rules of targets beside the default one: a table of their own.
_APART = {"goat": "experiment_0006"}


def timing_table(folder: str | Path) -> str:
    """Return a markdown table of the study in `folder`: per rule jobs, core minutes, and the largest job's memory.

    Core minutes are CPU time of a rule's jobs, start-up of Python and of what it imports included; start-up is also given
    on its own, for the stages that write it down. The last line sets the sum beside the minutes from the start of the
    first job to the end of the last, by the files' times: what they say of a study that was interrupted is too long.
    Jobs of a target beside the default one are a second table. Raises `UserError` where there is no benchmark file,
    and for a damaged one.
    """
    root = Path(folder) / "benchmarks"
    files = sorted(root.rglob("*.tsv"))
    if not files:
        raise refuse("holds no benchmark files", file=root, remedy="run the pipeline first")
    rows = []
    for file in files:
        row = _benchmark(file)
        rule = file.relative_to(root).parts[0].removesuffix(".tsv")
        own = _own(Path(folder), rule, file.stem)
        rows.append(
            {
                "rule": rule,
                "cpu": own.get("cpu_seconds", row["cpu_time"]),
                "startup": own.get("startup_cpu_seconds", 0.0),
                "wall": row["s"],
                # Snakemake does not see the memory of a job that a warm process forked.
                "memory": max(row["max_rss"], own.get("peak_memory_mb", 0)),
                "end": file.stat().st_mtime,
            }
        )
    jobs = pd.DataFrame(rows)
    apart = jobs["rule"].map(_APART).fillna("")
    parts = [_rules(jobs[apart == ""])] if (apart == "").any() else []
    for target in sorted({*apart} - {""}):
        table = _rules(jobs[apart == target])
        parts.append(f"Target `{target}`, which the default one does not hold:\n\n{table}")
    return "\n".join(parts)


def _rules(jobs: pd.DataFrame) -> str:
    total, startup = jobs["cpu"].sum(), jobs["startup"].sum()
    lines = [
        "| rule | jobs | core minutes | share | of them start-up | core seconds a job | seconds a job | largest job, MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for rule in jobs.groupby("rule")["cpu"].sum().sort_values(ascending=False).index:
        part = jobs[jobs["rule"] == rule]
        lines.append(
            f"| {rule} | {len(part)} | {part['cpu'].sum() / _MINUTE:.1f} | {part['cpu'].sum() / total:.0%} "
            f"| {part['startup'].sum() / _MINUTE:.1f} | {part['cpu'].median():.1f} | {part['wall'].median():.1f} "
            f"| {part['memory'].max():.0f} |"
        )
    lines.append(
        f"| all | {len(jobs)} | {total / _MINUTE:.1f} | 100% | {startup / _MINUTE:.1f} | | | {jobs['memory'].max():.0f} |"
    )
    wall = jobs["end"].max() - (jobs["end"] - jobs["wall"]).min()
    lines += [
        "",
        f"Seconds a job are medians. From the start of the first job to the end of the last: {wall / _MINUTE:.1f} minutes. "
        f"On average {total / wall:.2f} cores were at work, {(total - startup) / wall:.2f} of them beyond start-up.",
    ]
    return "\n".join(lines) + "\n"


def _benchmark(file: Path) -> dict[str, float]:
    """The last line of a benchmark file: seconds, CPU time and memory."""
    try:
        row = pd.read_csv(file, sep="\t", na_values="-").iloc[-1]
        return {key: float(row[key]) for key in ("s", "cpu_time", "max_rss")}
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        remedy = "remove it: no result rests on it"
        raise refuse(f"is no benchmark file ({type(error).__name__})", file=file, remedy=remedy) from error


def _own(folder: Path, rule: str, job: str) -> dict[str, float]:
    """What a stage wrote about its own times, empty where it wrote nothing."""
    run, _, edit = job.rpartition("-") if rule == "intervene" else (job, "", "")
    return read_timing(folder / _SIDECARS.get(rule, "none").format(run=run, edit=edit))
