"""Where the minutes go: Snakemake's benchmark files and the stages' own timing sidecars, summed per rule.

Times are outside every digest. Snakemake samples a job's CPU time, up to half a minute before its end; the stages that
take most of it write their own, which is exact and stands here where there is one.
"""

from pathlib import Path

import pandas as pd

from causal_priors.artifacts import read_json
from causal_priors.errors import refuse

_MINUTE = 60.0
# Rule -> sidecar of a job, beside the artefact in the run's folder.
_SIDECARS = {
    "train": "timing.json",
    "evaluate": "evaluation.timing.json",
    "intervene": "{edit}.timing.json",
    "control": "control.timing.json",
}


def timing_table(folder: str | Path) -> str:
    """Return a markdown table of the study in `folder`: per rule jobs, core minutes, and the largest job's memory.

    Core minutes are CPU time of a rule's jobs, start-up of Python included. Raises `UserError` where there is no
    benchmark file.
    """
    root = Path(folder) / "benchmarks"
    files = sorted(root.rglob("*.tsv"))
    if not files:
        raise refuse("holds no benchmark files", file=root, remedy="run the pipeline first")
    rows = []
    for file in files:
        row = pd.read_csv(file, sep="\t", na_values="-").iloc[-1]
        rule = file.relative_to(root).parts[0].removesuffix(".tsv")
        sidecar = _sidecar(Path(folder), rule, file.stem)
        seconds = read_json(sidecar)["cpu_seconds"] if sidecar.is_file() else row["cpu_time"]
        rows.append({"rule": rule, "cpu": seconds, "wall": row["s"], "memory": row["max_rss"]})
    jobs = pd.DataFrame(rows)
    lines = [
        "| rule | jobs | core minutes | share | core seconds a job | wall seconds a job | largest job, MB |",
        "|---|---|---|---|---|---|---|",
    ]
    total = jobs["cpu"].sum()
    for rule in jobs.groupby("rule")["cpu"].sum().sort_values(ascending=False).index:
        part = jobs[jobs["rule"] == rule]
        lines.append(
            f"| {rule} | {len(part)} | {part['cpu'].sum() / _MINUTE:.1f} | {part['cpu'].sum() / total:.0%} "
            f"| {part['cpu'].median():.1f} | {part['wall'].median():.1f} | {part['memory'].max():.0f} |"
        )
    lines.append(f"| all | {len(jobs)} | {total / _MINUTE:.1f} | 100% | | | {jobs['memory'].max():.0f} |")
    return "\n".join([*lines, "", "Seconds a job are medians."]) + "\n"


def _sidecar(folder: Path, rule: str, job: str) -> Path:
    run, _, edit = job.rpartition("-") if rule == "intervene" else (job, "", "")
    return folder / "runs" / run / _SIDECARS.get(rule, "none").format(edit=edit)
