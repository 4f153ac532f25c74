# Every target creates .venv when it is missing and does nothing that is already done.
#   make demo    decode with the built-in pair: draw the trees, compare with plain decoding
#   make quick   a minute: the laws, the engine, speculation and one kernel backend
#   make test    what CI runs: checks, then all tests that need no GPU and no patience
#   make check   lint, format, types
#   make slow    the tests that take minutes; their log goes to reports/raw/slow_tests.log
#   make interop clients of other projects against the server, in an environment of their own (7 GB)
#   make clean   remove the environment, caches and build outputs

PYTHON ?= python3
TEST_WORKERS ?= 2
# write: note in reports/test_results.json what the tests that rows of the scorecard name have said;
# check: fail where this run says something else than that file. CI checks.
RESULTS ?= write

VENV    := .venv
BIN     := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
TOOLS   := $(VENV)/.tools
REPLICAS := $(VENV)/.replicas
PIP     := $(BIN)/python -m pip install -qq --disable-pip-version-check
TORCH   := $(shell sed -n '/^torch==/p' constraints.txt)

# One thread per worker: torch and BLAS would otherwise start one per core in each of them. Tests
# differ a thousandfold in length, so an idle worker takes over the other's queue.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist worksteal
FULL   := -p tests.results --results $(RESULTS)
SLOW_LOG := reports/raw/slow_tests.log

# What `make quick` runs: of losslessness one kind of batch, of captured rounds those of a tree that is
# always drafted, of the backends the one a CPU takes, with refusals as it meets them in rounds.
QUICK := tests/laws tests/unit/speculation tests/unit/engine/test_engine.py \
	tests/unit/engine/test_lossless.py tests/unit/engine/test_captured.py tests/parity/test_backends.py
CHOSEN := (not test_lossless or greedy-3) and (not test_captured or (tree and not dear)) \
	and (not test_backends or (numpy and not raise-)) and not distribution

.DEFAULT_GOAL := test
.PHONY: demo quick test check slow interop clean

demo: $(RUNTIME)
	@$(BIN)/aerie generate --compare --show-tree --rounds 8 --max-new-tokens 96

quick: $(TOOLS)
	@$(PYTEST) $(QUICK) -m "not slow" -k "$(CHOSEN)"

test: check
	@echo "tests: $(TEST_WORKERS) workers, a few minutes"
	@$(PYTEST) $(FULL) -m "not slow"

check: $(TOOLS)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "fix with: $(BIN)/ruff format ."; exit 1; }
	@$(BIN)/mypy --no-error-summary

slow: $(TOOLS) $(REPLICAS)
	@echo "slow tests: tens of minutes, no word until the end; then the log is in $(SLOW_LOG)"
	@echo "commit $$(git rev-parse HEAD)$$(git diff --quiet HEAD -- src tests || echo ', modified')" \
		> $(SLOW_LOG)
	@$(PYTEST) $(FULL) -m slow --durations=30 >> $(SLOW_LOG) 2>&1; \
		status=$$?; cat $(SLOW_LOG); exit $$status

interop: $(TOOLS)
	@scripts/interop/install.sh $(PYTHON)
	@$(BIN)/python -m scripts.interop.run

clean:
	@rm -rf $(VENV) .interop build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# torch goes first and exactly: see constraints.txt.
$(RUNTIME): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "aerie needs Python 3.11 or newer; try: make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing $(TORCH) (the largest download, about a minute)"
	@$(PIP) "$(TORCH)"
	@echo "installing aerie"
	@$(PIP) -c constraints.txt -e .
	@touch $@

$(TOOLS): $(RUNTIME)
	@echo "installing the server and the development tools (about a minute)"
	@$(PIP) -c constraints.txt -e ".[dev,serve]"
	@command -v g++ >/dev/null \
		|| echo "no g++: tests of the hls backend are skipped (Debian: apt-get install g++ make)"
	@touch $@

$(REPLICAS): $(TOOLS)
	@echo "installing Ray (about a minute)"
	@$(PIP) -c constraints.txt -e ".[ray]"
	@touch $@
