# make run   set up and run the quickstart suite        make test   set up and run the tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test leaderboard lint audit clean

run: $(VENV)/.installed
	$(BIN)/harness run quickstart

test: $(VENV)/.tested
	$(BIN)/python -m pytest $(PYTEST)

leaderboard: $(VENV)/.board
	$(BIN)/harness leaderboard

lint: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# says so and ends well where the advisories cannot be had
audit: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet pip-audit || true
	$(BIN)/python tools/audit.py

# torch first and pinned: anything else would pull a CUDA build
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.board: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[leaderboard]'
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@ $(VENV)/.board

# the OpenRLHF engine in an environment of its own: make test-openrlhf (docs/openrlhf.md)
include openrlhf.mk

clean:
	rm -rf $(VENV) build *.egg-info
