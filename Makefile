# make demo       three residual schemes train side by side on the built-in stories
# make test       ruff, the unit tests, and every cell of every chapter against its stored output
# make lab        JupyterLab; a double click on a chapter's .py opens it as a notebook
# make notebooks  run chapters/*.py and store the outputs in chapters/*.ipynb   (ONLY=chapters/01_transformer.py: just this)
# make times      the same, one chapter after the other, and write down how long each took
# make figures    run every script in figures/
# make book       the web book, in chapters/_tools/book/_build/html
# make wheel-check  every chapter from a wheel, in a fresh environment and an empty folder: many minutes, and a download
# make class      the assignments with nbgrader: release, grades, feedback, grades.csv in CLASS=FOLDER
# make clean      remove caches and the built book; keeps .venv, trained runs and downloads
#
# The first call makes .venv: the package alone for the demo, the notebook and test tools when something asks for them.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable
BOOK := chapters/_tools/book

CLASS ?= runs/class

.PHONY: help demo test lab notebooks times figures book wheel-check class clean
help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

.venv/package: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("minihaares needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..." if sys.version_info < (3, 11) else 0)'
	@echo "Installing minihaares and PyTorch into .venv (a minute or two, the first time only)"
	$(PYTHON) -m venv .venv
	$(INSTALL) .
	@touch $@

.venv/everything: .venv/package
	@echo "Installing the notebook, book and test tools into .venv (a minute or two, the first time only)"
	$(INSTALL) '.[dev]'
	@touch $@

demo: .venv/package
	$(BIN)/minihaares demo $(ARGS)

test: .venv/everything
	$(BIN)/ruff check .
	@git status --porcelain >.venv/before 2>/dev/null || true
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadscope $(ARGS)
	@git status --porcelain 2>/dev/null | diff .venv/before - || \
		{ echo "These files changed while the tests ran. If nobody edited them, a chapter or a test wrote them."; exit 1; }

lab: .venv/everything
	JUPYTER_CONFIG_PATH=chapters/_tools/jupyter $(BIN)/jupyter lab --LabApp.default_url=/lab/tree/chapters $(ARGS)

notebooks: .venv/everything
	$(BIN)/python chapters/_tools/notebooks.py $(ONLY)

times: .venv/everything
	$(BIN)/python chapters/_tools/notebooks.py --record-times $(ONLY)

figures: .venv/everything
	@set -e; for script in figures/*.py; do echo "$$script"; $(BIN)/python "$$script"; done

book: .venv/everything
	$(BIN)/sphinx-build -q -W --keep-going -c $(BOOK) chapters $(BOOK)/_build/html
	@echo "Open $(BOOK)/_build/html/index.html"

wheel-check: .venv/everything
	@set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; mkdir "$$folder/chapters"; rm -rf build; \
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir "$$folder" .; \
	$(PYTHON) -m venv "$$folder/venv"; \
	"$$folder/venv/bin/python" -m pip install --quiet -c constraints.txt "$$(echo "$$folder"/*.whl)[lab]"; \
	cp chapters/[0-9]*.ipynb "$$folder/chapters"; cd "$$folder/chapters"; ls -A >../before; \
	for chapter in *.ipynb; do OMP_NUM_THREADS=1 ../venv/bin/jupyter execute "$$chapter"; done; \
	ls -A | diff ../before -; echo "Every chapter runs from the wheel and leaves nothing behind."

class: .venv/everything
	$(BIN)/python chapters/_tools/assignments.py class $(CLASS)

clean:
	rm -rf $(BOOK)/_build build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find minihaares chapters figures tests -name __pycache__ -prune -exec rm -rf {} +
	find minihaares chapters figures tests -name .ipynb_checkpoints -prune -exec rm -rf {} +
