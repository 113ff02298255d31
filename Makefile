# What people do here. Every target sets up what it needs in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo test lint format zoo mutants coverage screenshot demo-models demo-bundles clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/.runtime ## score a trained model with ONNX Runtime alone (no torch)
	$(BIN)/python bench.py --engine ort

test: $(VENV)/.dev lint ## every check: format, lint, types, tests
	$(BIN)/python -m pytest

lint: $(VENV)/.dev ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev ## put every file into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

zoo: $(VENV)/.dev ## export every model of the zoo, most with random weights, and write the tables in docs/ (half an hour)
	$(BIN)/python benchmarks/zoo.py

mutants: $(VENV)/.dev ## damage deployments and ask the gate: is it any good? (twenty minutes)
	$(BIN)/python benchmarks/mutants.py --write

coverage: $(VENV)/.dev ## simulate scores: do 95 % intervals hold the truth in 95 of 100 repeats? (three minutes)
	$(BIN)/python benchmarks/coverage.py --out docs/measurements/coverage.json

screenshot: $(VENV)/.dev ## take the README's picture of a report again (needs chromium)
	$(BIN)/python benchmarks/screenshot.py

demo-models: $(VENV)/.dev ## train the demo models again (half an hour each on one core; needs fonts-noto-color-emoji)
	$(BIN)/python models/demo/train.py --model tiny_clip
	$(BIN)/python models/demo/train.py --model tiny_siglip

demo-bundles: $(VENV)/.dev ## export the demo models' weights to the committed bundles again
	for key in tiny_clip tiny_siglip; do \
	  $(BIN)/python exporter/export.py --model $$key --out $(VENV)/bundles --overwrite && \
	  rm -rf models/demo/$$key/bundle && mv $(VENV)/bundles/$$key models/demo/$$key/bundle || exit 1; \
	done

clean: ## remove what the targets made
	rm -rf $(VENV) artifacts runs .hypothesis .pytest_cache .mypy_cache .ruff_cache

$(VENV)/.runtime: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

# transformers 4.57 is the newest that Optimum's exporter works with; the code itself also runs on 5.
$(VENV)/.dev: $(VENV)/.runtime
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[export,dev]' 'transformers<4.58'
	@touch $@
