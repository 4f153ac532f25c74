# Every target creates .venv when it is missing and does nothing that is already done.
#   make demo    decode with the built-in pair: draw the trees, compare with plain decoding
#   make test    what CI runs: checks, then all tests that need no GPU and no patience
#   make check   lint, format, types
#   make slow    the tests that take minutes
#   make interop clients of other projects against the server, in an environment of their own (7 GB)
#   make clean   remove the environment, caches and build outputs

PYTHON ?= python3
TEST_WORKERS ?= 2

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.stamp
PIP   := $(BIN)/python -m pip install -qq --disable-pip-version-check
TORCH := $(shell sed -n '/^torch==/p' constraints.txt)

# One thread per worker: torch and BLAS would otherwise start one per core in each of them. Tests
# differ a thousandfold in length, so an idle worker takes over the other's queue.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist worksteal

.DEFAULT_GOAL := test
.PHONY: demo test check slow interop clean

demo: $(STAMP)
	@$(BIN)/aerie generate --compare --show-tree --rounds 8 --max-new-tokens 96

test: check
	@echo "tests: $(TEST_WORKERS) workers, a few minutes"
	@$(PYTEST) -m "not slow"

check: $(STAMP)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "fix with: $(BIN)/ruff format ."; exit 1; }
	@$(BIN)/mypy --no-error-summary

slow: $(STAMP)
	@echo "slow tests: several minutes"
	@$(PYTEST) -m slow

interop: $(STAMP)
	@scripts/interop/install.sh $(PYTHON)
	@$(BIN)/python -m scripts.interop.run

clean:
	@rm -rf $(VENV) .interop build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# torch goes first and exactly: see constraints.txt.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "aerie needs Python 3.11 or newer; try: make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing $(TORCH) (the largest download, about a minute)"
	@$(PIP) "$(TORCH)"
	@echo "installing aerie and its development tools (about a minute)"
	@$(PIP) -c constraints.txt -e ".[dev,serve]"
	@command -v g++ >/dev/null \
		|| echo "no g++: tests of the hls backend are skipped (Debian: apt-get install g++ make)"
	@touch $@
