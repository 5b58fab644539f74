# Two commands a newcomer needs: `make demo` and `make test`. Both set up .venv first, once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
ARGS   ?=

.PHONY: setup demo test lint check lock clean

setup: $(STAMP)

# The packages of a lock file into the environment next to the stamp. `make demo` needs a third of what development does.
DEMO := .venv-demo
$(STAMP): LOCK := requirements.lock
$(DEMO)/.installed: LOCK := requirements-demo.lock
$(STAMP): requirements.lock pyproject.toml starrocks_txn_sink/__init__.py $(wildcard starrocks_txn_sink/compiled/*.[ch]) tools/compile.py
$(DEMO)/.installed: requirements-demo.lock
$(STAMP) $(DEMO)/.installed:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name it with make PYTHON=..."; exit 1; }
	@command -v java >/dev/null || { echo "Spark needs a JDK 17 (Debian: apt install openjdk-17-jre-headless)"; exit 1; }
	@echo "Installing $$(grep -c == $(LOCK)) packages into $(@D), once; PySpark, the largest, has 450 MB."
	@test -x $(@D)/bin/pip || $(PYTHON) -m venv $(@D) || \
	  { rm -rf $(@D); echo "$(PYTHON) cannot make virtual environments (Debian: apt install python3-venv)"; exit 1; }
	@$(PYTHON) tools/install.py $(@D) $(LOCK)
	$(if $(filter $(STAMP),$@),\
	  $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .)
	@touch $@

# In the environment of development where there is one already.
demo: DEMO_BIN := $(if $(wildcard $(STAMP)),$(BIN),$(DEMO)/bin)
demo: $(if $(wildcard $(STAMP)),setup,$(DEMO)/.installed)
	@PYTHONPATH=$(CURDIR) $(DEMO_BIN)/python -m starrocks_txn_sink demo $(ARGS)

# The workers, and hundreds of processes that the tests start, would otherwise compile every module again.
unexport PYTHONDONTWRITEBYTECODE

# On a StarRocks for tests: SERVER="http://127.0.0.1:8030 mysql://127.0.0.1:9030" runs every test that needs nothing that only
# an emulator has, in databases of its own (sts_test_…), and writes one file to send, as `make record` does. The user is root
# without a password, or STARROCKS_USER with STARROCKS_PASSWORD or STARROCKS_PASSWORD_FILE.
#
# A test often waits, so there is one worker more than cores, up to four; two of them have a Spark (tests/support/scheduling.py).
# ARGS="-n 0" does without workers.
JOBS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); [ $$n -le 3 ] && echo $$((n + 1)) || echo 4)
.PHONY: test-all
test: setup $(VENV)/.class-archive
	$(if $(SERVER),$(MAKE) record FOLDERS="tests/spark tests/kafka tests/cdc",\
	  $(BIN)/python -m pytest -n $(JOBS) --dist loadscope -m "not deep" $(ARGS))

# Also what is marked `deep`, with five times as many examples and schedules; PROFILE=half takes half of them.
PROFILE ?= deep
test-all: setup $(VENV)/.class-archive
	$(BIN)/python -m pytest -n $(JOBS) --dist loadscope --hypothesis-profile=$(PROFILE) $(ARGS)

# Spark's JVMs start twice as fast with an archive of its classes; the tests start dozens of them.
$(VENV)/.class-archive: $(STAMP) starrocks_txn_sink/class_archive.py
	@$(BIN)/starrocks-txn-sink class-archive >$(VENV)/class-archive.log 2>&1 || \
	  echo "No archive of Spark's classes, so the tests take longer: see $(VENV)/class-archive.log"
	@touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell --dictionary - --dictionary tools/words.txt

# Resolve the pinned, hashed set again (needs `pip install uv` somewhere on PATH).
lock:
	uv pip compile --universal --generate-hashes --no-emit-index-url --quiet \
	  --python-version 3.11 --extra dev pyproject.toml -o requirements.lock
	uv pip compile --universal --generate-hashes --no-emit-index-url --quiet \
	  --python-version 3.11 --extra demo -c requirements.lock pyproject.toml -o requirements-demo.lock

clean:
	rm -rf $(VENV) $(DEMO) build .pytest_cache .mypy_cache .ruff_cache .hypothesis

# What is marked `matrix` on older versions of Spark, in an environment for each; make matrix SPARKS=3.5.9 chooses.
SPARKS ?= 3.5.9 floor 4.0.5 4.1.4
.PHONY: matrix
matrix: $(SPARKS:%=matrix-%)

# floor: Spark 3.5.9 with the oldest libraries that the package allows, those of Databricks 15.4.
FLOOR := pyarrow==14.0.1 numpy==1.23.5 pandas==1.5.3 requests==2.32.3 urllib3==1.26.16 tenacity==8.2.2
matrix-floor: FLOORS := $(FLOOR)
matrix-%: SPARK = $(if $(FLOORS),3.5.9,$*)
matrix-%:
	@test -x .venvs/spark-$*/bin/pip || $(PYTHON) -m venv .venvs/spark-$*
	.venvs/spark-$*/bin/pip install --quiet --disable-pip-version-check "pyspark==$(SPARK)" $(FLOORS) --editable ".[matrix]"
	.venvs/spark-$*/bin/python -m pytest -W default -n 2 -m matrix $(ARGS) tests/spark/test_spark_versions.py tests/spark/test_lakehouse.py tests/spark/test_changelog_state.py tests/spark/test_checkpoint_by_hadoop.py

# Kill and pause a real PySpark driver and the emulator at every numbered step; ARGS="words" chooses sites, --list lists.
.PHONY: crash
crash: setup
	$(BIN)/python -m tests.crash $(ARGS)

.PHONY: prove sabotage

# make prove SEEDS=10000 runs that many simulated schedules, from seed FIRST on; make prove SEED=7 replays one with its trace.
SEEDS ?= 1000
SEED  ?=
FIRST ?= 0
SCHEDULES = $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --first $(FIRST))
prove: setup
	$(BIN)/python -m tests.simulation prove $(SCHEDULES)

# Planted bugs: the simulator's checker must notice each of them; of values, keys, privacy and order the unit tests.
sabotage: setup
	$(BIN)/python -m tests.simulation sabotage
	$(BIN)/python -m tests.planted $(ARGS)

# The abstract protocol, every state of it; then one ingredient after the other left out. ARGS=--quiet: no traces.
.PHONY: explore
explore: setup
	$(BIN)/python -m tests.exploration $(ARGS)

# The compiled loops with sanitizers, which end the run at the first wrong access to memory and undefined arithmetic.
.PHONY: sanitize
sanitize: setup
	$(BIN)/python -m tools.sanitize $(ARGS)

# Random replies and random events; ARGS="--replies N --events N --seed S".
.PHONY: fuzz
fuzz: setup
	$(BIN)/python -m tests.fuzz $(ARGS)

# Mutation testing of the commit path, on a copy; ARGS="starrocks_txn_sink.protocol.label*" chooses mutants.
.PHONY: mutate
mutate: setup
	rm -rf .mutation && mkdir .mutation && cp -r starrocks_* tests pyproject.toml README.md .mutation
	cd .mutation && ../$(BIN)/python -m mutmut run --max-children 1 $(ARGS) > mutmut.log || true
	$(BIN)/python -m tests.mutation .mutation

# Everything that is made from the code (tables in docs/, the runbook's page, Grafana's dashboard, Prometheus' alert rules),
# then the site from docs/ in build/docs; a link that leads nowhere is an error.
.PHONY: docs docs-check browser
docs: setup
	$(BIN)/python -m tools
	$(BIN)/python -m sphinx -W --keep-going -q -d build/doctrees docs build/docs

# Only says which generated files are stale.
docs-check: setup
	$(BIN)/python -m tools --check

# What the tests of the page and of the alert rules need besides Python (Debian, as root); without it they are skipped.
browser:
	apt-get install -y --no-install-recommends chromium prometheus

# The contract suite and the end-to-end tests, against the emulator and a real StarRocks in a container; without a Docker
# engine the real part is skipped. ARGS="--starrocks real --starrocks-tag 4.0.13" chooses.
.PHONY: integration conformance
integration: setup
	$(BIN)/python -m pytest -p integration.plugin $(ARGS) tests/contract integration

# The contract suite and the end-to-end tests against a real server in a container (TAG), with its answers, in a file to send:
# artifacts/recordings.zip. `make test SERVER=…` does it, with more tests, on a server that runs already.
.PHONY: record
TAG ?= 4.1.1
RECORD := artifacts/recordings
RECORD_TIMEOUT ?= 900
record: setup
	rm -rf $(RECORD) $(RECORD).zip
	mkdir -p $(RECORD)
	$(BIN)/python -m pytest -p integration.plugin --tb=short -m "not deep" --timeout $(RECORD_TIMEOUT) --starrocks real --starrocks-tag $(TAG) \
	  $(if $(SERVER),--starrocks-server "$(SERVER)") --record $(RECORD) --junitxml $(RECORD)/real.xml \
	  $(ARGS) tests/contract integration $(FOLDERS) || test $$? = 1 # a failed test is a result too
	$(BIN)/python -m integration.parcel $(RECORD)

# docs/inside/conformance.md, from a run of the contract suite; REAL=junit.xml adds a run against a real server, REHEARSALS="a.json b.json"
# reports of `starrocks-txn-sink rehearse --json`.
conformance: setup
	mkdir -p artifacts
	$(BIN)/python -m pytest -q -p integration.plugin --starrocks emulator --junitxml artifacts/contract.xml tests/contract
	$(BIN)/python -m integration.conformance --emulator artifacts/contract.xml $(if $(REAL),--real $(REAL)) $(if $(REHEARSALS),--rehearsals $(REHEARSALS))

# Wheel and sdist, built and installed into an empty environment.
.PHONY: package api news
package: setup
	PYTHON=$(BIN)/python .ci/package

# The wheels, the sdist and the documentation of a release, built from the last commit and checked, in dist/.
.PHONY: release
release: setup
	PYTHON=$(BIN)/python .ci/release

# The snapshot of the public names, after a change that is meant.
api: setup
	$(BIN)/python -m tests.unit.project.public_api

# CHANGELOG.md from the fragments in news/: make news VERSION=0.2.0
news: setup
	$(BIN)/python .ci/news.py $(VERSION) $$(date -u +%Y-%m-%d)

# Every benchmark, one after the other; BENCH="raw_lines --rounds 7" runs one. docs/guides/performance.md explains them.
.PHONY: bench
bench: setup
	$(if $(BENCH),$(BIN)/python -m benchmarks.$(BENCH),$(BIN)/python -m benchmarks)

# Real servers, fetched by Maven into ~/.cache/starrocks-txn-sink and started on free loopback ports; where Maven or
# PostgreSQL is missing the tests skip with a sentence. `make servers` installs both (Debian, as root).
.PHONY: kafka cdc broker endurance soak demo-cdc servers
kafka: setup
	$(BIN)/python -m pytest -n 0 tests/kafka $(ARGS)

cdc: setup
	$(BIN)/python -m pytest -n 0 tests/cdc $(ARGS)

# Spark on several JVMs: a standalone cluster on loopback, whose executors, workers and drivers are killed.
.PHONY: cluster
cluster: setup
	$(BIN)/python -m pytest -n 0 tests/cluster $(ARGS)

# A real server of Spark Connect on loopback, and the tests as its client.
.PHONY: connect
connect: setup
	$(BIN)/python -m pytest -n 0 tests/connect $(ARGS)

# A Kafka broker to try things with, until Ctrl-C.
broker: setup
	$(BIN)/python -m tests.kafka $(ARGS)

# 200 000 source transactions from 60 partitions over a restarted broker and a killed driver.
endurance: setup
	$(BIN)/python -m tests.kafka.endurance $(ARGS)

# An hour with a fault every few minutes: ARGS="--minutes 6 --out samples.jsonl".
soak: setup
	$(BIN)/python -m tests.kafka.soak $(ARGS)

# PostgreSQL -> Debezium -> Kafka -> the sink -> the emulator, to watch.
demo-cdc: setup
	$(BIN)/python -m tests.cdc $(ARGS)

servers:
	apt-get install -y --no-install-recommends maven postgresql mariadb-server
