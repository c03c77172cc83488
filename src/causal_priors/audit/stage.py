"""The audit of one study: all links in their order, and what no file can show."""

from pathlib import Path

from causal_priors.arms import ARMS
from causal_priors.audit.claims import claimed_files
from causal_priors.audit.data_chain import SHARDS, check_data
from causal_priors.audit.evidence import EVALUATION, Evidence, open_evidence
from causal_priors.audit.findings import Finding, Report
from causal_priors.audit.history import check_history
from causal_priors.audit.result_chain import check_results
from causal_priors.audit.run_chain import check_runs
from causal_priors.audit.scale_history import check_scale
from causal_priors.audit.verdict_chain import check_seals, check_verdicts
from causal_priors.codedigest import code_digest
from causal_priors.data.shards import CARD
from causal_priors.prereg.protocol import registered_interventions, registered_runs
from causal_priors.remedies import rebuild_command
from causal_priors.runs import Run
from causal_priors.scale import Scale


def audit(
    folder: str | Path,
    scale: Scale,
    preregistration: str | Path,
    texts: str | Path | None = None,
    text_column: str = "text",
    scale_path: Path | None = None,
) -> Report:
    """Recheck the study (or the snapshot of one) in `folder` from its files alone; change nothing.

    texts: the corpus of one's own that it was made from; the default corpus is found beside the results.
    scale_path: the scale's file, whose history is looked at. Raises `UserError` only where `folder` holds no study.
    """
    register = Path(preregistration)
    evidence = open_evidence(Path(folder))
    report = Report(str(folder), scale.name)
    report.links.append(evidence.reading)
    check_data(report, evidence, scale, None if texts is None else Path(texts), text_column)
    sealed = check_seals(report, register)
    protocols = sealed[0] if sealed else ()
    runs = [run for run in registered_runs(protocols) if run.arm in ARMS]
    interventions = [item for item in registered_interventions(protocols) if item.run.arm in ARMS]
    if sealed is None:
        report.link("registered runs").absent(register, "a seal is broken: what is registered cannot be told")
    claimed = claimed_files(evidence, protocols, scale)
    check_runs(report, evidence, scale, runs, claimed)
    check_results(report, evidence, scale, runs, interventions, claimed)
    check_verdicts(report, evidence, scale, sealed, register)
    check_history(report, evidence, register)
    if scale_path is not None:
        check_scale(report, scale, scale_path)
    report.beyond = _beyond(evidence, scale, runs)
    return report


def _beyond(evidence: Evidence, scale: Scale, runs: list[Run]) -> list[Finding]:
    """What digests cannot show, each with the command that would: do the stage again and audit again."""
    example = runs[0].name(scale) if runs else "RUN"
    code = {run: code_digest("train", ARMS[run.arm]) for run in runs}
    of_this = sum(
        evidence.runs[run.name(scale)].content["code"] == digest
        for run, digest in code.items()
        if run.name(scale) in evidence.runs
    )
    place = evidence.folder if not evidence.snapshot else Path("results") / scale.name

    def again(name: str) -> str:
        return f"{rebuild_command(place / name)}, then audit again"

    return [
        Finding(
            "",
            f"that weights came out of training on these tokens from their seeds (run cards of {of_this} of {len(runs)} "
            "registered runs name the code of this checkout); on the CPU type that made them training gives the same "
            "bits",
            # With its folder: what lies in it would be put back rather than trained again.
            f"rm -r {place / 'runs' / example}; {again(f'runs/{example}/run.json')}",
        ),
        Finding(
            "",
            "that a table holds what its checkpoint gives, where it was rewritten together with its copies and with "
            "every digest above it",
            again(f"runs/{example}/{EVALUATION}"),
        ),
        Finding(
            "",
            "that files which no verdict reads are what their code makes: figures, report.html, "
            "ro-crate-metadata.json, tables/swaps.csv, timings, the numbers of theory/theory.csv and .parquet, "
            "control.parquet of runs, tables/exploratory, all of experiment 0006 (experiments/0006, in a snapshot 0006)",
            f"remove them and run snakemake --cores all --config scale={scale.name}, then compare",
        ),
        Finding("", "that tokenizer and tokens are what their code makes of the texts", again(f"{SHARDS}/{CARD}")),
        Finding(
            "",
            "that nobody rewrote the whole history, or made results before the seals and committed them after",
            "compare commit ids with another copy of the repository",
        ),
    ]
