# Everything a newcomer needs: `make train` and `make test` work on a fresh clone.
PYTHON ?= python3
MODEL ?= alexnet
OUT ?= runs/$(MODEL)
ARGUMENTS ?=

VENV := .venv
BIN := $(VENV)/bin

.PHONY: train test test-system test-checkers test-slow compatibility lint bench gpu clean

# The main job: learn a placement on this machine's CPU workers. A run that was interrupted goes on.
train: $(VENV)/installed
	$(BIN)/python train_agent.py --model $(MODEL) --out $(OUT) --resume $(ARGUMENTS)

test: $(VENV)/installed
	$(BIN)/python -m pytest -n 3 --dist worksteal -q

# Whole programs, killed, stopped and started again: they wait more than they compute.
test-system: $(VENV)/installed
	$(BIN)/python -m pytest -n 3 --dist worksteal -q -m 'system and not slow'

# Environments under the checkers of RLlib and TorchRL, which only these tests need.
test-checkers: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,checkers]'
	$(BIN)/python -m pytest -q -m checkers

test-slow: $(VENV)/installed
	$(BIN)/python -m pytest -n 3 --dist worksteal -q -m slow

# The tests with the oldest torch that is supported. From PyPI it comes with CUDA: 7 GB.
OLDEST := .venv-oldest
compatibility:
	test -d $(OLDEST) || $(PYTHON) -m venv $(OLDEST)
	grep -vE '^(torch|sympy|setuptools)==' constraints.txt > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(OLDEST)/constraints.txt 'torch==2.8.*' -e '.[dev]'
	$(OLDEST)/bin/python -m pytest -n 3 --dist worksteal -q

# Type checkers and the contracts of imports do not follow the mapping of folders to packages; a tree
# of links shows it to them.
lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf .typecheck && mkdir -p .typecheck/drlpp
	ln -s $(addprefix $(CURDIR)/,$(wildcard drlpp/*) runtime envs agents) .typecheck/drlpp/
	ln -s $(addprefix $(CURDIR)/,benchmarks examples train_agent.py) .typecheck/
	cd .typecheck && ../$(BIN)/mypy --config-file ../pyproject.toml -p drlpp -p benchmarks -p examples -m train_agent
	cd .typecheck && PYTHONPATH=. ../$(BIN)/lint-imports --config ../pyproject.toml --no-cache

# Timings, which have no place in the tests.
bench: $(VENV)/installed
	$(BIN)/python -m benchmarks.repeatability

# Everything that one GPU can tell: with a Python that has torch, and nothing installed of this project.
# WHEELS is a folder with what that Python lacks.
GPU := .gpu
gpu:
	rm -rf $(GPU) && mkdir -p $(GPU)/site
	cp -r drlpp benchmarks tests pyproject.toml $(GPU)/ && cp -r runtime envs agents $(GPU)/drlpp/
	$(if $(WHEELS),$(PYTHON) -m pip install --quiet --no-index --no-deps --target $(GPU)/site $(WHEELS)/*.whl)
	cd $(GPU) && PYTHONPATH=$(CURDIR)/$(GPU):$(CURDIR)/$(GPU)/site $(PYTHON) -m benchmarks.one_gpu --out $(CURDIR)/runs/one-gpu $(ARGUMENTS)

$(VENV)/installed: pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) $(OLDEST) .typecheck $(GPU) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis runs races
