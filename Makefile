# make run   set up and run the quickstart suite        TORCH_INDEX=ADDRESS: of an index that has torch's CPU build (README)
# make test   set up and run the tests        make test-slow   those that take long by their nature        make test-all   both
# make bench [BENCH="--only sampling"]   speed beside what a user would take instead (docs/benchmarks.md)   make bench-smoke   in short
# make docs   the documentation as a site, into site/        make docs-serve   the same, while one writes
# make check-reference [N=3] [SEED=n]   train random cells of results/reference again and compare them, row by row
# make gpu-check [GPU_CHECK="--to FOLDER"]   the harness on this machine's NVIDIA GPU, ten minutes at a time (docs/openrlhf.md)
# make pretrained [ACCEPT_GEMMA_TERMS=yes] [MODELS=FOLDER]   fetch and convert two small pretrained models (docs/pretrained.md)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SHELL := /bin/bash
export TIMEFORMAT = %R seconds; on processors %U + %S

.PHONY: run test test-slow test-portable test-all leaderboard check-reference pretrained gpu-check gpu-check-core gpu-check-image gpu-check-clean lint audit bench bench-smoke docs docs-serve clean

run: $(VENV)/.installed
	$(BIN)/harness run quickstart

test: $(VENV)/.tested
	time $(BIN)/python -m pytest -m "not slow" $(PYTEST)

test-slow: $(VENV)/.tested
	time $(BIN)/python -m pytest -m slow $(PYTEST)

# the reference digests as other CPUs compute them; needs qemu-user
test-portable: $(VENV)/.tested
	time EMULATE=yes $(BIN)/python -m pytest -n 0 -rs tests/portable

test-all: $(VENV)/.tested
	time $(BIN)/python -m pytest $(PYTEST)

leaderboard: $(VENV)/.board
	$(BIN)/harness leaderboard

check-reference: $(VENV)/.installed
	$(BIN)/python tools/reference.py check $(if $(N),--cells $(N)) $(if $(SEED),--seed $(SEED)) $(CHECK_REFERENCE)

pretrained: $(VENV)/.gguf
	$(BIN)/python tools/pretrained.py $(if $(MODELS),--to $(MODELS)) $(if $(filter yes,$(ACCEPT_GEMMA_TERMS)),--accept-gemma-terms)

# in the environment whose torch knows this machine's GPU, where there is one
gpu-check:
	$(MAKE) --no-print-directory gpu-check-$$(tools/which_torch.sh $(PYTHON))

gpu-check-core: $(VENV)/.lora
	$(BIN)/python tools/gpu_check.py $(GPU_CHECK)

gpu-check-image: $(VENV)-gpu/.installed
	$(OPENRLHF_ENV) $(VENV)-gpu/bin/python tools/gpu_check.py $(GPU_CHECK)

gpu-check-clean: install-openrlhf
	$(OPENRLHF_ENV) $(OPENRLHF_VENV)/bin/python tools/gpu_check.py $(GPU_CHECK)

lint: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/hadolint containers/*.Dockerfile

# a broken link, an unknown page or a docstring that does not parse ends the build; never --quiet, which hides these from --strict
docs: $(VENV)-docs/.installed
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict
	@echo "the documentation: site/index.html"

docs-serve: $(VENV)-docs/.installed
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs serve

# says so and ends well where the advisories cannot be had
audit: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt pip-audit || true
	$(BIN)/python tools/audit.py

bench: $(VENV)-bench/.installed
	$(VENV)-bench/bin/python benchmarks/bench.py $(BENCH)

bench-smoke: $(VENV)/.installed
	$(BIN)/python benchmarks/bench.py --smoke

# torch first and pinned, so that nothing later brings another one
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.gguf: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[gguf]'
	touch $@

$(VENV)/.lora: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[lora]'
	touch $@

$(VENV)/.board: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[leaderboard]'
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@ $(VENV)/.board $(VENV)/.gguf $(VENV)/.lora

$(VENV)-gpu/.installed: pyproject.toml constraints.txt tools/beside_image.sh
	tools/beside_image.sh $(PYTHON) $(VENV)-gpu
	touch $@

# rivals in an environment of their own
$(VENV)-bench/.installed: pyproject.toml constraints.txt
	test -x $(VENV)-bench/bin/python || $(PYTHON) -m venv $(VENV)-bench
	$(VENV)-bench/bin/python -m pip install --quiet --constraint constraints.txt torch
	$(VENV)-bench/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[bench,leaderboard,browser]'
	touch $@

# read, not run: the harness and torch stay out
$(VENV)-docs/.installed: pyproject.toml constraints.txt
	test -x $(VENV)-docs/bin/python || $(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'], sep='\n')" > $(VENV)-docs/requirements.txt
	$(VENV)-docs/bin/python -m pip install --quiet --constraint constraints.txt --requirement $(VENV)-docs/requirements.txt
	touch $@

# the OpenRLHF engine in an environment of its own: make test-openrlhf (docs/openrlhf.md)
include openrlhf.mk

clean:
	rm -rf $(VENV) $(VENV)-gpu $(VENV)-bench $(VENV)-docs site build *.egg-info
