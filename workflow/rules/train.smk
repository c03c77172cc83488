# One job trains one run. Its resume state lies undeclared in {run}/work, since Snakemake deletes declared outputs of a
# job that failed.


def margins_of(wildcards):
    return (
        [f"{OUT}/theory/margins.json"]
        if STUDY.needs_margins(STUDY.run(wildcards.run))
        else []
    )


rule train:
    input:
        shards=rules.shards.output,
        margins=margins_of,
    output:
        model=f"{OUT}/runs/{{run}}/model.safetensors",
        losses=f"{OUT}/runs/{{run}}/losses.parquet",
        positions=f"{OUT}/runs/{{run}}/positions.parquet",
        card=f"{OUT}/runs/{{run}}/run.json",
    log:
        f"{OUT}/logs/train/{{run}}.log",
    benchmark:
        f"{OUT}/benchmarks/train/{{run}}.tsv"
    threads: 1
    resources:
        mem_mb=2000,
    params:
        code=code_of("train"),
        scale=STUDY.scale.digest(),
        margins=lambda wildcards, input: (
            f"--margins {input.margins}" if input.margins else ""
        ),
        folder=lambda wildcards, output: Path(output.card).parent.as_posix(),
    shell:
        "{PYTHON} -m causal_priors train {wildcards.run} --scale {SCALE} {REGISTER} --shards {DATA}/shards"
        " {params.margins}"
        " --out {params.folder}" + LOGGED
