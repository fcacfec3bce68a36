# make demo       sets everything up and runs the main job
# make test       sets everything up and passes the tests of every module and algorithm, in minutes
# make test-all   the same with the slow ones: chaos, federations of processes, all pairs; what CI runs
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-all lint coverage audit fuzz robustness browser docs bench clean

demo: $(READY)
	$(BIN)/feddwa compare --algorithms feddwa local fedavg

# A process per core, each with one thread: small tensors gain nothing from more.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder -m "not slow"

test-all: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder

lint: $(READY)
	$(BIN)/ruff check src apps tests benchmarks examples docs
	$(BIN)/ruff format --check src apps tests benchmarks examples docs
	$(BIN)/mypy

# Lines that only other processes run (kills, nodes) do not count, so the real share is a little higher.
coverage: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder --cov --cov-report=term

# Asks the index for known vulnerabilities of the pinned versions.
audit: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[audit]'
	$(BIN)/pip-audit --requirement constraints.txt --no-deps --disable-pip

# Cases drawn at random, two processes; CASE=TARGET:SEED tries one, SEED=N the same ones again.
MINUTES ?= 10
fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(CASE),--case $(CASE))

robustness: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/robustness.py grid --jobs 2

# A Chromium of this machine, playwright's own, or the distribution's; pictures of the report end up in build/browser.
browser: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[browser]'
	command -v "$${FEDDWA_BROWSER:-chromium}" || command -v google-chrome || $(BIN)/playwright install chromium || apt-get install -y chromium
	$(BIN)/pytest -rs tests/report/test_browser.py

# The site ends up in site/; a warning is an error.
docs: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/pytest -rs tests/test_site.py

bench: $(READY)
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/startup.py

# The constraints pin the tested versions; torch's plain name would pull another build.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,dp,flower,hub,networks,onnx,tune,watch]'
	touch $(READY)

clean:
	rm -rf .venv site build .pytest_cache .mypy_cache .ruff_cache
