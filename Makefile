# Headrace. `make` lists the targets; each sets up what it needs first.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
export HF_HUB_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM := false

PROTOS := $(wildcard protos/headrace/v1/*.proto)

.PHONY: help setup demo test test-rules check fmt lint type proto proto-check bench chaos clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /|/' | column -t -s '|'

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) is not on PATH; install Python 3.11 or newer or say make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $$($(PYTHON) --version) is too old; 3.11 or newer is needed (make PYTHON=...)"; exit 1; }
	@echo "[setup] creating $(VENV) and installing pinned packages (a few minutes the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)
	@echo "[setup] done"

setup: $(STAMP) ## create .venv with the pinned packages

demo: $(STAMP) ## train the arithmetic example on this machine and watch the pass rate rise
	@$(BIN)/headrace run examples/arithmetic.toml

test: $(STAMP) check ## lint, types, unit, integration and a short end-to-end run
	@$(BIN)/python -m pytest tests --cov --cov-report=term:skip-covered --durations=10

test-rules: $(STAMP) ## tell the queue and its model thousands of random stories (hours)
	@HEADRACE_HYPOTHESIS=deep $(BIN)/python -m pytest tests/unit/queue/test_rules.py

check: $(STAMP) lint type proto-check ## everything a merge needs, short of the tests

fmt: $(STAMP) ## format the code and apply safe fixes
	@$(BIN)/ruff check --fix --quiet services tests
	@$(BIN)/ruff format services tests

lint: $(STAMP) ## style, import rules
	@$(BIN)/ruff check services tests
	@$(BIN)/ruff format --check services tests
	@PYTHONPATH=.:protos $(BIN)/lint-imports

type: $(STAMP) ## strict type check
	@$(BIN)/mypy

proto: $(STAMP) ## generate the Python code of the protos
	@$(BIN)/python -m grpc_tools.protoc -I protos --python_out=protos --pyi_out=protos --grpc_python_out=protos $(PROTOS)

proto-check: $(STAMP) ## lint the protos; fail when generated code is out of date
	@$(BIN)/buf lint
	@out=$$(mktemp -d) && trap 'rm -rf $$out' EXIT && \
	$(BIN)/python -m grpc_tools.protoc -I protos --python_out=$$out --pyi_out=$$out --grpc_python_out=$$out $(PROTOS) && \
	for file in $$(cd $$out && find . -name '*.py*'); do \
	  diff -q $$out/$$file protos/$$file >/dev/null || { echo "protos/$$file is out of date; run make proto"; exit 1; }; done
	@echo "generated code is current"

bench: $(STAMP) ## run every bench in tests/bench
	@for bench in tests/bench/bench_*.py; do $(BIN)/python -m tests.bench.$$(basename $$bench .py) || exit 1; done

SEED ?= 1
KILLS ?= 200
RUNS ?= 0

chaos: $(STAMP) ## kill everything at random until KILLS=200 are done, from SEED=1 on; RUNS=1 replays one run
	@$(BIN)/python -m tests.chaos --seed $(SEED) --kills $(KILLS) --runs $(RUNS)

clean: ## remove what the other targets made, run directories included
	@rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache .coverage .hypothesis *.egg-info
