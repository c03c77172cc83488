# From text to verdicts. `snakemake --cores all` runs the registered study at the default scale;
# `--config scale=mini` changes the scale, and a target narrows it: an experiment (experiment_0003), or any file.
#
# Shell rules only, each one stage of `python -m causal_priors`. `params: code=` holds a digest of the source that a
# stage's numbers depend on, so that an edit reruns what it touches.

import sys
from os import environ
from pathlib import Path
from shlex import quote

from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

from causal_priors.codedigest import code_digest
from causal_priors.data.documents import corpus_files
from causal_priors.driver import claim
from causal_priors.errors import UserError, refuse
from causal_priors.report.crate import workflow_files
from causal_priors.study import load_study, use_this_checkout
from causal_priors.warm import start
from causal_priors.yamlfile import load_yaml

min_version("9.20")

BASE = Path(workflow.basedir)
CONFIG = BASE / "workflow" / "config" / "config.yaml"


# Before Snakemake reads it: what it reads it also copies, aliases and all.
try:
    load_yaml(CONFIG)
except UserError as error:
    sys.tracebacklimit = 0
    raise WorkflowError(str(error)) from None


configfile: str(CONFIG)


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/theory.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/intervene.smk"
include: "workflow/rules/verdicts.smk"
include: "workflow/rules/exploratory.smk"
include: "workflow/rules/goat.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        VERDICTS,
        SUMMARY,
        THEORY,
        SOURCE,
        CRATE,
        EXPLORED,
        PAGE_FILE,
        paths(STUDY.own_files()),


# Snakemake 9's limit on jobs per second starts one more timer at each pass of its scheduler, and each timer causes a pass:
# after a hundred jobs it spends a third of a core on looking. Jobs here take seconds, so there is nothing to limit.
onstart:
    workflow.scheduler.job_rate_limiter = None
    try:
        claim(OUT)
    except UserError as error:
        refuse_to_start(error)
    start(f"{OUT}/logs/warm.log")


# The table is the last thing a reader sees: the whole study's, or those of the experiments that were asked for. `make`
# prints it itself, also where nothing was left to do.
onsuccess:
    asked = [f"{OUT}/experiments/{name}" for name in STUDY.experiments if f"experiment_{name}" in sys.argv]
    apart = f"experiment_{EXPERIMENT}" in sys.argv
    for folder in [] if environ.get("VERDICTS") == "later" else asked or ([] if apart else [OUT]):
        if Path(folder, "verdicts.json").exists():
            shell("python -m causal_priors verdicts --folder {folder} >&2")
            if Path(folder, "report.html").exists():
                shell("echo 'The report with all figures: {folder}/report.html' >&2")
    if apart:
        shell("echo 'Exploratory, with its figures beside it: {GOAT_PAGE}' >&2")
