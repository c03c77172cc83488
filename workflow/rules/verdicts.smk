# Scoring: sealed protocols and evaluation tables in, verdicts out. A test that fails is a result, not an error.

KINDS = ["json", "parquet", "csv", "md"]
VERDICTS = [f"{OUT}/verdicts.{kind}" for kind in KINDS]
REGISTERED = Path(STUDY.config.preregistration)
SEALED = paths(
    sorted(file for kind in ("*.yaml", "[0-9]*/*.yaml", "[0-9]*/seal.json") for file in REGISTERED.glob(kind))
)


rule verdicts:
    input:
        evaluations=paths(STUDY.evaluation_files()),
        cards=paths(STUDY.run_folder(run) / "run.json" for run in STUDY.runs()),
        sealed=SEALED,
    output:
        VERDICTS,
    log:
        f"{OUT}/logs/verdicts.log",
    benchmark:
        f"{OUT}/benchmarks/verdicts.tsv"
    conda:
        ENVIRONMENT
    params:
        code=code_digest("score"),
        digest=STUDY.scale.digest(),
        options=f"--scale {SCALE} {REGISTER}",
        folder=lambda wildcards, output: Path(output[0]).parent.as_posix(),
    shell:
        "python -m causal_priors --log {log} score {input.evaluations} {params.options} --out {params.folder}"


rule experiment_verdicts:
    input:
        evaluations=lambda wildcards: paths(STUDY.evaluation_files(wildcards.experiment)),
        cards=lambda wildcards: paths(STUDY.run_folder(run) / "run.json" for run in STUDY.runs(wildcards.experiment)),
        sealed=SEALED,
    output:
        [f"{OUT}/experiments/{{experiment}}/verdicts.{kind}" for kind in KINDS],
    log:
        f"{OUT}/logs/verdicts-{{experiment}}.log",
    conda:
        ENVIRONMENT
    params:
        code=code_digest("score"),
        digest=STUDY.scale.digest(),
        options=f"--scale {SCALE} {REGISTER}",
        folder=lambda wildcards, output: Path(output[0]).parent.as_posix(),
    shell:
        "python -m causal_priors --log {log} score {input.evaluations} {params.options}"
        " --experiment {wildcards.experiment}"
        " --out {params.folder}"


# `snakemake --cores all experiment_0003`
for experiment in STUDY.experiments:

    rule:
        name:
            f"experiment_{experiment}"
        input:
            [f"{OUT}/experiments/{experiment}/verdicts.{kind}" for kind in KINDS],
