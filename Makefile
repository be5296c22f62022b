# Everything a person needs. `make demo` and `make test` are the two that matter.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
EXTRAS := train,dev

.PHONY: install demo up test check imports format bench bench-gpu clean

install: $(STAMP)

# uv when it is on the path, else pip: both end with the same versions, compiled, in .venv.
$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null 2>&1 || { echo "Python 3.11 is needed as '$(PYTHON)'. Set PYTHON=… to another name for it."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than Python 3.11."; exit 1; }
	@if command -v uv >/dev/null 2>&1; then \
	  uv venv --quiet --allow-existing --python $(PYTHON) $(VENV) && \
	  UV_FIND_LINKS="$${PIP_FIND_LINKS:-}" uv pip install --quiet --compile-bytecode --python $(BIN)/python -c constraints.txt -e '.[$(EXTRAS)]'; \
	else \
	  $(PYTHON) -m venv $(VENV) && \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'; \
	fi
	@# pip and uv compile what they install only when nothing forbids it; ranks start three times faster compiled.
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null 2>&1 || true
	@touch $@

demo: install
	@$(BIN)/python -m flows.embedded demo $(if $(EXIT),--exit,) $(if $(JSON),--json $(JSON),)

up: install
	@$(BIN)/python -m flows.embedded up $(if $(PORT),--port $(PORT),) $(if $(INVENTORY),--inventory $(INVENTORY),)

# The suite on SQLite; on PostgreSQL and Redis as well when these two variables name them.
test: install
	$(BIN)/python -m pytest -q
	@if [ -n "$${TRAINYARD_POSTGRES_URL:-}" ]; then \
	  echo "the same on PostgreSQL and Redis"; \
	  TRAINYARD_TEST_DATABASE_URL="$$TRAINYARD_POSTGRES_URL" TRAINYARD_TEST_BROKER_URL="$${TRAINYARD_REDIS_URL:-}" \
	    $(BIN)/python -m pytest -q tests/portal; \
	fi

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy scheduler flows trainer portal
	$(BIN)/lint-imports

imports: install
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff check --fix -q . ; $(BIN)/ruff format -q .

bench: install
	$(BIN)/python -m tests.bench.run

bench-gpu: install
	$(BIN)/python -m tests.bench.run --gpu

clean:
	rm -rf $(VENV) .trainyard *.egg-info .mypy_cache .ruff_cache .pytest_cache
