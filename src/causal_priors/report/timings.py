"""Where the minutes go: Snakemake's benchmark files summed per rule. Times are outside every digest."""

from pathlib import Path

import pandas as pd

from causal_priors.errors import refuse

_MINUTE = 60.0


def timing_table(folder: str | Path) -> str:
    """Return a markdown table from `folder/benchmarks`: per rule jobs, core minutes, and the largest job's memory.

    Core minutes are CPU time of all processes of a rule's jobs, start-up of Python included. Raises `UserError` where
    there is no benchmark file.
    """
    root = Path(folder) / "benchmarks"
    files = sorted(root.rglob("*.tsv"))
    if not files:
        raise refuse("holds no benchmark files", file=root, remedy="run the pipeline first")
    rows = []
    for file in files:
        row = pd.read_csv(file, sep="\t", na_values="-").iloc[-1]
        rule = file.relative_to(root).parts[0].removesuffix(".tsv")
        rows.append({"rule": rule, "cpu": row["cpu_time"], "wall": row["s"], "memory": row["max_rss"]})
    jobs = pd.DataFrame(rows)
    lines = [
        "| rule | jobs | core minutes | share | wall seconds a job (median) | largest job, MB |",
        "|---|---|---|---|---|---|",
    ]
    total = jobs["cpu"].sum()
    for rule in jobs.groupby("rule")["cpu"].sum().sort_values(ascending=False).index:
        part = jobs[jobs["rule"] == rule]
        lines.append(
            f"| {rule} | {len(part)} | {part['cpu'].sum() / _MINUTE:.1f} | {part['cpu'].sum() / total:.0%} "
            f"| {part['wall'].median():.1f} | {part['memory'].max():.0f} |"
        )
    lines.append(f"| all | {len(jobs)} | {total / _MINUTE:.1f} | 100% | | {jobs['memory'].max():.0f} |")
    return "\n".join(lines) + "\n"
