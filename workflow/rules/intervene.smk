# One process changes one checkpoint's log-prior beyond L and measures before and after.


rule intervene:
    input:
        shards=rules.shards.output,
        card=rules.train.output.card,
        model=rules.train.output.model,
    output:
        f"{OUT}/runs/{{run}}/{{edit}}.parquet",
    log:
        f"{OUT}/logs/intervene/{{run}}-{{edit}}.log",
    benchmark:
        f"{OUT}/benchmarks/intervene/{{run}}-{{edit}}.tsv"
    threads: 1
    resources:
        mem_mb=2000,
    params:
        code=code_of("intervene"),
        packed=PACKED,
        folder=lambda wildcards, input: Path(input.card).parent.as_posix(),
    shell:
        "{PYTHON} -m causal_priors intervene {wildcards.run} {wildcards.edit} --scale {SCALE} {REGISTER} --shards {DATA}/shards"
        ""
        " {params.packed} --folder {params.folder} --out {output}" + LOGGED
