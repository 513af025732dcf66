# The two that matter: `make demo` sets everything up and lets k3agent work in a sample repository; `make test` runs the tests.
# TORCH names the PyTorch to install where none is present, for example: make demo TORCH="torch==2.13.0"
PYTHON ?= python3
TORCH ?= torch==2.13.0
WORKERS ?= 3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: docs man references bench-tui demo test setup check e2e gpu soak ci wheel lock audit clean

demo: $(STAMP)
	@$(BIN)/python scripts/demo.py

# Side by side: many tests wait for processes. A file stays in one worker, with the servers that its tests share; files are
# begun in the order of folders, in which those that wait longest come first.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest tests -n $(WORKERS) --dist loadfile --no-loadscope-reorder

setup: $(STAMP)

$(STAMP): pyproject.toml requirements.lock
	@echo "Setting up $(VENV), once; a few minutes, most of them for downloads."
	@echo "[1/5] $(VENV): a Python environment of its own, made with $(PYTHON)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "[2/5] pip 25.1 or later, which knows dependency groups"
	@$(BIN)/pip install --quiet --upgrade "pip>=25.1"
	@echo "[3/5] PyTorch ($(TORCH)), unless it is there: the largest download"
	@$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/pip install "$(TORCH)"
	@echo "[4/5] k3agent from this folder, the packages it needs, and the tools for tests and checks: a minute or two"
	@PYTHONWARNINGS="ignore:Editable installation" $(BIN)/pip install --quiet --constraint requirements.lock --editable ".[local]" --group dev
	@echo "[5/5] build/tree: the import layout as links, for $(VENV), editors and type checkers"
	@$(BIN)/python scripts/link_tree.py --site
	@touch $(STAMP)
	@echo "Ready: $(BIN)/k3agent"

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --level error --pythonpath $(BIN)/python
	$(BIN)/typos

e2e: $(STAMP)
	$(BIN)/pytest tests/e2e

# All that a GPU has to show, into docs/performance.md; says so where there is none. Parts: make gpu PARTS=tests,kernels
gpu: $(STAMP)
	$(BIN)/python -m k3agent.backend.bench.gpu $(if $(PARTS),--parts $(PARTS))

# The long proofs: kills, failing disks, power cuts, writers at once, 10,000 turns; an hour. The short versions are tests.
soak: $(STAMP)
	$(BIN)/python -m k3agent.soak all

# What the terminal UI costs: start, key to echo, idle, streaming, memory.
bench-tui: $(STAMP)
	$(BIN)/python -m k3agent.tui.bench $(ARGS)

# The documentation site, into build/site; a broken link fails.
docs: $(STAMP)
	$(BIN)/python scripts/docs_site.py

# MCP's reference servers, for tests/integration/tools/test_mcp_reference.py; what cannot be had here is skipped there.
references: $(STAMP)
	@$(BIN)/python -m venv build/references && build/references/bin/pip install --quiet "mcp-server-git==2026.10.19" \
	  || echo "references: the package index cannot be asked; mcp-server-git is not tested."
	@npm install --silent --prefix build/references/npm @modelcontextprotocol/server-everything@2026.8.31 \
	  @modelcontextprotocol/server-filesystem@2026.8.31 \
	  || echo "references: npm is not here, or cannot ask its registry; its servers are not tested."

# The manual page, from the parsers of all commands; the wheel installs it.
man: $(STAMP)
	$(BIN)/python scripts/man_page.py

wheel: $(STAMP)
	$(BIN)/python scripts/check_wheel.py

ci: check test wheel

# Versions of everything but torch and what comes with it: that depends on the machine (CPU or CUDA build).
lock: $(STAMP)
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --no-header --no-annotate --extra local --group dev pyproject.toml \
	  | grep -vE '^(torch|triton|nvidia-|cuda-|pip|setuptools)' > requirements.lock

# Known vulnerabilities of the pinned packages; passes where the package index cannot be asked.
audit: $(STAMP)
	@$(BIN)/python -m pip_audit --version >/dev/null 2>&1 || $(BIN)/pip install --quiet "pip-audit==2.10.1" \
	  || echo "audit: pip-audit cannot be installed from here."
	$(BIN)/python scripts/audit.py

clean:
	rm -rf build dist $(VENV)
