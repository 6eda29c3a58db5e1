# Everything a fresh machine needs: `make demo` answers a question about a picture, `make test` runs the tests.
# PYTHON picks the interpreter that .venv is made from (3.11 or newer); TORCH_INDEX a package index for torch alone, such
# as PyTorch's CPU index, which spares gigabytes of CUDA libraries where pip would otherwise take them.

PYTHON ?= python3
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-slow check format docs clean

# torch first and pinned: pip then finds the build of this version that the machine has (a CPU build where there is one)
# and the range in pyproject.toml is already satisfied.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet torch==2.13.0 $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/galago ask --model tiny --stats docs/images/label.png "What is written here?"

test: $(STAMP)
	$(BIN)/python -m pytest

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP)
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) build dist
