# One job trains one run. Its resume state lies undeclared in {run}/work, since Snakemake deletes declared outputs of a
# job that failed.
#
# gpu=1, here and wherever a model is run, matters only where a limit is set (`--resources gpu=1`) or a profile maps it
# (workflow/profiles/slurm); without either it asks for nothing. `--set-resources train:gpu=4` trains each run on four GPUs
# of a machine, `train:micro_batch=8192` takes so many tokens at a time (0: a step's): docs/gpu.md. Neither is part of a run.


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
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=2000,
        gpu=1,
        micro_batch=0,
    params:
        code=code_of("train"),
        options=f"--scale {SCALE} {REGISTER} --shards {DATA}/shards",
        digest=STUDY.scale.digest(),
        margins=lambda wildcards, input: (f"--margins {input.margins}" if input.margins else ""),
        arm=own_arm,
        folder=lambda wildcards, output: Path(output.card).parent.as_posix(),
    shell:
        "python -m causal_priors --log {log} train {wildcards.run} {params.options} {params.margins} {params.arm}"
        " --out {params.folder} --processes {resources.gpu} --micro-batch {resources.micro_batch}"
