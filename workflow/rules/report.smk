# Tables for readers. They enter no verdict.

SUMMARY = [f"{OUT}/tables/summary.csv", f"{OUT}/tables/summary.md"]


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
