# Corpus -> index (checked and split) -> tokenizer -> shards. The default corpus is fetched once for all scales; a
# folder of one's own (config key `corpus`) takes its place.
#
# What may fetch from the network is a local rule: a cluster's nodes often have none, so it runs where snakemake does.

CACHE = f"{STUDY.config.results}/corpus"
OWN = STUDY.config.corpus != "default"
CARD = f"{CACHE}/default/card.json"
TEXTS = STUDY.config.corpus if OWN else f"{CACHE}/default/text"
ARCHIVES = f"--archives {quote(STUDY.config.corpus_archives)}" if STUDY.config.corpus_archives else ""
PACKED = "--packed" if STUDY.config.allow_packed_blocks else ""
COLUMN = f"--text-column {quote(STUDY.config.text_column)}"


# What rebuilds the index: the default corpus's card, or the files that are read of one's own folder.
try:
    TEXT_FILES = paths(path for _, path in corpus_files(TEXTS).files) if OWN else [CARD]
except UserError as error:
    refuse_to_start(f"{CONFIG.name}: corpus: {error}")
if braced := [name for name in TEXT_FILES if {"{", "}"} & set(name)]:
    refuse_to_start(
        refuse("has a brace in its name, which Snakemake takes for a pattern", file=braced[0], remedy="rename it")
    )


rule corpus:
    output:
        CARD,
    log:
        f"{CACHE}/default.log",
    localrule: True
    conda:
        ENVIRONMENT
    params:
        code=code_digest("corpus"),
        archives=ARCHIVES,
    shell:
        "python -m causal_priors --log {log} corpus {output} {params.archives}"


rule index:
    input:
        TEXT_FILES,
    output:
        f"{DATA}/index.parquet",
    log:
        f"{OUT}/logs/index.log",
    benchmark:
        f"{OUT}/benchmarks/index.tsv"
    conda:
        ENVIRONMENT
    # As many of them as --cores allows.
    threads: 16
    params:
        code=code_digest("index"),
        card="" if OWN else f"--card {CARD}",
        options=f"--texts {quote(TEXTS)} {COLUMN} {PACKED}",
    shell:
        "python -m causal_priors --log {log} index {params.options} {params.card} --threads {threads} --out {output}"


rule tokenizer:
    input:
        index=rules.index.output,
    output:
        f"{DATA}/tokenizer.json",
    log:
        f"{OUT}/logs/tokenizer.log",
    benchmark:
        f"{OUT}/benchmarks/tokenizer.tsv"
    localrule: True
    conda:
        ENVIRONMENT
    params:
        code=code_digest("tokenizer"),
        digest=STUDY.scale.digest(),
        options=f"--texts {quote(TEXTS)} {COLUMN} --scale {SCALE} --cache {CACHE} {ARCHIVES}",
    shell:
        "python -m causal_priors --log {log} tokenizer {params.options} --index {input.index} --out {output}"


rule shards:
    input:
        index=rules.index.output,
        tokenizer=rules.tokenizer.output,
    output:
        card=f"{DATA}/shards/card.json",
        train=f"{DATA}/shards/train.bin",
        heldout=f"{DATA}/shards/heldout.bin",
        documents=f"{DATA}/shards/documents.parquet",
    log:
        f"{OUT}/logs/shards.log",
    benchmark:
        f"{OUT}/benchmarks/shards.tsv"
    conda:
        ENVIRONMENT
    # As many of them as --cores allows.
    threads: 16
    params:
        code=code_digest("shards"),
        digest=STUDY.scale.digest(),
        options=f"--texts {quote(TEXTS)} {COLUMN} {PACKED} --scale {SCALE}",
        repeats="--allow-repeats" if STUDY.config.allow_repeats else "",
        folder=lambda wildcards, output: Path(output.card).parent.as_posix(),
    shell:
        "python -m causal_priors --log {log} shards {params.options} {params.repeats} --index {input.index}"
        " --tokenizer {input.tokenizer} --threads {threads} --out {params.folder}"
