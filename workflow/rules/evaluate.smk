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
    threads: 1
    resources:
        mem_mb=2000,
    params:
        code=code_of("evaluate"),
        packed=PACKED,
        folder=lambda wildcards, input: Path(input.card).parent.as_posix(),
    shell:
        "{PYTHON} -m causal_priors evaluate {wildcards.run} --scale {SCALE} {REGISTER} --shards {DATA}/shards"
        " {params.packed}"
        " --folder {params.folder} --out {output}" + LOGGED
