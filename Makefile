# Two commands matter on a fresh machine: `make run` and `make test`. `make help` lists the rest.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
JOBS ?= auto
# The order of the tests: shuffled, and the same each time. Another one finds tests that lean on each other.
SEED ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup run test simulate chaos bench bench-peers clients lock lint fmt types check clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# One line for each package, with its number; without it a minute goes by in silence.
define PROGRESS
import sys
count = 0
for line in sys.stdin:
    if line.startswith("Collecting "):
        count += 1
        print(f"  {count:3}  {line.split()[1]}")
    elif line.startswith(("Installing ", "Successfully ", "ERROR")):
        print("  " + line.strip()[:100])
endef
export PROGRESS

setup: $(STAMP) ## Make .venv with everything that running and testing need

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Foliot needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV): $$(grep -c == constraints.txt) packages and Foliot itself (first time: a minute or two)"
	@$(BIN)/pip install --quiet --upgrade "pip>=25.1"
	@set -o pipefail; $(BIN)/pip install --progress-bar off --constraint constraints.txt --editable . --group dev | $(PYTHON) -u -c "$$PROGRESS"
	@touch $(STAMP)

run: setup ## Run Foliot's main job on the embedded default
	@$(BIN)/python examples/tour.py

# Tests start thousands of processes. Where Python may not write bytecode, each of them would compile Foliot anew.
test: setup ## Run every test, with a real PostgreSQL and a real NATS server
	@$(BIN)/python -m compileall -q src
	@$(BIN)/pytest -n $(JOBS) --dist worksteal --randomly-seed=$(SEED)

simulate: setup ## 10,000 seeds of each simulator; a failing one is printed with how to replay it
	@$(BIN)/python -m simulators.engine --seeds 10000 --jobs 2
	@$(BIN)/python -m simulators.workshop --seeds 10000 --jobs 2
	@$(BIN)/python -m simulators.workshop --profile crowds --seeds 500 --jobs 2
	@$(BIN)/python -m simulators.workshop --profile threads --seeds 500 --jobs 2
	@$(BIN)/python -m simulators.talks --seeds 10000 --jobs 2

chaos: setup ## Kills of real processes, servers restarted under 5,000 tasks, new seeds for the adversary, long loops and soaks over both databases
	@FOLIOT_CHAOS=1 $(BIN)/pytest tests/chaos tests/adversary tests/store -q -s -n0 --timeout=3060

bench: setup ## The benchmarks, printed as tables (peers too, if installed)
	@$(BIN)/python benchmarks/run.py

bench-peers: setup ## Install the frameworks that the benchmarks compare with, each in an environment of its own
	@$(BIN)/python benchmarks/peers/install.py

clients: setup ## Try every client of OpenAI's API, each in an environment of its own, and write docs/clients.md
	@$(BIN)/python -m tests.clients.table

providers: setup ## Ask every cell of provider x feature anew, and write docs/providers.md
	@FOLIOT_TEST_WRITE_PAGES=1 $(BIN)/pytest -q -n0 tests/models/test_cells.py

lock: setup ## Pin the versions of everything that is installed now
	@$(BIN)/pip freeze --exclude-editable --exclude pip > constraints.txt

lint: setup ## Style, formatting and the direction of imports
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports

fmt: setup ## Format and fix what can be fixed
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

types: setup ## Strict type check of src
	@$(BIN)/pyright

check: lint types test ## Everything that CI runs

clean: ## Remove what the other targets made
	rm -rf $(VENV) .clients dist build .pytest_cache .ruff_cache .hypothesis
