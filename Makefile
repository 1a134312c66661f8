# Every target works alone on a fresh clone: it makes the virtual environment and whatever else it needs.
# Progress goes to the terminal; a second run is quick.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Most tests wait for processes and links: four at a time keep two cores busy. Unit tests compute: two do. WORKERS=0 runs
# them in one process. tests/conftest.py says which stay together.
WORKERS ?= $(if $(filter tests/unit%,$(ARGS)),$(if $(filter-out tests/unit% -%,$(ARGS)),4,2),4)
# What runs pytest: .ci/run gives failed tests a second chance.
RUNNER  ?= -m pytest
# Which tests `make test` runs.
MARKS   ?= not slow and not endurance and not e2e
SPREAD  := -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
PYTEST  := $(BIN)/python $(RUNNER) $(SPREAD)

# Kubernetes' own tests (upstream, agnhost) are built for those who run them.
E2E_PEERS := sidecars kubernetes upstream agnhost helm

# What makes a release, apart from what runs and tests it.
RELEASE := .venv-release/.installed
DIST    ?= dist

# The tests start hundreds of processes: each of them would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-full e2e e2e-full e2e-hubs e2e-upstream nightly check fuzz chaos peers record-kubelet parity trial bench lab proto reference constraints release clean

help:                ## list the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

$(STAMP): pyproject.toml constraints.txt
	@echo "creating $(VENV) with the pinned versions of constraints.txt"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { \
		echo "$(PYTHON) cannot make a virtual environment with pip: install its venv (Debian, Ubuntu: python3-venv)," \
		"or name another one: make PYTHON=/path/of/python3" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(STAMP)       ## a volume's whole life, cloud to edge and back, on this machine
	@$(BIN)/csi-bridge demo

test: $(STAMP)       ## unit and integration tests, and the peer tests whose binaries are in the cache
	$(if $(filter 1,$(CSI_BRIDGE_REQUIRE_PEERS)),@$(BIN)/python tests/peers/build.py)
	@$(PYTEST) -m "$(MARKS)" $(ARGS)

# More examples, other ones on each run: a second chance would try others again, and forgive the one that fails.
test-slow: $(STAMP)  ## what make test leaves out, but for the endurance tests (10 minutes; root, peers)
	$(if $(ARGS),,@CSI_BRIDGE_EXAMPLES=4 $(BIN)/python -m pytest $(SPREAD) -m "hypothesis and not slow" tests/unit)
	@$(PYTEST) -m "slow and not endurance and not e2e" $(ARGS)

e2e: $(STAMP)        ## whole clusters: stock sidecars, kubelets with containerd, nodes without (root, peers)
	$(if $(filter 1,$(CSI_BRIDGE_REQUIRE_PEERS)),@$(BIN)/python tests/peers/build.py $(E2E_PEERS))
	@$(BIN)/python $(RUNNER) tests/e2e -m "not slow" $(ARGS)

e2e-hubs: $(STAMP)   ## the same scenarios with two hubs, whose leader is killed in the middle of each
	@CSI_BRIDGE_E2E_HUBS=2 $(BIN)/python -m pytest tests/e2e/test_[01]*.py -m "not slow" $(ARGS)

e2e-full: $(STAMP)   ## the same, and what takes longer than CI has time for
	@$(BIN)/python -m pytest tests/e2e $(ARGS)
	@$(MAKE) --no-print-directory e2e-hubs e2e-upstream ARGS=

e2e-upstream: $(STAMP) ## Kubernetes' own storage tests, direct and bridged: docs/upstream-e2e.md (20 minutes; root)
	@$(BIN)/python tests/peers/build.py $(E2E_PEERS)
	@$(BIN)/python -m tests.e2e.upstream $(ARGS)

nightly: $(STAMP)    ## the scenarios of make e2e on each Kubernetes of docs/versions.md, or on ARGS="v1.37.2" (hours; root)
	@$(BIN)/python -m tests.e2e.versions $(ARGS)

test-full: $(STAMP)  ## everything, however slow
	@$(PYTEST) $(ARGS)

# Coverage-guided; its package has wheels for x86-64 only, so nothing else installs it. Only the package: a test run beside it
# must find csi-bridge where it is.
fuzz: $(STAMP)       ## feed any bytes to every parser for a minute; ARGS="--cases 1000000" for longer
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt 'atheris>=3'
	@$(BIN)/python -m tests.fuzz.run $(ARGS)

chaos: $(STAMP)      ## 1,000 operations while anything fails; ARGS="--seed 7 --operations 10000": docs/chaos.md (minutes; root)
	@$(BIN)/python tests/peers/build.py kubernetes
	@$(BIN)/python -m tests.chaos $(ARGS)

check: $(STAMP)      ## format, lint, types, layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

peers: $(STAMP)      ## build the real peers (etcd, kube-apiserver, sidecars, csi-sanity, ...) into the cache
	@$(BIN)/python tests/peers/build.py

trial: $(STAMP)      ## render deploy/trial.yaml from the chart (helm is a peer)
	@CSI_BRIDGE_WRITE_TRIAL=1 $(BIN)/python -m pytest -q tests/peers/test_deploy.py -k test_the_trial_is

parity: $(STAMP)      ## play the kubelet's scenarios on the agent, and write docs/kubelet-parity.md (4 minutes; root)
	@CSI_BRIDGE_WRITE_PARITY=1 $(BIN)/python -m pytest tests/peers/test_agent_parity.py

record-kubelet: $(STAMP) ## write what the real kubelet does in every scenario into the tree (15 minutes; root)
	@$(BIN)/python tests/peers/build.py kubernetes
	@$(BIN)/python -m tests.peers.kubelet.record $(or $(ARGS),--all)

bench: $(STAMP)      ## the driver's own socket against the bridge, side by side, as ratios
	@$(BIN)/python bench/run.py $(ARGS)

lab: $(STAMP)        ## volumes on bad links, beside two simple ways without the bridge: docs/links.md; ARGS="--row lte": one line (2 hours; root)
	@$(BIN)/python tests/peers/build.py sidecars kubernetes
	@$(BIN)/python tests/lab/run.py $(ARGS)

proto: $(STAMP)      ## regenerate the code in common/csi from csi.proto and registration.proto
	@$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. common/csi/csi.proto
	@$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. common/csi/registration.proto

reference: $(STAMP)  ## write docs/reference.md and docs/pages.schema.json from the code
	@$(BIN)/python -m docs.reference < docs/reference.md > docs/reference.md.new
	@mv docs/reference.md.new docs/reference.md
	@$(BIN)/python -m docs.pages_schema > docs/pages.schema.json.new
	@mv docs/pages.schema.json.new docs/pages.schema.json

constraints: $(STAMP) ## write constraints.txt from what is installed, after an upgrade that passed the tests
	@$(BIN)/python -m pip freeze --exclude-editable > constraints.txt

$(RELEASE): deploy/release-tools.txt
	@$(PYTHON) -m venv --clear .venv-release
	@.venv-release/bin/python -m pip install --quiet --disable-pip-version-check --requirement deploy/release-tools.txt
	@touch $@

release: $(RELEASE)  ## write wheel, SBOM, chart, images and checksums of the last commit into dist/; PARTS="wheel chart": these alone
	@.venv-release/bin/python deploy/release.py $(DIST) $(PARTS)

clean:               ## remove what the targets made in the tree (the peers' cache stays)
	rm -rf $(VENV) .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
