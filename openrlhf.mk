# Included by the Makefile: the OpenRLHF engine's own environment and tests.

OPENRLHF_VENV ?= .venv-openrlhf
OPENRLHF_ENV = OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=0

.PHONY: install-openrlhf test-openrlhf

install-openrlhf: $(OPENRLHF_VENV)/installed

$(OPENRLHF_VENV)/installed: constraints-openrlhf.txt constraints-openrlhf-gpu.txt pyproject.toml tools/install_openrlhf.sh
	PYTHON=$(PYTHON) tools/install_openrlhf.sh $(OPENRLHF_VENV)
	touch $@

test-openrlhf: install-openrlhf
	$(OPENRLHF_ENV) $(OPENRLHF_VENV)/bin/python -m pytest -n 0 --durations=12 $(PYTEST) tests/openrlhf_engine   # one Ray, one test after another
	$(OPENRLHF_ENV) $(OPENRLHF_VENV)/bin/harness run suites/openrlhf_cpu.yaml
	$(OPENRLHF_ENV) $(OPENRLHF_VENV)/bin/harness show suites/openrlhf_cpu.yaml
