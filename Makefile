# postroad's chores, one command each. They keep what they install in .venv.

PYTHON ?= python3
BIN := .venv/bin
# constraints.txt has the hash of every file that may be installed, and pip checks it. There is none for this folder, so
# postroad itself is built with tools that are checked already, and then what it depends on is installed.
INSTALL := $(BIN)/pip install --quiet --constraint constraints.txt
EDITABLE := $(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .

.DEFAULT_GOAL := help
.PHONY: help demo console orderflow teamcart ticketflow parcels cloudevents roundtrip test again servers check docs bench mutants soak fuzz audit constraints oldest django dist

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

demo: .venv/.cli ## see postroad at work
	@$(BIN)/postroad demo

console: .venv/.console ## click through the console: a shop with trouble on purpose (SQLite, no server)
	@$(BIN)/postroad demo --console

orderflow: servers ## an order over HTTP, a reservation, an e-mail; on real servers (examples/orderflow)
	@$(BIN)/python -m examples.orderflow

teamcart: servers ## a view model in Redis, by handlers in the relay, then through a Redis Stream (examples/teamcart)
	@$(BIN)/python -m examples.teamcart
	@$(BIN)/python -m examples.teamcart --stream

ticketflow: servers ## a worker with a lock and a standby, retries, a dead message, figures (examples/ticketflow)
	@$(BIN)/python -m examples.ticketflow

parcels: servers ## three instances on one backlog, canceling, conflicts (examples/parcels)
	@$(BIN)/python -m examples.parcels

cloudevents: servers ## CloudEvents read with the SDK; one that fails, is poisoned, is mended (examples/cloudevents)
	@$(BIN)/python -m examples.cloudevents

roundtrip: servers ## two services with NATS between them, and a takeover (examples/roundtrip)
	@$(BIN)/python -m examples.roundtrip

test: servers ## run all tests, on real servers
	$(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

again: .venv/.all ## run the tests that failed in the last run, one after the other
	@echo 'UNSTABLE, or broken: these tests have failed, and run once more, alone.'
	$(BIN)/pytest --last-failed --last-failed-no-failures none --verbose

servers: .venv/.all ## install the servers that the tests need, if they are missing (Debian, as root)
	@$(BIN)/python -m tests.services.install

check: .venv/.all ## ruff, mypy --strict, and the layers (import-linter)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest --quiet tests/typing
	$(BIN)/lint-imports

docs: .venv/.all ## build the documentation site into build/docs, without the network; warnings are errors
	$(BIN)/sphinx-build -W --keep-going --quiet --jobs auto docs build/docs
	@echo build/docs/index.html

bench: .venv/.all ## measure
	$(BIN)/python -m benchmarks

mutants: .venv/.all ## break the code on purpose, and see that a test fails for each
	$(BIN)/python -m tests.mutants

FOR_MINUTES = $(if $(MINUTES),--minutes $(MINUTES))

soak: servers ## relays, writers and everything that can happen to them, for MINUTES=30; with KAFKA=1 on three brokers
	$(BIN)/python -m tests.soak $(FOR_MINUTES) $(if $(KAFKA),--kafka) $(if $(SEED),--seed $(SEED))

fuzz: .venv/.all ## hostile input for everything that reads what others send, for MINUTES=10
	$(BIN)/python -m tests.fuzz $(FOR_MINUTES)

audit: .venv/.all ## look for known vulnerabilities in the versions of constraints.txt; needs the network
	@$(INSTALL) --group audit
	@$(BIN)/python -m tests.audit

oldest: .venv/.pip ## the unit and integration tests with the oldest supported dependencies; needs the network
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --resolution lowest-direct --no-annotate --no-header --all-extras \
		--python $(BIN)/python pyproject.toml --output-file .venv/oldest.txt
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-oldest
	$(BIN)/uv pip install --quiet --python .venv-oldest --constraint .venv/oldest.txt --editable '.[all]' --group test
	.venv-oldest/bin/python -m pytest $(SOME_TESTS)

django: .venv/.pip ## the same with the newest dependencies and DJANGO=6.0, which needs Python 3.12; needs the network
	$(BIN)/pip install --quiet uv
	sed '/^django==/,/[^\\]$$/d' constraints.txt > .venv/not-django.txt
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-django
	$(BIN)/uv pip install --quiet --python .venv-django --constraint .venv/not-django.txt --editable '.[all]' --group test \
		'django~=$(DJANGO).0'
	.venv-django/bin/python -m pytest $(SOME_TESTS)

DJANGO = 6.0
SOME_TESTS = --numprocesses 3 --dist loadfile tests/unit tests/integrations

dist: .venv/.pip ## build the wheel and the sdist into dist/
	$(BIN)/python -m hatchling build --clean

constraints: .venv/.pip ## take the newest versions of all dependencies, with their hashes, into constraints.txt
	$(BIN)/pip install --quiet uv
	UV_CUSTOM_COMPILE_COMMAND='make constraints' $(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes \
		--no-annotate --python-version 3.11 --all-extras --group build --group test --group check --group audit --group docs \
		pyproject.toml --output-file constraints.txt

# Each of these is made again when what it was made from changes.

.venv/.all: .venv/.pip pyproject.toml
	$(EDITABLE)
	$(INSTALL) 'postroad[all]' --group test --group check --group docs
	@touch .venv/.cli .venv/.console $@

.venv/.console: .venv/.pip pyproject.toml
	$(EDITABLE)
	$(INSTALL) 'postroad[cli,console]'
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
