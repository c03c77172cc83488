# Experiment 0006, exploratory: Goat's own tests. `snakemake --cores all experiment_0006`; no part of the default target, and
# nothing of it enters a verdict. One process trains and measures one arm.

from causal_priors.goat import EXPERIMENT, FIGURES, LONGER_ARMS, PAGE, TABLES
from causal_priors.goat.registered import load_design, probed_arm

GOAT = f"{OUT}/experiments/{EXPERIMENT}"
GOAT_PAGE = f"{GOAT}/{PAGE}"
# A register or scale of one's own may have no such experiment; that matters only to who asks for it.
try:
    GOAT_DESIGN = (
        load_design(STUDY.config.preregistration, STUDY.scale) if EXPERIMENT not in STUDY.experiments else None
    )
except UserError as error:
    GOAT_DESIGN = None
    if any(argument.startswith((f"experiment_{EXPERIMENT}", GOAT)) for argument in sys.argv[1:]):
        refuse_to_start(error)

if GOAT_DESIGN is not None:
    # What takes two or three times as long as the others starts first, so that two cores end together.
    GOAT_LONG = [arm for arm in GOAT_DESIGN.arms if arm in LONGER_ARMS or probed_arm(arm, GOAT_DESIGN).transport]
    GOAT_SHORT = [arm for arm in GOAT_DESIGN.arms if arm not in GOAT_LONG]

    rule goat:
        input:
            shards=rules.shards.output,
            tokenizer=rules.tokenizer.output,
        output:
            f"{GOAT}/arms/{{goat_arm}}.parquet",
        log:
            f"{OUT}/logs/goat/{{goat_arm}}.log",
        benchmark:
            f"{OUT}/benchmarks/goat/{{goat_arm}}.tsv"
        wildcard_constraints:
            goat_arm="|".join(GOAT_SHORT),
        conda:
            ENVIRONMENT
        threads: 1
        resources:
            mem_mb=2000,
            gpu=1,
        params:
            code=lambda wildcards: code_digest("goat", probed_arm(wildcards.goat_arm, GOAT_DESIGN)),
            seal=GOAT_DESIGN.seal,
            digest=STUDY.scale.digest(),
            options=f"--scale {SCALE} {REGISTER} --shards {DATA}/shards",
        shell:
            "python -m causal_priors --log {log} goat {wildcards.goat_arm} {params.options}"
            " --tokenizer {input.tokenizer} --out {output}"

    use rule goat as goat_long with:
        wildcard_constraints:
            goat_arm="|".join(GOAT_LONG),
        priority: 1

    rule goat_tables:
        input:
            [f"{GOAT}/arms/{arm}.parquet" for arm in GOAT_DESIGN.arms],
        output:
            GOAT_PAGE,
            f"{GOAT}/probes.parquet",
            [f"{GOAT}/{name}.csv" for name in TABLES],
            [f"{GOAT}/{name}.svg" for name in FIGURES],
        log:
            f"{OUT}/logs/goat-tables.log",
        conda:
            ENVIRONMENT
        params:
            code=code_digest("goat-tables"),
            seal=GOAT_DESIGN.seal,
            digest=STUDY.scale.digest(),
            options=f"--scale {SCALE} {REGISTER}",
            folder=lambda wildcards, output: Path(output[0]).parent.as_posix(),
        shell:
            "python -m causal_priors --log {log} goat-tables {input} {params.options} --out {params.folder}"

    rule:
        name:
            f"experiment_{EXPERIMENT}"
        input:
            rules.goat_tables.output,
