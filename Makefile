# `make demo` and `make test` work on a fresh machine that has only Python 3.10-3.13 and make.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test light docs clean

demo: .venv/demo
	@$(BIN)/dllmark demo

test: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n auto --dist loadfile --cov --cov-report=term-missing:skip-covered

# Install without extras into an empty environment and detect there: see docs/results/.
light: .venv/bin/python
	$(BIN)/python benchmarks/install.py

docs: .venv/test
	$(BIN)/python docs/make_cli.py

clean:
	rm -rf .venv dist .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/demo: .venv/bin/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[torch,serve]'
	@touch $@

.venv/test: .venv/bin/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[dev]'
	@# SGLang's own code beside the environment: its dependencies need CUDA and another torch.
	$(INSTALL) --no-deps --no-compile --only-binary sglang --upgrade --target .venv/sglang sglang || \
	    echo "SGLang has no wheel for this machine: its tests are skipped"
	@touch $@
