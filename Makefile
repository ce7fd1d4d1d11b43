# postroad's chores, one command each. They keep what they install in .venv.

PYTHON ?= python3
BIN := .venv/bin
# constraints.txt has the hash of every file that may be installed, and pip checks it. There is none for this folder, so
# postroad itself is built with tools that are checked already, and then what it depends on is installed.
INSTALL := $(BIN)/pip install --quiet --constraint constraints.txt
EDITABLE := $(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .

.DEFAULT_GOAL := help
.PHONY: help demo orderflow teamcart test servers check bench mutants soak fuzz audit constraints

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

demo: .venv/.cli ## see postroad at work
	@$(BIN)/postroad demo

orderflow: servers ## an order over HTTP, a reservation, an e-mail; on real servers (examples/orderflow)
	@$(BIN)/python -m examples.orderflow

teamcart: servers ## a view model in Redis, by handlers in the relay (examples/teamcart)
	@$(BIN)/python -m examples.teamcart

test: servers ## run all tests, on real servers
	$(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

servers: .venv/.all ## install the servers that the tests need, if they are missing (Debian, as root)
	@$(BIN)/python -m tests.services.install

check: .venv/.all ## ruff, mypy --strict, and the layers (import-linter)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest --quiet tests/typing
	$(BIN)/lint-imports

bench: .venv/.all ## measure
	$(BIN)/python -m benchmarks

mutants: .venv/.all ## break the code on purpose, and see that a test fails for each
	$(BIN)/python -m tests.mutants

MINUTES ?= 30
soak: servers ## relays, writers and everything that can happen to them, for MINUTES=30
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

fuzz: .venv/.all ## hostile input for everything that reads what others send, for MINUTES=30
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

audit: .venv/.all ## look for known vulnerabilities in the versions of constraints.txt; needs the network
	@$(INSTALL) --group audit
	@$(BIN)/python -m tests.audit

constraints: .venv/.pip ## take the newest versions of all dependencies, with their hashes, into constraints.txt
	$(BIN)/pip install --quiet uv
	UV_CUSTOM_COMPILE_COMMAND='make constraints' $(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes \
		--no-annotate --python-version 3.11 --all-extras --group build --group test --group check --group audit \
		pyproject.toml --output-file constraints.txt

# Each of these is made again when what it was made from changes.

.venv/.all: .venv/.pip pyproject.toml
	$(EDITABLE)
	$(INSTALL) 'postroad[all]' --group test --group check
	@touch .venv/.cli $@

.venv/.cli: .venv/.pip pyproject.toml
	$(EDITABLE)
	$(INSTALL) 'postroad[cli]'
	@touch $@

.venv/.pip: constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("postroad needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + ". Say which: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	@sed -n '/^pip==/,/[^\\]$$/p' constraints.txt > .venv/pip.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement .venv/pip.txt
	$(INSTALL) --group build
	@touch $@
