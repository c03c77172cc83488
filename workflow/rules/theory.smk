# Numbers that need no training: the margins of experiment 0005.


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
