# Tables, figures and the page for readers. They enter no verdict.

from causal_priors.report.digests import style_digest, template_digest
from causal_priors.report.figures import FIGURES

SUMMARY = [f"{OUT}/tables/summary.csv", f"{OUT}/tables/summary.md"]
SOURCE = [f"{OUT}/tables/source.csv", f"{OUT}/tables/source.md"]


rule summary:
    input:
        paths([*STUDY.evaluation_files(), *STUDY.own_files()]),
    output:
        csv=SUMMARY[0],
        md=SUMMARY[1],
    log:
        f"{OUT}/logs/summary.log",
    benchmark:
        f"{OUT}/benchmarks/summary.tsv"
    conda:
        ENVIRONMENT
    params:
        code=code_digest("summary"),
    shell:
        "python -m causal_priors --log {log} summary {input} --csv {output.csv} --md {output.md}"


# At the source's own scale the runs' timing sidecars are read as well, which no rule declares.
rule source:
    input:
        verdicts=VERDICTS[0],
        summary=SUMMARY[0],
        published=(REGISTERED / "published.yaml").as_posix(),
        assumptions=(REGISTERED / "assumptions.yaml").as_posix(),
    output:
        csv=SOURCE[0],
        md=SOURCE[1],
    log:
        f"{OUT}/logs/source.log",
    benchmark:
        f"{OUT}/benchmarks/source.tsv"
    conda:
        ENVIRONMENT
    params:
        code=code_digest("source"),
        digest=STUDY.scale.digest(),
        options=f"--scale {SCALE} {REGISTER} --runs {OUT}/runs",
    shell:
        "python -m causal_priors --log {log} source {params.options} --verdicts {input.verdicts}"
        " --summary {input.summary} --csv {output.csv} --md {output.md}"


# All figures in one process, since most of a figure's time is the start of matplotlib. Captions read the sealed tests.
DRAWN = {figure.name: figure for figure in FIGURES}
CLAIMS = {test.id: test.claim for protocol in STUDY.protocols for test in protocol.tests}
SWAPS = f"{OUT}/tables/swaps.csv"


rule figures:
    input:
        evaluations=paths([*STUDY.evaluation_files(), *STUDY.own_files()]),
        positions=paths(STUDY.positions_files()),
        summary=SUMMARY[0],
        theory=THEORY[0],
        margins=rules.margins.output,
        sealed=SEALED,
    output:
        [
            report(
                f"{OUT}/figures/{name}.svg",
                caption=f"../report/{name}.rst",
                category="Figures",
                labels={"figure": figure.title, "tests": ", ".join(figure.tests) or "none"},
            )
            for name, figure in DRAWN.items()
        ],
        [f"{OUT}/figures/{name}.png" for name in DRAWN],
        [f"{OUT}/figures/narrow/{name}.svg" for name in DRAWN],
        swaps=SWAPS,
    log:
        f"{OUT}/logs/figures.log",
    benchmark:
        f"{OUT}/benchmarks/figures.tsv"
    conda:
        ENVIRONMENT
    params:
        code=code_digest("figures"),
        style=style_digest(),
        digest=STUDY.scale.digest(),
        captions={name: figure.caption for name, figure in DRAWN.items()},
        claims={name: {test: CLAIMS[test] for test in figure.tests} for name, figure in DRAWN.items()},
        options=f"--scale {SCALE} {REGISTER}",
        folder=lambda wildcards, output: Path(output[0]).parent.as_posix(),
    shell:
        "python -m causal_priors --log {log} figures {input.evaluations} {params.options} --summary {input.summary}"
        " --theory {input.theory} --margins {input.margins} --swaps {output.swaps} --out {params.folder}"


PAGE_FILE = f"{OUT}/report.html"


rule page:
    input:
        VERDICTS[0],
        SUMMARY[0],
        SOURCE[0],
        THEORY[0],
        EXPLORED[0],
        rules.figures.output,
        rules.shards.output.card,
        cards=paths(STUDY.run_folder(run) / "run.json" for run in STUDY.runs()),
        sealed=SEALED,
    output:
        report(PAGE_FILE, caption="../report/page.rst", category="The page", labels={"figure": "all", "tests": "all"}),
    log:
        f"{OUT}/logs/page.log",
    benchmark:
        f"{OUT}/benchmarks/page.tsv"
    conda:
        ENVIRONMENT
    params:
        code=code_digest("page"),
        template=template_digest(),
        digest=STUDY.scale.digest(),
        claims=CLAIMS,
        options=f"--scale {SCALE} {REGISTER} --folder {OUT}",
    shell:
        "python -m causal_priors --log {log} report {params.options} --out {output}"


# Provenance: what came from what, by sha256, in the form that archives and registries read. The workflow's own files are
# copied beside it.
WORKFLOW_FILES = workflow_files(SCALE)
CRATE = f"{OUT}/ro-crate-metadata.json"


rule crate:
    input:
        paths([*STUDY.evaluation_files(), *(STUDY.run_folder(run) / "run.json" for run in STUDY.runs())]),
        rules.shards.output,
        rules.margins.output,
        VERDICTS,
        SUMMARY,
        SOURCE,
        THEORY,
        EXPLORED,
        rules.figures.output,
        PAGE_FILE,
        workflow=[(BASE / name).as_posix() for name in WORKFLOW_FILES],
    output:
        CRATE,
        [f"{OUT}/code/{name}" for name in WORKFLOW_FILES],
    log:
        f"{OUT}/logs/crate.log",
    benchmark:
        f"{OUT}/benchmarks/crate.tsv"
    conda:
        ENVIRONMENT
    params:
        code=code_digest("crate"),
        digest=STUDY.scale.digest(),
        options=f"--scale {SCALE} {REGISTER} --results {quote(STUDY.config.results)}",
    shell:
        "python -m causal_priors --log {log} crate {params.options}"
