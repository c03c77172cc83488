# Tables for readers. They enter no verdict.

SUMMARY = [f"{OUT}/tables/summary.csv", f"{OUT}/tables/summary.md"]
SOURCE = [f"{OUT}/tables/source.csv", f"{OUT}/tables/source.md"]


rule summary:
    input:
        paths([*STUDY.evaluation_files(), *STUDY.own_files()]),
    output:
        csv=SUMMARY[0],
        md=SUMMARY[1],
    log:
        f"{OUT}/logs/summary.log",
    benchmark:
        f"{OUT}/benchmarks/summary.tsv"
    conda:
        ENVIRONMENT
    params:
        code=code_digest("summary"),
    shell:
        "python -m causal_priors --log {log} summary {input} --csv {output.csv} --md {output.md}"


# At the source's own scale the runs' timing sidecars are read as well, which no rule declares.
rule source:
    input:
        verdicts=VERDICTS[0],
        summary=SUMMARY[0],
        published=(REGISTERED / "published.yaml").as_posix(),
        assumptions=(REGISTERED / "assumptions.yaml").as_posix(),
    output:
        csv=SOURCE[0],
        md=SOURCE[1],
    log:
        f"{OUT}/logs/source.log",
    benchmark:
        f"{OUT}/benchmarks/source.tsv"
    conda:
        ENVIRONMENT
    params:
        code=code_digest("source"),
        digest=STUDY.scale.digest(),
        options=f"--scale {SCALE} {REGISTER} --runs {OUT}/runs",
    shell:
        "python -m causal_priors --log {log} source {params.options} --verdicts {input.verdicts}"
        " --summary {input.summary} --csv {output.csv} --md {output.md}"


# Provenance: what came from what, by sha256, in the form that archives and registries read. The workflow's own files are
# copied beside it.
WORKFLOW_FILES = workflow_files(SCALE)
CRATE = f"{OUT}/ro-crate-metadata.json"


rule crate:
    input:
        paths([*STUDY.evaluation_files(), *(STUDY.run_folder(run) / "run.json" for run in STUDY.runs())]),
        rules.shards.output,
        rules.margins.output,
        VERDICTS,
        SUMMARY,
        SOURCE,
        THEORY,
        workflow=[(BASE / name).as_posix() for name in WORKFLOW_FILES],
    output:
        CRATE,
        [f"{OUT}/code/{name}" for name in WORKFLOW_FILES],
    log:
        f"{OUT}/logs/crate.log",
    benchmark:
        f"{OUT}/benchmarks/crate.tsv"
    conda:
        ENVIRONMENT
    params:
        code=code_digest("crate"),
        digest=STUDY.scale.digest(),
        options=f"--scale {SCALE} {REGISTER} --results {quote(STUDY.config.results)}",
    shell:
        "python -m causal_priors --log {log} crate {params.options}"
