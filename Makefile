# Two commands do everything on a fresh machine with Python >= 3.11 (venv) and make:
#   make demo   captions photographs, tells some apart, trains on scenes; one page
#   make test   all tests, in a random order; SEED=2 gives another
# make benchmarks measures the speeds of docs/speed.md. PEER (a checkout of ImageCaptioning.pytorch), PHOTOS (a folder)
# and RUN (a finished run of a captioner) add the rows that need them. THREADS=2 measures torch's rows on two threads.
# Also: make install (only installs), make results (tables and plots of docs/results/ from their scores), make docs (the
# site, into site/), make lint.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
SEED ?= 1
THREADS ?= 1
# Module fixtures train models: all tests of a file run in one process.
PYTEST = $(BIN)/python -m pytest -n auto --maxprocesses 2 --dist loadfile --randomly-seed=$(SEED)
# Other kernels, so that results round differently: MKL's (Intel), MKL's (AMD), torch's, oneDNN's, NumPy's.
OTHER_KERNELS = MKL_ENABLE_INSTRUCTIONS=SSE4_2 MKL_CBWR=COMPATIBLE ATEN_CPU_CAPABILITY=default \
	ONEDNN_MAX_CPU_ISA=SSE41 OPENBLAS_CORETYPE=Nehalem

.PHONY: install demo test test-numerical benchmarks results lint docs clean

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

install: $(VENV)/installed

demo: $(VENV)/installed
	$(BIN)/tellapart demo

test: $(VENV)/installed-dev
	$(PYTEST)

# The tests that compare floating-point results, as another processor would round them.
test-numerical: $(VENV)/installed-dev
	$(OTHER_KERNELS) $(PYTEST) -m numerical

# One after the other, each of a few minutes; rows whose peer or data are missing are skipped and say so.
benchmarks: $(VENV)/installed-dev
	$(BIN)/python benchmarks/starting.py
	$(BIN)/python benchmarks/captioners.py $(if $(PEER),--peer $(PEER)) --rounds 3 --threads $(THREADS)
	$(BIN)/python benchmarks/decoding.py --rounds 1 --images 1 64 --threads $(THREADS)
	$(BIN)/python benchmarks/contrastive.py --rounds 4 --threads $(THREADS)
	$(BIN)/python benchmarks/metrics.py
	$(if $(shell command -v java),$(BIN)/python benchmarks/meteor.py,@echo "skipped: METEOR (needs Java)")
	$(BIN)/python benchmarks/profiles.py
	$(if $(PHOTOS),$(BIN)/python benchmarks/folder.py $(PHOTOS) --threads $(THREADS),@echo "skipped: a folder of photographs (PHOTOS=FOLDER)")
	$(if $(RUN),$(BIN)/python benchmarks/self_retrieval.py $(RUN) --images 100 --threads $(THREADS),@echo "skipped: self-retrieval (RUN=RUN)")

# Draws again what the scores give; a test fails if a page differs from it.
results: $(VENV)/installed
	$(BIN)/python docs/draw_results.py
	$(BIN)/python docs/draw_tables.py
	$(BIN)/python docs/draw_claims.py

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Fails on any warning, such as a link that leads nowhere. Nothing is loaded from other hosts.
docs: $(VENV)/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "wrote site/index.html; for its search: $(BIN)/python -m http.server --directory site"

clean:
	rm -rf demo build dist site .pytest_cache .mypy_cache .ruff_cache
