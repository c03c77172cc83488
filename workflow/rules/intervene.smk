# One process changes one checkpoint's log-prior beyond L and measures before and after. Another measures what no such
# change, or a random one, does to a checkpoint that has no log-prior; those tables enter no verdict.

CONTROLS = paths(STUDY.control_files())


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
        gpu=1,
    params:
        code=code_of("intervene"),
        options=f"--scale {SCALE} {REGISTER} --shards {DATA}/shards {PACKED}",
        folder=lambda wildcards, input: Path(input.card).parent.as_posix(),
        arm=own_arm,
    shell:
        "python -m causal_priors --log {log} intervene {wildcards.run} {wildcards.edit} {params.options} {params.arm}"
        " --folder {params.folder} --out {output}"


rule control:
    input:
        shards=rules.shards.output,
        card=rules.train.output.card,
        model=rules.train.output.model,
    output:
        f"{OUT}/runs/{{run}}/control.parquet",
    log:
        f"{OUT}/logs/control/{{run}}.log",
    benchmark:
        f"{OUT}/benchmarks/control/{{run}}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=2000,
        gpu=1,
    params:
        code=code_of("control"),
        options=f"--scale {SCALE} {REGISTER} --shards {DATA}/shards {PACKED}",
        folder=lambda wildcards, input: Path(input.card).parent.as_posix(),
        arm=own_arm,
    shell:
        "python -m causal_priors --log {log} control {wildcards.run} {params.options} {params.arm}"
        " --folder {params.folder} --out {output}"
