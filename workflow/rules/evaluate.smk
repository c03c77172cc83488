# One process evaluates one checkpoint at L, 2L, 4L and 8L.


rule evaluate:
    input:
        shards=rules.shards.output,
        card=rules.train.output.card,
        model=rules.train.output.model,
    output:
        f"{OUT}/runs/{{run}}/evaluation.parquet",
    log:
        f"{OUT}/logs/evaluate/{{run}}.log",
    benchmark:
        f"{OUT}/benchmarks/evaluate/{{run}}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=2000,
        gpu=1,
    params:
        code=code_of("evaluate"),
        options=f"--scale {SCALE} {REGISTER} --shards {DATA}/shards {PACKED}",
        folder=lambda wildcards, input: Path(input.card).parent.as_posix(),
        arm=own_arm,
        ramps=yarn_ramps,
    shell:
        "python -m causal_priors --log {log} evaluate {wildcards.run} {params.options} {params.arm} {params.ramps}"
        " --folder {params.folder} --out {output}"
