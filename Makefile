# The two commands of the README, and the ones of the developers. See each target's first comment.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
UV := .venv/bin/uv
BIN := .venv/bin
# A process of the sandbox writes none: after a change of its modules each start would compile them.
BYTECODE := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m compileall -q keystone_action

.PHONY: help demo run-demo docs test test-slow test-containers test-fast hostile faults lint bench format

# The broken demo must end with the exit code of `keystone run`, 1. Make turns every failing recipe into 2; the only 1
# it knows is the answer of `make -q` for a goal that is not up to date, and lines with a `+` run even then.
ifeq ($(KEYSTONE_DEMO) $(MAKECMDGOALS),broken demo)
MAKEFLAGS += -q
endif

help: ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

# With all that developing needs, there is all that the demo needs.
.venv/.ready: pyproject.toml uv.lock tools/bootstrap
	+@bash tools/bootstrap $(PYTHON)
	+@touch .venv/.demo $@

.venv/.demo: pyproject.toml uv.lock tools/bootstrap
	+@bash tools/bootstrap --demo $(PYTHON)
	+@touch $@

demo: run-demo ## run examples/reconcile against a real PostgreSQL and a recording mock
	@:

run-demo: .venv/.demo
	+@bash tools/demo

docs: .venv/.ready ## make the site of docs/ in build/site; a broken link or anchor is an error
	@$(UV) sync --quiet --frozen --inexact --only-group docs
	$(BIN)/python -m sphinx --quiet --nitpicky --fail-on-warning docs $(or $(SITE),build/site)

# One worker more than cores: it has the tests that wait for limits. Where writing byte code is switched off, each worker
# would rewrite the asserts of all tests. `-m` says which target a test belongs to: tests/test_targets.py.
test: .venv/.ready ## run the tests that need no container engine and little time, installing what they need
	@bash tools/test-requirements
	@$(BYTECODE)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist worksteal -m "not docker and not slow"

# Properties are tried again here, with eight times the examples.
test-slow: .venv/.ready ## run the slow ones: real agents, Chromium, released tools, much data; properties with more examples
	@bash tools/test-requirements --slow
	@$(BYTECODE)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist worksteal --hypothesis-profile=many \
		-m "(slow or property) and not docker"

# A change must pass these, too. An engine that is not there, and can't be started, is a failure here.
test-containers: .venv/.ready ## run all tests that need a container engine, starting one where none runs
	@bash tools/test-requirements
	@bash tools/docker-engine
	@bash tests/images/build-all
	@$(BYTECODE)
	PYTHONDONTWRITEBYTECODE= KEYSTONE_EXPECT_DOCKER=1 $(BIN)/python -m pytest -n 5 --dist worksteal -m docker

# What is left out is in tests/README.md: engine, databases, browser, the process sandbox, whole commands. Rooms
# without a test that is left are not even collected.
test-fast: .venv/.ready ## run the tests that need nothing but this Python and git; no proof before a merge
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist worksteal -q \
		$(addprefix --ignore=tests/,action contract differential end_to_end faults hostile images sandbox) \
		-m "not (docker or database or browser or sandbox or command or slow or waits)"

hostile: .venv/.ready ## every attack on the product and its honest twin, as one table
	@bash tools/test-requirements --slow
	PYTHONPATH=tests $(BIN)/python -m pytest -n 4 --dist worksteal -q -p support.attack_table

faults: .venv/.ready ## what breaks beneath a run, at which stage, and what it comes to, as one table
	@bash tools/test-requirements
	PYTHONPATH=tests $(BIN)/python -m pytest -n 4 --dist worksteal -q -p support.fault_table tests/faults

lint: .venv/.ready ## style, types, workflows, Dockerfile
	@bash tools/lint

format: .venv/.ready ## rewrite to the style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.ready ## the budgets of the design, as ratios
	@$(BYTECODE)
	$(BIN)/python -m benchmarks
