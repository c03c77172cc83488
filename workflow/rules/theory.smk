# Numbers that need no training: the margins of experiment 0005.


rule margins:
    output:
        f"{OUT}/theory/margins.json",
    log:
        f"{OUT}/logs/margins.log",
    benchmark:
        f"{OUT}/benchmarks/margins.tsv"
    params:
        code=code_digest("margins"),
        scale=STUDY.scale.digest(),
    shell:
        "{PYTHON} -m causal_priors margins --scale {SCALE} --out {output}" + LOGGED
