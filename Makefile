# `make reproduce` and `make test` do all the set-up they need, in a fresh clone too.
# Variables: PYTHON (3.11 or newer), SCALE (nano, micro, mini, paper), CORES.

PYTHON ?= python3
SCALE ?= micro
CORES ?= all
BIN := .venv/bin
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile
SNAKEMAKE := $(BIN)/snakemake --cores $(CORES) --config scale=$(SCALE)

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev reproduce report verdicts test test-all lint rulegraph clean clean-all

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup: .venv/ready ## make the environment in .venv
setup-dev: .venv/ready-dev ## the same, with what tests and benchmarks need

reproduce: setup ## run the whole study at SCALE and print the verdicts
	VERDICTS=later $(SNAKEMAKE)
	@$(BIN)/python -m causal_priors verdicts --scale $(SCALE)
	@echo "The report with all figures: results/$(SCALE)/report.html"

report: setup ## write results/SCALE/report.html, and whatever it still needs
	VERDICTS=later $(BIN)/snakemake page --cores $(CORES) --config scale=$(SCALE)
	@echo "The report with all figures: results/$(SCALE)/report.html"

verdicts: setup ## print the last verdict table
	@$(BIN)/python -m causal_priors verdicts --scale $(SCALE)

test: lint ## the quick suite: lint, types, unit, numerics, a nano study through the Snakefile
	$(PYTEST)

test-all: lint .venv/fuzz $(if $(wildcard /usr/sbin/slurmctld),.venv/slurm) ## everything, the slow tests included
	$(PYTEST) -m ""

lint: setup-dev ## ruff, mypy, snakefmt, snakemake --lint
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

# One colour, left to right, and no edge that others imply.
rulegraph: setup ## draw docs/rulegraph.svg again (needs graphviz)
	$(BIN)/snakemake --rulegraph --forceall --quiet all --config scale=$(SCALE) \
	| sed -e 's/, color = "[^"]*"//' -e 's/penwidth=2/penwidth=1, height=0.35/' -e 's/color=grey/color="#5c5c5c", arrowsize=0.6/' \
	-e 's/fontname=sans/fontname="DejaVu Sans,Verdana,sans-serif", color="#1548dc"/' \
	| tred | dot -Grankdir=LR -Tsvg | sed -e '/^<!--.*-->$$/d' -e '/^<!--/,/-->$$/d' > docs/rulegraph.svg

clean: ## remove what was generated at SCALE
	rm -rf results/$(SCALE)

clean-all: ## remove every generated file, the corpus, caches and the environment
	find results -mindepth 1 -maxdepth 1 ! -name reference -exec rm -rf {} + 2>/dev/null || true
	rm -rf .venv .snakemake .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv

.venv/ready: envs/cpu.txt pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r envs/cpu.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.venv/ready-dev: envs/dev.txt .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r envs/dev.txt
	@touch $@

# Not every Python and machine has a wheel of it; where there is none, its tests say so and are skipped.
.venv/fuzz: envs/fuzz.txt | .venv/ready-dev
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: -r envs/fuzz.txt
	@touch $@

# Beside the environment, not in it: the plugin asks SLURM for its settings whenever Snakemake starts.
.venv/slurm: envs/slurm.txt | .venv/ready
	rm -rf $@
	grep -v '^[-#]' envs/slurm.txt | xargs $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@
	@touch $@
