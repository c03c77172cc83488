# Numbers that need no training: the margins of experiment 0005, and the table of theory.

THEORY = [f"{OUT}/theory/theory.parquet", f"{OUT}/theory/theory.csv"]


rule margins:
    output:
        f"{OUT}/theory/margins.json",
    log:
        f"{OUT}/logs/margins.log",
    benchmark:
        f"{OUT}/benchmarks/margins.tsv"
    conda:
        ENVIRONMENT
    params:
        code=code_digest("margins"),
        scale=SCALE,
        digest=STUDY.scale.digest(),
    shell:
        "python -m causal_priors --log {log} margins --scale {params.scale} --out {output}"


rule theory:
    output:
        parquet=THEORY[0],
        csv=THEORY[1],
    log:
        f"{OUT}/logs/theory.log",
    benchmark:
        f"{OUT}/benchmarks/theory.tsv"
    conda:
        ENVIRONMENT
    params:
        code=code_digest("theory"),
        scale=SCALE,
        digest=STUDY.scale.digest(),
    shell:
        "python -m causal_priors --log {log} theory --scale {params.scale} --parquet {output.parquet}"
        " --csv {output.csv}"
