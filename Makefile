# The two commands: `make train` and `make test`. Both build .venv first; a second run installs nothing again.
# PYTHON=python3.12 chooses an interpreter, VENV=elsewhere another folder.

VENV ?= .venv
RECIPE ?= recipes/key_door_text.toml
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
STAMPS := $(VENV)/.stamps

export PIP_NO_INPUT := 1

.PHONY: help train test check install reference clean

help:
	@echo "make train      train a small language model to use tools; minutes on two CPU cores"
	@echo "make test       run the whole test suite"
	@echo "make check      format, lint, types, room contracts"
	@echo "make install    build $(VENV) with everything the two need"
	@echo "make reference  write docs/reference.md and the public API snapshot again"
	@echo "make clean      remove $(VENV) and caches; runs/ stays"

train: $(STAMPS)/kifu
	@scripts/train "$(BIN)/kifu" "$(RECIPE)"

test: install
	@VENV="$(VENV)" scripts/test

check: install
	@VENV="$(VENV)" scripts/check

reference: install
	@$(BIN)/python scripts/reference.py all

install: $(STAMPS)/dev $(STAMPS)/kifu

$(STAMPS)/python: scripts/venv
	@PYTHON="$(PYTHON)" scripts/venv create "$(VENV)"
	@mkdir -p $(STAMPS) && touch $@

# torch comes first and alone, as a CPU build: left to the resolver, Linux would get some 3 GB of CUDA libraries.
$(STAMPS)/torch: requirements/torch.txt requirements/run.txt $(STAMPS)/python
	@scripts/venv torch "$(VENV)"
	@touch $@

$(STAMPS)/run: requirements/run.txt $(STAMPS)/torch
	@echo "installing requirements/run.txt"
	@$(PIP) install -r requirements/run.txt
	@touch $@

$(STAMPS)/dev: requirements/dev.txt $(STAMPS)/run
	@echo "installing requirements/dev.txt"
	@$(PIP) install -r requirements/dev.txt
	@touch $@

$(STAMPS)/kifu: pyproject.toml $(STAMPS)/run
	@echo "installing kifu from this folder"
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
