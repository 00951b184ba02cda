# make demo: a project, trained. make test: everything is proven again. Both start from nothing.
# TORCH=cpu or TORCH=cuda chooses the build of torch before the first download; the project's Makefile explains it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROJECT := build/language-identification
IN_PROJECT := $(MAKE) --no-print-directory -C $(PROJECT) VENV=../../$(VENV)
SOURCE := {{cookiecutter.project_slug}}
RUNTIME := $(CURDIR)/packages/smlightning:$(CURDIR)/packages/smlightning-sagemaker
ARGS ?=
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export MYPY_CACHE_DIR := $(CURDIR)/$(VENV)/mypy_cache

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test package-tests template-tests elsewhere lint types workflows docs reference pictures images newest libraries loaders bench gpu wheels \
  stress findings outputs losses clean project

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*## */\t/' | awk -F'\t' '{printf "  make %-14s %s\n", $$1, $$2}'

INSTALL = $(BIN)/python -m pip install --quiet

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"error: Python {sys.version.split()[0]} found, 3.11 or newer expected: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	@$(INSTALL) 'pip>=25.1'

$(VENV)/.template: pyproject.toml | $(BIN)/python
	@$(INSTALL) --group template
	@touch $@

# The generated project's own Makefile does the rest, in the same environment. What a run wrote stays: demo resumes.
project: $(VENV)/.template
	@mkdir -p $(PROJECT)
	@find $(PROJECT) -mindepth 1 -maxdepth 1 ! -name outputs ! -name prepared -exec rm -rf {} +
	@$(BIN)/cookiecutter . --no-input --overwrite-if-exists --output-dir build > /dev/null  # its next steps are for another folder
	@touch -r $(SOURCE)/pyproject.toml $(PROJECT)/pyproject.toml  # or a new copy would be installed again
	@touch -r $(SOURCE)/src/requirements.txt $(PROJECT)/src/requirements.txt
	@touch -r $(SOURCE)/.github/requirements.txt $(PROJECT)/.github/requirements.txt

# One thread: a second one saves a quarter on a quiet machine, and costs a factor of ten on a busy one.
demo: project  ## generate a project with default answers and train it on real data
	@OMP_NUM_THREADS=1 $(IN_PROJECT) train ARGS='$(ARGS)'
	@echo; echo "Which language is it? (text, then the three likeliest with their probabilities)"
	@$(IN_PROJECT) predict \
	  ARGS='"Île de la Réunion" Mittwoch "Κεντρική Αφρική" "южноафриканский рэнд" "saint helena-pund" 水曜日'
	@echo; echo "Curves and confusion matrix: $(PROJECT)/outputs/*.png"

$(VENV)/.tests: $(VENV)/.template $(SOURCE)/Makefile $(SOURCE)/pyproject.toml $(SOURCE)/src/requirements.txt \
  $(SOURCE)/.github/requirements.txt
	@$(MAKE) --no-print-directory project
	@$(IN_PROJECT) setup
	@$(INSTALL) --group tests
	@touch $@

# In an environment that has everything, pytest itself runs as well: .venv/bin/python -m pytest tests/runtime/data
test: $(VENV)/.tests  ## all tests: make test ARGS="-k resume", make test ARGS="-n 0 -x"
	$(BIN)/python -m pytest $(ARGS)

package-tests: $(VENV)/.tests  ## tests of both packages, from the checkout: no project is generated
	$(BIN)/python -m pytest tests/runtime tests/tools $(ARGS)

template-tests: $(VENV)/.tests  ## tests of generated projects
	$(BIN)/python -m pytest tests/template $(ARGS)

elsewhere: $(VENV)/.tests  ## tests as on other machines: make elsewhere ARGS="tests/tools"
	tests/elsewhere.sh $(BIN)/python -m pytest $(ARGS)

$(VENV)/.lint: $(VENV)/.tests
	@$(INSTALL) --group lint
	@touch $@

lint: $(VENV)/.lint types workflows  ## style, format, types and spelling of everything
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

# Both tools have the schemas and rules with them, and use no network.
CHECK_SCHEMA = $(BIN)/check-jsonschema --builtin-schema
workflows: $(VENV)/.lint  ## what GitHub reads: schemas, permissions, pinned actions
	$(CHECK_SCHEMA) vendor.github-workflows .github/workflows/*.yml '$(SOURCE)'/.github/workflows/*.yml
	$(CHECK_SCHEMA) vendor.dependabot .github/dependabot.yml '$(SOURCE)'/.github/dependabot.yml
	$(CHECK_SCHEMA) vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/wish.yml
	$(CHECK_SCHEMA) vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/zizmor --offline --no-progress --quiet .github '$(SOURCE)/.github'

types: $(VENV)/.tests
	cd '$(SOURCE)' && MYPYPATH=$(RUNTIME) ../$(BIN)/mypy src
	MYPYPATH='$(RUNTIME):$(SOURCE)/src' $(BIN)/mypy --config-file '$(SOURCE)/pyproject.toml' --exclude rehearsal/stubs/ \
	  packages/smlightning/smlightning packages/smlightning-sagemaker/smlightning_sagemaker
	cd '$(SOURCE)' && for src in ../examples/*/src ../examples/*/after/src; do \
	  MYPYPATH=$$src:../examples/shared/src:$(RUNTIME) ../$(BIN)/mypy $$src || exit 1; done

wheels: $(VENV)/.template  ## build the two wheels of packages/ into the template
	$(BIN)/python packages/build_wheels.py

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	@$(INSTALL) --group docs
	@touch $@

docs: $(VENV)/.docs  ## the pages as a site in build/site; a broken link or heading fails
	$(BIN)/mkdocs build --strict $(ARGS)

reference: $(VENV)/.tests  ## write the pages of options, keys, images, commands, and of messages
	PYTHONPATH='$(RUNTIME):$(SOURCE)/src' $(BIN)/python docs/reference.py
	$(BIN)/python docs/messages.py

pictures: $(VENV)/.tests  ## draw the README's pictures from real runs; ARGS=--check fails if one is stale
	$(BIN)/python docs/pictures.py $(ARGS)

outputs: $(VENV)/.tests  ## run launch.ipynb, and keep its outputs in it
	UPDATE_NOTEBOOK=1 $(BIN)/python -m pytest -n 0 -m long -k stored_outputs_are tests/template/test_notebook.py

losses: $(VENV)/.tests  ## record the example's first training losses again
	RECORD_LOSSES=1 $(BIN)/python -m pytest -n 0 tests/runtime/example/test_losses.py

images: $(VENV)/.tests  ## each image of the table proven with its own torch: make images ARGS="smddp current"
	PYTHONPATH='$(RUNTIME):tests:tests/template' $(BIN)/python -m images.prove $(ARGS)

newest: $(VENV)/.tests  ## torch, Python, packages that are newer than images': make newest ARGS="2.15.0 --python 3.13"
	PYTHONPATH='$(RUNTIME):tests:tests/template' $(BIN)/python -m images.newest $(ARGS)

libraries: $(VENV)/.tests  ## models of libraries in a project: make libraries ARGS="chemprop lightly"
	PYTHONPATH='$(RUNTIME):tests:tests/template' $(BIN)/python -m libraries.prove $(ARGS)

bench: $(VENV)/.tests  ## the figures of docs/measurements.md: make bench ARGS="--against ../older"
	$(BIN)/python benchmarks/bench.py $(ARGS)

build/loaders: tests/runtime/loader_libraries.py $(VENV)/.tests
	PYTHONPATH=tests $(BIN)/python tests/runtime/loader_libraries.py $@
	@touch $@

loaders: build/loaders  ## the table of loaders for litdata, mosaicml-streaming and webdataset
	PYTHONPATH=$(CURDIR)/build/loaders $(BIN)/python -m pytest -m loaders tests/runtime/training/test_loader_table.py $(ARGS)

gpu: $(VENV)/.tests  ## what only a GPU can answer; without one: make gpu ARGS="--device cpu --small"
	$(BIN)/python benchmarks/gpu.py $(ARGS)

stress: $(VENV)/.tests  ## stop, kill, damage and hang real runs: make stress ARGS="stops --count 200"
	$(BIN)/python benchmarks/stress.py $(ARGS)

findings:  ## what libraries do that one would not expect: make findings ARGS="gloo-types monai-workers"
	@PYTHON='$(PYTHON)' findings/lib/all.sh $(ARGS)

clean:  ## remove generated projects and the environment
	rm -rf build dist $(VENV)
