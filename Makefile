# Two commands do everything on a fresh machine with Python >= 3.11 (venv) and make:
#   make demo   pictures -> captions that tell them apart, and a report
#   make test   all tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0

.PHONY: demo test lint clean

# Each stamp depends on what it installs from, so a second call installs nothing.
# torch goes first and pinned: an unpinned one may pull gigabytes of CUDA packages.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tellapart needs Python 3.11 or newer; set PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH) -c constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,metrics]'
	touch $@

demo: $(VENV)/installed
	$(BIN)/tellapart demo

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf demo build dist .pytest_cache .mypy_cache .ruff_cache
