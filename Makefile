# Everything a newcomer needs: `make train` and `make test` work on a fresh clone.
PYTHON ?= python3
MODEL ?= alexnet
SPEEDS ?= examples/ethernet.yaml
OUT ?= runs/$(MODEL)$(if $(SPEEDS),,-here)
ARGUMENTS ?= --budget 8 --minibatches 12 --repetitions 1 --finalists 2 --rounds 5

# Tests and runs start many processes. Without bytecode each of them compiles the project anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin

.PHONY: train test test-system test-checkers test-parsers test-slow compatibility lint bench gpu docs wheel clean

# The main job, short: learn a placement, and race it with everything that a user has without. It
# emulates four unequal accelerators on slow links; `make train SPEEDS=` measures this machine's own cores. A run that
# was interrupted continues.
train: $(VENV)/installed
	$(BIN)/python train_agent.py $(MODEL) --out $(OUT) --resume $(if $(SPEEDS),--speeds $(SPEEDS)) $(ARGUMENTS)

PYTEST := $(BIN)/python -m pytest -q
# A file's tests stay in one process: they share sessions and captures.
BY_FILE := --dist loadfile

test: $(VENV)/installed
	$(PYTEST) -n 3 $(BY_FILE)

# Whole programs, killed, stopped and started again. Each of the processes imports all files that it is
# given: only those that have such tests.
test-system: $(VENV)/installed
	$(PYTEST) -n 4 $(BY_FILE) -m 'system and not slow' $$(grep -rl --include='test_*.py' 'mark\.system' tests)

# Exports trained by DeepSpeed and torchtitan, and read by Megatron, which only these tests need.
PARSERS := deepspeed megatron-core==0.16.1 torchtitan==0.3.0 hjson py-cpuinfo ninja einops tyro typeguard shtab docstring-parser spmd-types
test-parsers: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(PARSERS)
	$(PYTEST) -m parsers

# Environments under the checkers of RLlib and TorchRL, which only these tests need.
test-checkers: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,checkers]'
	$(PYTEST) -m checkers

test-slow: $(VENV)/installed
	$(PYTEST) -n 3 $(BY_FILE) -m slow

# The pages of docs/ as a site in site/, from what is installed alone; a link to nowhere ends it.
docs: $(VENV)/installed
	$(TREE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# What is uploaded to a package index, checked.
wheel: $(VENV)/installed
	rm -rf dist && $(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	$(BIN)/python -m twine check --strict dist/*

# The tests with the oldest torch that is supported. From PyPI it comes with CUDA: 7 GB.
OLDEST := .venv-oldest
compatibility:
	test -d $(OLDEST) || $(PYTHON) -m venv $(OLDEST)
	grep -vE '^(torch|sympy|setuptools)==' constraints.txt > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(OLDEST)/constraints.txt 'torch==2.11.*' -e '.[dev]'
	$(OLDEST)/bin/python -m pytest -q -n 3 $(BY_FILE)

# Type checkers, the contracts of imports and the reference of the site do not follow the mapping of
# folders to packages; a tree of links shows it to them. What mypy knows of the files behind the links
# outlives the tree: it looks again at what has changed.
define TREE
	rm -rf .typecheck && mkdir -p .typecheck/drlpp
	ln -s $(addprefix $(CURDIR)/,$(wildcard drlpp/*) runtime envs agents) .typecheck/drlpp/
endef

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(TREE)
	ln -s $(addprefix $(CURDIR)/,benchmarks examples train_agent.py) .typecheck/
	cd .typecheck && ../$(BIN)/mypy --config-file ../pyproject.toml --cache-dir ../.mypy_cache -p drlpp -p benchmarks -p examples -m train_agent
	cd .typecheck && PYTHONPATH=. ../$(BIN)/lint-imports --config ../pyproject.toml --no-cache

# Timings, which have no place in the tests.
bench: $(VENV)/installed
	$(BIN)/python -m benchmarks run timings

# Everything that one GPU can tell: with a Python that has torch, and nothing installed of this project.
# WHEELS is a folder with what that Python lacks.
GPU := .gpu
gpu:
	rm -rf $(GPU) && mkdir -p $(GPU)/site
	cp -r drlpp benchmarks tests pyproject.toml $(GPU)/ && cp -r runtime envs agents $(GPU)/drlpp/
	$(if $(WHEELS),$(PYTHON) -m pip install --quiet --no-index --no-deps --target $(GPU)/site $(WHEELS)/*.whl)
	cd $(GPU) && export PYTHONPATH=$(CURDIR)/$(GPU):$(CURDIR)/$(GPU)/site && { $(PYTHON) -m pytest -p no:cacheprovider tests/runtime/test_gpu.py; failed=$$?; \
		$(PYTHON) -m benchmarks run gpu --rows $(CURDIR)/runs/gpu.jsonl && exit $$failed; }

$(VENV)/installed: pyproject.toml constraints.txt
	@echo "installing into $(VENV): 2 GB with torch for CPUs, 7 GB with CUDA, as PyPI has it; takes some minutes"
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) $(OLDEST) .typecheck $(GPU) build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis runs races
