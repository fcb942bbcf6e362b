# make demo   set everything up and watch a real run        make lint    style, types, layers, generated files
# make test   set everything up and run the tests           make nightly the sweeps of many minutes
# make gpu    the checks that need an NVIDIA GPU            make clean   remove what was made here
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Small tensors: a second thread per process only waits, and two test processes already use two cores.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM := false
PYTEST := $(BIN)/python -m pytest
JOBS   ?= 2

.PHONY: demo test lint render nightly gpu pictures clean setup
.DEFAULT_GOAL := demo

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "== making $(VENV) (a few minutes the first time: torch, transformers, lightning)"
	@$(PYTHON) -c 'import sys; sys.exit("Python >= 3.10 is needed, this is " + sys.version.split()[0]) if sys.version_info < (3, 10) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)
	@echo "== $(VENV) is ready"

demo: $(STAMP)
	@$(BIN)/trainbudget demo $(ARGS)

test: $(STAMP)
	@echo "== tests"
	$(PYTEST) -q -n $(JOBS) --dist loadscope -m "not gpu and not nightly" $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/python -m trainbudget.render --check

render: $(STAMP)
	$(BIN)/python -m trainbudget.render

nightly: $(STAMP)
	$(PYTEST) -q -m nightly $(ARGS)

gpu: $(STAMP)
	$(PYTEST) -q -m gpu $(ARGS)

pictures: $(STAMP)
	cd tests/e2e/grafana_page && npm ci --legacy-peer-deps --no-audit --no-fund --loglevel=error
	$(BIN)/python tests/e2e/grafana_page/pictures.py --out docs/pictures

clean:
	rm -rf $(VENV) build dist trainbudget_runs .pytest_cache .mypy_cache .ruff_cache
