# One command each on a machine that has only python3 and make: everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SEEDS ?= 10000

.PHONY: help setup demo test quick check format simulate mutants bench bench-quick bench-peers docs clean

help:
	@echo "make demo         see it work: no key, no network"
	@echo "make test         set up, then every test"
	@echo "make quick        the tests that take seconds"
	@echo "make check        formatting, lint, strict types, generated pages"
	@echo "make simulate     SEEDS=10000 simulated runs"
	@echo "make mutants      every seeded bug must be caught"
	@echo "make bench        all benchmarks (bench-quick: under 30 s each; bench-peers: against other frameworks)"

setup: $(STAMP)

$(STAMP): pyproject.toml
	@echo "setting up $(VENV): once, about a minute"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/trouper demo

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal

quick: $(STAMP)
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m trouper.docs --check

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

simulate: $(STAMP)
	$(BIN)/python -m trouper.testing.simulate --seeds $(SEEDS)

mutants: $(STAMP)
	$(BIN)/python property_tests/mutants.py

bench: $(STAMP)
	@for script in bench/*.py; do case $$script in bench/_*) ;; *) echo "== $$script"; $(BIN)/python $$script || exit 1;; esac; done

bench-quick: $(STAMP)
	@for script in bench/*.py; do case $$script in bench/_*) ;; *) echo "== $$script"; $(BIN)/python $$script --quick || exit 1;; esac; done

bench-peers: $(STAMP)
	$(BIN)/python bench/peers/run.py

docs: $(STAMP)
	$(BIN)/python -m trouper.docs

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
