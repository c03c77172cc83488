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
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=2000,
    params:
        code=code_of("intervene"),
        options=f"--scale {SCALE} {REGISTER} --shards {DATA}/shards {PACKED}",
        folder=lambda wildcards, input: Path(input.card).parent.as_posix(),
        arm=own_arm,
    shell:
        "python -m causal_priors --log {log} intervene {wildcards.run} {wildcards.edit} {params.options} {params.arm}"
        " --folder {params.folder} --out {output}"
