# Everything runs from a virtual environment in .venv, which the first target that needs it makes.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
PORT ?= 8090
# Half of the tests' time is waiting: four processes keep two cores busy.
TEST_PROCESSES ?= 4
# The tests start hundreds of processes; each would compile everything anew where the caller has this set.
export PYTHONDONTWRITEBYTECODE :=
VENV := .venv
READY := $(VENV)/.ready
RUN := $(VENV)/bin/

.PHONY: help setup servers serve test test-long check lint types imports bench

help:  ## Show what each target does
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 16

setup: $(READY)  ## Make the virtual environment (every target that needs it does so by itself)

# Debian keeps `venv` in a package of its own. Root installs it; anybody else is told what to ask for.
$(READY): pyproject.toml constraints.txt constraints-dev.txt
	@if ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null && [ ! -x $(RUN)pip ]; then \
	    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	        apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y python3 python3-venv; \
	    else \
	        echo "Python's venv is missing. Install it, then try again:  sudo apt-get install python3 python3-venv" >&2; \
	        exit 1; \
	    fi; \
	fi
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	@[ -x $(RUN)pip ] || $(PYTHON) -m venv $(VENV)
	$(RUN)pip install -q --disable-pip-version-check --require-hashes -r constraints.txt -r constraints-dev.txt
	$(RUN)pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# The tests start private servers from Debian's packages (tests/servers.py), and run the extension for Phorge under
# real PHP. Root installs them, as it does venv.
servers:  ## Install the database servers and the PHP that the tests start (make test does it by itself)
	@have() { PATH="$$PATH:/usr/sbin" command -v "$$1" >/dev/null; }; missing=(); \
	{ have mariadbd && have mariadb-install-db; } || missing+=(mariadb-server); \
	have redis-server || missing+=(redis-server); \
	have php || missing+=(php-cli); \
	if [ "$${#missing[@]}" = 0 ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -q; \
	    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$${missing[@]}"; \
	else \
	    echo "The tests start database servers of their own, and PHP. Install what is missing, then try again:" \
	        " sudo apt-get install --no-install-recommends $${missing[*]}" >&2; \
	    exit 1; \
	fi

serve: $(READY)  ## Run the queue on SQLite (./var) with the demo handlers; PORT=8090
	@mkdir -p var
	@printf '%s\n' \
	    '' \
	    'Once it says that it listens, try in another terminal:' \
	    '' \
	    "  curl -s http://127.0.0.1:$(PORT)/api/queue/enqueue -H 'Content-Type: application/json' \\" \
	    "      -d '{\"taskClass\": \"DemoWorker\", \"data\": \"{\\\"name\\\": \\\"world\\\"}\"}'" \
	    '' \
	    'and with the id it answered (result 0 means success):' \
	    '' \
	    '  curl -s http://127.0.0.1:$(PORT)/api/queue/archive/1' \
	    ''
	@QUEUE_RUNTIME_LISTEN=127.0.0.1:$(PORT) \
	 QUEUE_RUNTIME_SQLITE_PATH=var/queue-runtime.sqlite \
	 QUEUE_RUNTIME_HANDLERS=handlers.demo:registry \
	    exec $(RUN)queue-runtime serve

test: $(READY) servers  ## Run the tests that CI runs (on private MariaDB and Redis servers, from Debian's packages)
	$(RUN)pytest -m 'not long' -n $(TEST_PROCESSES) --dist loadgroup

test-long: $(READY) servers  ## Run all tests, the heavy counts too
	$(RUN)pytest -n $(TEST_PROCESSES) --dist loadgroup

check: lint types imports  ## Run lint, types and imports

lint: $(READY)  ## Check style and format
	$(RUN)ruff check .
	$(RUN)ruff format --check .

types: $(READY)  ## Check types, strictly
	$(RUN)mypy

imports: $(READY)  ## Check that imports point one way
	$(RUN)lint-imports --no-cache

bench: $(READY)  ## Run the benchmarks
	$(RUN)python -m benchmarks.run
