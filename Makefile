# make demo and make test need Python >= 3.11, make and PyPI; everything else is installed.
PYTHON ?= python3
VENV ?= .venv
RUN = $(VENV)/bin/python -m
IN_TWO = -q -n 2 --dist loadfile --no-loadscope-reorder
QUIET = RAY_USAGE_STATS_ENABLED=0 MLFLOW_DISABLE_TELEMETRY=true

.PHONY: demo test test-all test-isa test-oldest test-newest check fuzz long lint docs site lock clean

demo: $(VENV)/installed  ## the FedTSP lambda sweep on real digits, with MiniLM, on local Ray
	$(QUIET) $(RUN) fedray.sweep fedtsp_lambda

test: $(VENV)/installed  ## the quick tests: no other process, no server, no Ray
	$(QUIET) $(RUN) pytest $(IN_TWO)

test-all: $(VENV)/installed  ## everything that is checked without a GPU or a download
	$(QUIET) $(RUN) pytest $(IN_TWO) -m "not long"

test-isa: $(VENV)/installed  ## the equation tests under every instruction set of this processor (ISA=--lowest: one)
	$(QUIET) RAY_AUTH_MODE=disabled HF_HUB_OFFLINE=1 $(VENV)/bin/python tests/instruction_sets.py $(ISA)

# Environments beside .venv with the oldest and the newest versions that pyproject.toml allows.
test-oldest: RESOLUTION = lowest-direct
test-newest: RESOLUTION = highest
test-oldest test-newest: test-%: $(VENV)/installed  ## the tests with the oldest (newest) versions that are allowed
	$(RUN) pip install -q --disable-pip-version-check uv
	$(RUN) uv venv -q --allow-existing -p $(VENV)/bin/python $(VENV)-$*
	$(RUN) uv pip install -q --upgrade -p $(VENV)-$*/bin/python --resolution $(RESOLUTION) -e ".[dev,text]"
	$(QUIET) $(VENV)-$*/bin/python -m pytest $(IN_TWO) -m "not long"

check: $(VENV)/installed  ## every shipped method keeps the laws: fedray check
	$(QUIET) RAY_AUTH_MODE=disabled HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(RUN) fedray check all

fuzz: $(VENV)/installed  ## random experiments against code of their own (SEEDS=100, FIRST=0: the first seed)
	$(QUIET) RAY_AUTH_MODE=disabled HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 \
	  $(VENV)/bin/python tests/fuzz/fuzz.py --seeds $(or $(SEEDS),100) $(if $(FIRST),--first $(FIRST))

long: $(VENV)/installed  ## tests that take minutes each
	$(QUIET) $(RUN) pytest -q -m long

lint: $(VENV)/installed
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

docs: $(VENV)/installed  ## the pages that are written from the code, and the site in build/site
	PYTHONPATH=docs $(RUN) _build
	$(MAKE) site

site: $(VENV)/installed  ## the documentation's site alone; a warning, such as a dead link, is an error
	PYTHONPATH=docs $(RUN) _build --site
	$(RUN) sphinx -q -W --keep-going -n -b html docs build/site

# Installs the pinned versions of constraints.txt, once, and again when they change.
$(VENV)/installed: constraints.txt pyproject.toml
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev,text]"
	$(RUN) compileall -q fedray  # as pip does for all but editable packages: else each process does
	touch $@

lock:  ## regenerate constraints.txt from pyproject.toml (needs uv)
	uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 \
	  --no-header --upgrade -o constraints.txt

clean:
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-newest build dist .pytest_cache .mypy_cache .ruff_cache
