# `make` alone lists the targets. Each of them first makes the virtual environment if it is missing or old.

VENV ?= .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMP := $(VENV)/.installed
export PYTHON

SPEC := fixtures/flights.yaml
# Spark must not take another Java that happens to come first: the check prints the home of a fitting one.
WITH_JAVA = JAVA_HOME="$$(.ci/check_java.sh 2>/dev/null)" && export JAVA_HOME

.DEFAULT_GOAL := help
.PHONY: help venv java demo demo-uc test test-all test-delta test-uc test-matrix lint fmt bench bench-check bench-small \
	quality wheel wheelhouse clean lock

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' Makefile

venv: $(STAMP) ## Make .venv with the locked requirements (PYTHON= names another interpreter, VENV= another place)

$(STAMP): pyproject.toml requirements-dev.lock
	@PYTHON=$(PY) .ci/find_python.sh >/dev/null 2>&1 || { \
		python="$$(.ci/find_python.sh)" \
		&& echo "Making $(VENV) with $$($$python --version); this takes some minutes." \
		&& $$python -m venv --clear $(VENV); }
	@$(PY) -m pip install --quiet --disable-pip-version-check -r requirements-dev.lock
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

# Before the virtual environment, which takes minutes: who lacks Java should read so at once.
java:
	@.ci/check_java.sh >/dev/null

demo: java $(STAMP) ## Plan, train, release and score the flights of New York City, from nothing
	@$(WITH_JAVA) \
		&& $(BIN)/group-models plan $(SPEC) \
		&& $(BIN)/group-models train $(SPEC) \
		&& $(BIN)/group-models score $(SPEC) --input fixtures/flights.parquet --output demo/scored --mode overwrite \
		&& $(BIN)/group-models show $(SPEC) --worst 5
	@echo
	@echo "Written: demo/warehouse  the models, their manifest and the releases"
	@echo "         demo/scored     every flight with its prediction (Parquet)"
	@echo "Go on:   $(BIN)/group-models show $(SPEC) --key carrier=UA,lane=EWR-IAH,depot=EWR"

demo-uc: java $(STAMP) ## The same on the Unity Catalog server that GROUP_MODELS_UC_URI and _JARS name
	@$(WITH_JAVA) && $(PY) -m tests.unity.demo

# Two processes, each with a Spark of its own; a file stays in one, so that what it trained serves all its tests.
PYTEST := $(PY) -m pytest -q -n 2 --dist loadfile --durations 15

test: java $(STAMP) ## Run the tests, without the slow ones
	@$(WITH_JAVA) && $(PYTEST) --ignore tests/delta -m "not slow"
	@$(WITH_JAVA) && $(PY) -m pytest -q -m "not slow" tests/delta

test-all: java $(STAMP) ## Run all tests
	@$(WITH_JAVA) && $(PYTEST) --ignore tests/delta
	@$(MAKE) --no-print-directory test-delta

test-delta: java $(STAMP) ## Run the tests of Delta tables, in a Spark of their own (resolves the jars)
	@$(WITH_JAVA) && $(PY) -m pytest -q tests/delta

test-uc: java $(STAMP) ## Run the tests of the Unity Catalog server that GROUP_MODELS_UC_URI and _JARS name
	@$(WITH_JAVA) && $(PY) -m pytest -q -rs tests/unity

RUNTIMES ?= $(basename $(notdir $(wildcard .ci/matrix/*.txt)))

test-matrix: java ## Run the tests with the libraries of Databricks runtimes (RUNTIMES=, TESTS= choose)
	@$(WITH_JAVA) && for runtime in $(RUNTIMES); do .ci/matrix/run $$runtime $(TESTS) || exit 1; done

lint: $(STAMP) ## Check style, types and layers
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(BIN)/lint-imports --no-logo

fmt: $(STAMP) ## Format the code and fix what can be fixed
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

BENCH_JSON ?= build/bench.json

bench: java $(STAMP) ## Compare with the usual ways of training and scoring, in about 25 minutes; BENCH= adds options
	@mkdir -p $(dir $(BENCH_JSON))
	@$(WITH_JAVA) && $(PY) -m tests.benchmarks --json $(BENCH_JSON) $(BENCH)

bench-check: $(STAMP) ## Hold what `make bench` measured against the bounds
	@$(PY) -m tests.benchmarks.bounds $(BENCH_JSON)

quality: java $(STAMP) ## Compare a fleet with one model of all flights and one per key, on days that none has seen
	@$(WITH_JAVA) && $(PY) -m tests.benchmarks.quality

bench-small: java $(STAMP) ## The same on small workloads, without judging, in some minutes
	@$(WITH_JAVA) && $(PY) -m tests.benchmarks --small

wheel: $(STAMP) ## Build the wheel into dist/
	@$(PY) -m build --wheel

# Databricks runtimes of Spark 4 have Python 3.12 on Linux, on either processor; this is the usual one.
wheelhouse: wheel ## Download the wheels that a workspace without a public index needs, into dist/wheelhouse
	@$(PY) -m pip download --quiet --disable-pip-version-check --only-binary :all: --python-version 3.12 \
		--platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 --dest dist/wheelhouse \
		-r jobs/resources/requirements.txt dist/group_models-*.whl
	@cp dist/group_models-*.whl dist/wheelhouse

clean: ## Remove what was built, tested and demonstrated (not .venv)
	rm -rf build dist demo spark-warehouse metastore_db derby.log *.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +

lock: $(STAMP) ## Resolve requirements-dev.lock anew, within constraints-dev.txt
	@$(PY) -m pip install --quiet --disable-pip-version-check uv
	@$(PY) -m uv pip compile pyproject.toml --universal --python-version 3.11 --extra dev --upgrade \
		--constraint constraints-dev.txt --no-header --output-file requirements-dev.lock
