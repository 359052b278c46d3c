# Two commands set up all they need, in a fresh clone, with nothing but Python 3.11 or later:
#   make demo    the main job on text that every machine has
#   make test    every check that CI runs
# `make help` lists the rest.

PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3 python; do \
    $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)
SECONDS ?= 120
FERRY ?= smoke
FERRIES ?= ferries
ARGUMENTS ?= --first
RELEASE_PIP := build/release/bin/python -m pip --disable-pip-version-check
SBOM := build/datakit.cdx.json

.PHONY: help demo demo-curated demo-train demo-sft ferry gpu-check test soak fuzz coverage locked wheel wheel-check audit lint types imports bench clean

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.base  ## run the whole pipeline on the standard library's text
	$(BIN)/datakit run demo

demo-curated: $(VENV)/.curated  ## find languages, quality, personal data and evaluation items; remove and mask; report
	$(BIN)/datakit run demo-curated
	$(BIN)/datakit report data/demo-curated

demo-train: $(VENV)/.train  ## train a small mixture-of-experts model on the demo's token cache, and draw its curve
	$(BIN)/datakit run demo
	$(BIN)/datakit train demo | xargs $(BIN)/datakit train plot

demo-sft: $(VENV)/.train  ## pretrain on the demo, then fine-tune on conversations about Python's library
	$(BIN)/datakit run demo
	$(BIN)/datakit train demo
	$(BIN)/datakit run demo-sft
	$(BIN)/datakit train demo-sft | xargs $(BIN)/datakit train plot
	printf '<|im_start|>user\nWhat does %s do?<|im_end|>\n<|im_start|>assistant\n' os.path.join | \
	    $(BIN)/datakit generate demo-sft --prompt - --temperature 0.5 --tokens 60

ferry: $(VENV)/.train  ## prove that this version works: FERRY=smoke (or another of `datakit ferry list`) with checks
	$(BIN)/datakit ferry run $(FERRY) --root $(FERRIES) $(ARGUMENTS)

gpu-check: $(VENV)/.train  ## on a machine with a GPU: kernels against the oracle, buffers, speed, MFU; PEER=python compares with transformers
	$(PIP) install --quiet --constraint constraints.txt --editable '.[gpu]'
	$(BIN)/python -m benchmarks.trainer.gpu_check $(if $(PEER),--python $(PEER))

test: $(VENV)/.dev lint imports types  ## lint, import arrows, types and tests
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup

soak: $(VENV)/.dev  ## the long tests (at most 100 minutes)
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup -m soak

fuzz: $(VENV)/.dev  ## each fuzzer for SECONDS (120); FUZZERS="csv_files ..." and SEED=n choose and repeat
	$(BIN)/python -m tests.support.fuzz $(FUZZERS) --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

coverage: $(VENV)/.dev  ## the tests with coverage, forked children included; lists modules below 80 %
	rm -f .coverage .coverage.*
	$(BIN)/python -m coverage run -m pytest -q -n $(WORKERS) --dist loadgroup
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --sort=cover

locked: $(VENV)/bin/python  ## install exactly the files whose hashes are in locks/ (Linux on x86-64), as CI does
	$(PIP) install --quiet --require-hashes --requirement locks/all.txt
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $(VENV)/.base $(VENV)/.curated $(VENV)/.train $(VENV)/.dev

wheel: build/release/.done  ## build the wheel with its bill of materials (SBOM), from locked packages
	rm -rf dist build/wheel-check
	$(PYTHON) -m venv --without-pip build/wheel-check
	$(RELEASE_PIP) --python build/wheel-check install --quiet --require-hashes --requirement locks/runtime.txt
	build/release/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-file $(SBOM) build/wheel-check/bin/python
	DATAKIT_SBOM=$(SBOM) build/release/bin/python -m build --quiet --wheel --no-isolation --outdir dist

wheel-check: wheel  ## build the wheel, install it in a bare environment, and run the demo from there
	build/release/bin/python -m zipfile --list dist/*.whl | grep --quiet dist-info/sboms/$(notdir $(SBOM))
	$(RELEASE_PIP) --python build/wheel-check install --quiet --no-index --no-deps dist/*.whl
	cd build && wheel-check/bin/datakit run demo --root wheel-check/data
	cd build && wheel-check/bin/datakit run demo --root wheel-check/data

audit: build/release/.done  ## look up known vulnerabilities of all locked packages
	build/release/bin/pip-audit --require-hashes --disable-pip --strict --requirement locks/all.txt

lint: $(VENV)/.dev  ## style and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

imports: $(VENV)/.dev  ## imports point one way
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.dev  ## type check
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(VENV)/.dev  ## the whole 121 MB run as a table (needs the texts of DATAKIT_DATA or ../shared/data)
	$(BIN)/python -m benchmarks.full_run

clean:  ## remove the virtual environment
	rm -rf $(VENV)

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or later found; set PYTHON=/path/to/python"; exit 2; }
	$(PYTHON) -m venv $(VENV)

build/release/.done: locks/release.txt
	rm -rf build/release
	$(PYTHON) -m venv build/release
	$(RELEASE_PIP) install --quiet --require-hashes --requirement locks/release.txt
	@touch $@

# The marks are newer than what they were made from, so a second call installs nothing.
$(VENV)/.base: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.curated: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install --quiet --constraint constraints.txt --editable '.[language,report]'
	@touch $@ $(VENV)/.base

$(VENV)/.train: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install --quiet --constraint constraints.txt --editable '.[train,report,chat]'
	@touch $@ $(VENV)/.base

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(VENV)/.base
