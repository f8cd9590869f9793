# Two commands on a fresh machine: `make demo`, `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1
TORCH := torch==2.13.0
# Its build wants torch and setuptools in place, so it comes last and without isolation.
DEEPSPEED := deepspeed==0.19.8

.PHONY: demo test lint soak bench accuracy clean

$(VENV)/.core: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -e .
	touch $@

$(VENV)/.dev: $(VENV)/.core pyproject.toml
	$(BIN)/pip install -q "$(TORCH)"
	$(BIN)/pip install -q -e ".[dev]"
	DS_BUILD_OPS=0 $(BIN)/pip install -q --no-build-isolation "$(DEEPSPEED)"
	touch $@

demo: $(VENV)/.core
	$(BIN)/gangsaw plan src/gangsaw/catalog/models/llama-3.1-405b.config.json h100-sxm:16384 \
	    --seq-len 8192 --global-batch 2048 --report gangsaw-report.html

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/pytest -n 2 --dist loadgroup -m "not soak"

soak: $(VENV)/.dev
	$(BIN)/pytest -m soak

bench: $(VENV)/.dev
	for f in benchmarks/bench_*.py; do $(BIN)/python $$f || exit 1; done

accuracy: $(VENV)/.core
	$(BIN)/python -m gangsaw.fit.accuracy docs/accuracy.md

clean:
	rm -rf $(VENV)
