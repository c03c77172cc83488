# Analyses that nobody registered: intervals, thresholds at which verdicts would flip, controls. They enter no verdict.

from causal_priors.exploratory import PAGE, TABLES

EXPLORED = [f"{OUT}/tables/exploratory/{name}" for name in (PAGE, *(f"{table}.csv" for table in TABLES))]


rule exploratory:
    input:
        tables=[*paths([*STUDY.evaluation_files(), *STUDY.own_files()]), *CONTROLS],
        positions=paths(STUDY.positions_files()),
        sealed=SEALED,
    output:
        EXPLORED,
    log:
        f"{OUT}/logs/exploratory.log",
    benchmark:
        f"{OUT}/benchmarks/exploratory.tsv"
    conda:
        ENVIRONMENT
    params:
        code=code_digest("exploratory"),
        digest=STUDY.scale.digest(),
        options=f"--scale {SCALE} {REGISTER}",
        folder=lambda wildcards, output: Path(output[0]).parent.as_posix(),
    shell:
        "python -m causal_priors --log {log} exploratory {input.tables} {input.positions} {params.options}"
        " --out {params.folder}"
