# make help lists what there is.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SUITE  ?= trixie
ROUNDS ?= 3
# Slurm tests run on so many clusters side by side, each in turn its own files (0: one, in this process).
# A cluster waits most of the time: it takes a fifth of a core, and half a gigabyte.
CLUSTERS ?= 4
SHELL  := /bin/sh
PYTEST := $(BIN)/python -m pytest
SLURM_PYTEST := $(PYTEST) tests/slurm -n $(CLUSTERS) --dist loadfile --no-loadscope-reorder \
  -r fE --durations=25 --timeout=1200
# Runs by hand that may take longer than the limit of a test
LONG := --timeout=7200

.DEFAULT_GOAL := help
.PHONY: help venv lint test test-fast coverage test-search test-slurm test-sid test-walk test-systemd test-storm test-mixed test-hostile test-requests requests docker image cluster-up cluster-down demo clean

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

$(BIN)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@

venv: $(BIN)/.installed  ## Make .venv with everything that development needs

lint: venv  ## Check style and types: ruff, mypy --strict, luac, shellcheck (the last two if present)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy benchmarks/*.py
	$(BIN)/mypy benchmarks/reproduce/*.py
	MYPYPATH=tests:tests/slurm $(BIN)/mypy --explicit-package-bases --allow-untyped-defs --allow-untyped-calls \
	  --disable-error-code misc tests/slurm/test_*.py
	@luac=$$(command -v luac5.1 || command -v luac) || { echo "luac is not installed: Lua files not checked"; exit 0; }; \
	  find etc/lua docker/etc -name '*.lua' -exec echo $$luac -p {} + -exec $$luac -p {} +
	@command -v shellcheck >/dev/null || { echo "shellcheck is not installed: shell scripts not checked"; exit 0; }; \
	  shellcheck docker/*.sh docker/cluster docker/site/host.sh docker/site/systemctl docker/site/etc/*.sh docker/site/etc/push-slurm-conf .ci/run etc/resv.d/*

test: lint docker  ## Everything: lint, unit, property, Lua and Slurm tests
	@# Slurm tests mostly wait, so the others run beside them and give way.
	@mkdir -p build; timeout -k 30 3600 nice -n 10 $(PYTEST) -q -n 2 >build/unit.log 2>&1 & unit=$$!; \
	  PYTHON=$(BIN)/python docker/image.sh $(SUITE) && GPU_AWARE_SUITE=$(SUITE) $(SLURM_PYTEST); \
	  slurm=$$?; wait $$unit; unit=$$?; cat build/unit.log; \
	  [ $$unit -eq 0 ] && [ $$slurm -eq 0 ]

test-fast: lint  ## Without the Slurm tests
	$(PYTEST) -n 2

coverage: venv  ## Lines that the tests without Slurm run (they take a quarter longer with it)
	$(PYTEST) -q -n 2 --cov --cov-report=
	$(BIN)/coverage report

test-search: venv  ## Property tests on new random examples, ROUNDS times (make test tries the same ones always)
	for round in $$(seq $(ROUNDS)); do \
	  $(PYTEST) -q -n 2 tests/property --hypothesis-profile=search || exit 1; done

test-slurm: venv docker  ## Slurm tests, on a cluster of their own (Slurm 24.11)
	GPU_AWARE_SUITE=$(SUITE) $(SLURM_PYTEST)

test-sid: venv docker  ## All of them on Slurm 26.05, with the whole matrix of requests and benchmarks/scale.py
	GPU_AWARE_SUITE=sid GPU_AWARE_REQUESTS=all $(SLURM_PYTEST) $(LONG)
	GPU_AWARE_SUITE=sid $(BIN)/python benchmarks/scale.py --turns 1

test-walk: venv docker  ## The guide's own commands on a site that is not ours, under load (SUITE=sid for Slurm 26.05)
	GPU_AWARE_SUITE=$(SUITE) GPU_AWARE_WALK=1 $(PYTEST) $(LONG) -rA tests/slurm/test_foreign_site.py

test-systemd: venv docker  ## Our units under a systemd that runs, as root
	GPU_AWARE_SUITE=$(SUITE) GPU_AWARE_SYSTEMD=1 PYTHON=$(BIN)/python $(PYTEST) tests/slurm/test_systemd.py

test-storm: venv docker  ## 300 submissions while the selector, or slurmctld, is killed at random (make test: 60)
	GPU_AWARE_SUITE=$(SUITE) GPU_AWARE_STORM_JOBS=300 $(PYTEST) $(LONG) tests/slurm/test_survival.py -k random_moments

test-mixed: venv docker  ## 300 mixed submissions of two users, without and with a power limit: none passes another (make test: 60)
	GPU_AWARE_SUITE=$(SUITE) GPU_AWARE_MIXED_JOBS=300 $(PYTEST) $(LONG) tests/slurm/test_one_queue.py -k mixed

test-hostile: venv docker  ## 3,000 hostile jobs and as many updates by raw RPC (make test: 150)
	GPU_AWARE_SUITE=$(SUITE) GPU_AWARE_HOSTILE_JOBS=3000 $(PYTEST) $(LONG) tests/slurm/test_hostile_values.py

test-requests: venv docker  ## The whole matrix of requests, with us and without (SUITE=sid for Slurm 26.05)
	GPU_AWARE_SUITE=$(SUITE) GPU_AWARE_REQUESTS=all $(PYTEST) $(LONG) tests/slurm/test_requests.py

requests: venv docker  ## The same, and write docs/internals/requests.md
	GPU_AWARE_SUITE=$(SUITE) GPU_AWARE_REQUESTS=write $(PYTEST) $(LONG) tests/slurm/test_requests.py

docker: venv
	@docker/ensure-docker.sh

image: docker  ## Build the image of the cluster (SUITE=sid for Slurm 26.05)
	PYTHON=$(BIN)/python docker/image.sh $(SUITE)

cluster-up: docker  ## Start the container cluster
	PYTHON=$(BIN)/python GPU_AWARE_SUITE=$(SUITE) docker/cluster up
	@echo "The cluster is up. Look around with: docker/cluster sh ctl"

cluster-down:  ## Stop it; nothing is left behind
	docker/cluster down

demo: docker  ## Watch, shadow, order and exact GPUs: 20 jobs on Slurm alone, then with us (KEEP=1 leaves it running)
	PYTHON=$(BIN)/python GPU_AWARE_SUITE=$(SUITE) $(BIN)/python docker/demo.py

clean:  ## Remove what was built, this checkout's images of the cluster included
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
	@docker/remove-images.sh
