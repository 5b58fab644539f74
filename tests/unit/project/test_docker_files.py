"""The container files, as far as they can be checked without a Docker engine."""

from __future__ import annotations

import ast
import json
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.declarations import declarations

DOCKER = Path(__file__).parents[3] / "docker"
COMPOSE = ("compose.yaml", "compose.ports.yaml")
PINNED = re.compile(r"[\w./-]+:(\$\{\w+:-)?v?\d+\.\d+[\w.-]*\}?")
DONE = "service_completed_successfully"


def services() -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"])


def published() -> Iterator[str]:
    for name in COMPOSE:
        for service in yaml.safe_load((DOCKER / name).read_text())["services"].values():
            yield from service.get("ports", ())


def one_time() -> set[str]:
    """Services whose end another one waits for."""
    waits = (service.get("depends_on", {}) for service in services().values())
    return {name for wait in waits for name, how in wait.items() if how["condition"] == DONE}


@pytest.mark.parametrize("name", services())
def test_each_image_is_pinned_to_a_version(name: str) -> None:
    assert PINNED.fullmatch(services()[name]["image"]), services()[name]["image"]


@pytest.mark.parametrize("name", services())
def test_what_runs_on_has_a_health_check_and_what_ends_is_waited_for(name: str) -> None:
    service = services()[name]
    assert ("healthcheck" in service) != (name in one_time())
    for dependency, how in service.get("depends_on", {}).items():
        assert how["condition"] == (DONE if dependency in one_time() else "service_healthy")


def test_ports_are_published_on_the_loopback_only() -> None:
    assert list(published())
    assert all(port.startswith("127.0.0.1:") for port in published())


def test_passwords_come_from_the_environment_and_must_be_there() -> None:
    for service in services().values():
        for name, value in service.get("environment", {}).items():
            if "PASSWORD" in name:
                assert re.fullmatch(r"\$\{\w+_PASSWORD:\?run ./make-env.sh first\}", value), (name, value)
    text = "".join(path.read_text() for path in DOCKER.rglob("*") if path.suffix in {".json", ".sql", ".sh", ".yaml"})
    assert not re.search(
        r"password['\"]?\s*[=:]\s*['\"]?(?!\$|\"?\$\{|\()[A-Za-z0-9]{6,}", text.replace("key: password", "")
    )


def test_mounted_files_are_there_and_volumes_are_declared() -> None:
    document = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    for service in document["services"].values():
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            if source.startswith("./") and not source.startswith(("./prometheus", "./grafana")):
                assert (DOCKER / source).is_file(), source
            elif not source.startswith("."):
                assert source in document["volumes"]
        for config in service.get("configs", ()):
            yaml.safe_load(document["configs"][config["source"]]["content"])


def test_make_env_writes_different_passwords_for_the_owner_alone(tmp_path: Path) -> None:
    target = tmp_path / "env"
    subprocess.run(["bash", DOCKER / "make-env.sh", target], check=True, capture_output=True)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    values = dict(line.split("=") for line in target.read_text().splitlines())
    assert len(set(values.values())) == len(values)
    assert all(len(value) == 48 for value in values.values())
    variables = set(re.findall(r"\$\{(\w+):\?", (DOCKER / "compose.yaml").read_text()))
    assert variables == set(values)
    again = subprocess.run(["bash", DOCKER / "make-env.sh", target], check=False, capture_output=True)
    assert again.returncode == 1


@pytest.mark.parametrize("script", sorted(DOCKER.rglob("*.sh")), ids=lambda path: path.name)
def test_scripts_parse_and_stop_at_errors(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    assert re.search(r"^set -eu", script.read_text(), re.MULTILINE)


def test_the_dockerfile_keeps_to_the_usual_rules() -> None:
    lines = (DOCKER / "driver" / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    instructions = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    words = [word for word, *_ in instructions]
    assert PINNED.fullmatch(instructions[0][1])
    assert "ADD" not in words
    assert "HEALTHCHECK" in words
    users = [tail for word, tail in instructions if word == "USER"]
    assert users
    assert users[-1] not in {"root", "0"}
    for word, tail in instructions:
        if word == "RUN" and "apt-get install" in tail:
            assert "--no-install-recommends" in tail
            assert "rm -rf /var/lib/apt/lists" in tail
        if word == "RUN" and "pip install" in tail:
            assert "--no-cache-dir" in tail
            assert "--require-hashes" in tail or "--no-deps" in tail
        if word == "COPY":
            assert all((DOCKER.parent / source).exists() for source in tail.split()[:-1])
        if word in {"CMD", "ENTRYPOINT"}:
            json.loads(tail)


def locked(lock: Path) -> dict[str, str]:
    """The version of each package in a lock."""
    return dict(re.findall(r"^([\w-]+)==(\S+)", lock.read_text(), re.MULTILINE))


def test_the_drivers_image_has_what_the_pipeline_needs_and_no_tools_of_development() -> None:
    lock = locked(DOCKER / "driver" / "requirements.lock")
    dockerfile = (DOCKER / "driver" / "Dockerfile").read_text()
    assert "COPY docker/driver/requirements.lock ./" in dockerfile
    assert not {"pytest", "mypy", "ruff", "sphinx", "duckdb", "rich"} & lock.keys()
    assert {"pyspark", "pandas", "pyarrow", "prometheus-client", "hatchling"} <= lock.keys()


def test_the_drivers_pyspark_has_a_kafka_source_in_maven_central() -> None:
    quick_start = (DOCKER.parent / "docs" / "start" / "kafka.md").read_text()
    (version,) = set(re.findall(r"pyspark==([\d.]+)", quick_start))
    assert locked(DOCKER / "driver" / "requirements.lock")["pyspark"] == version


def test_kubernetes_image_has_the_metrics_endpoint_that_the_pipeline_opens() -> None:
    """The lock of the driver's image has it too; Spark itself comes with the base image."""
    assert "metrics_port=" in (DOCKER / "driver" / "pipeline.py").read_text()
    assert re.search(r"pip install .*'\.\[metrics\]'", (DOCKER / "kubernetes" / "Dockerfile").read_text())


@pytest.mark.deep
@pytest.mark.timeout(300)
def test_what_the_image_copies_is_enough_to_build_the_package(tmp_path: Path) -> None:
    root, place = DOCKER.parent, tmp_path / "image"
    for line in (DOCKER / "driver" / "Dockerfile").read_text().splitlines():
        if line.startswith("RUN pip install") and line.endswith(" ."):
            break
        if line.startswith("COPY"):
            *sources, target = line.split()[1:]
            for source in sources:
                target_path = place / (target if not target.endswith("/") else f"{target}{Path(source).name}")
                target_path.parent.mkdir(parents=True, exist_ok=True)
                if (root / source).is_dir():
                    shutil.copytree(root / source, target_path, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(root / source, target_path)
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path / "dist")]
    process = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-500:]
    assert list((tmp_path / "dist").glob("*.whl"))


def test_the_pipeline_uses_options_that_exist() -> None:
    tree = ast.parse((DOCKER / "driver" / "pipeline.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (options,) = (call for call in calls if getattr(call.func, "id", "") == "SinkOptions")
    arguments = {word.arg: word.value for word in options.keywords if word.arg}
    assert set(arguments) <= {name for name, _ in declarations(SinkOptions)}
    values = {name: ast.literal_eval(value) for name, value in arguments.items() if isinstance(value, ast.Constant)}
    SinkOptions(**{"load_url": "http://a:1", "query_url": "mysql://a:2", **values})


def test_the_connector_tells_transactions_and_keeps_its_password_elsewhere() -> None:
    config = json.loads((DOCKER / "connect" / "shop.json").read_text())
    assert config["provide.transaction.metadata"] == "true"
    assert config["database.password"] == "${env:POSTGRES_PASSWORD}"


def test_the_kubernetes_example_is_a_spark_application() -> None:
    document = yaml.safe_load((DOCKER / "kubernetes" / "spark-application.yaml").read_text())
    assert (document["apiVersion"], document["kind"]) == ("sparkoperator.k8s.io/v1beta2", "SparkApplication")
    spec = document["spec"]
    assert spec["driver"]["env"] == spec["executor"]["env"]
    secret = next(variable for variable in spec["driver"]["env"] if variable["name"].endswith("PASSWORD"))
    assert "secretKeyRef" in secret["valueFrom"]


def test_compose_itself_takes_the_files(tmp_path: Path) -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], check=False, capture_output=True).returncode:
        pytest.skip("The Compose plugin of Docker is not installed.")
    target = tmp_path / "env"
    subprocess.run(["bash", DOCKER / "make-env.sh", target], check=True, capture_output=True)
    files = [part for name in COMPOSE for part in ("--file", str(DOCKER / name))]
    subprocess.run([docker, "compose", "--env-file", target, *files, "config", "--quiet"], check=True)


def test_kafkas_topics_are_in_its_volume() -> None:
    kafka = services()["kafka"]
    assert kafka["volumes"] == [f"kafka:{kafka['environment']['KAFKA_LOG_DIRS']}"]


def test_starrocks_starts_again_after_root_got_a_password() -> None:
    """The image's director logs in as root at each start, with MYSQL_PWD (its run.sh)."""
    server, init = services()["starrocks"], services()["starrocks-init"]
    assert server["entrypoint"] == ["bash", "/start.sh"]
    assert "starrocks-state:/state" in server["volumes"]
    assert "starrocks-state:/state" in init["volumes"]
    marker = "/state/root-has-a-password"
    assert f"touch {marker}" in (DOCKER / "starrocks" / "init.sh").read_text()
    assert re.search(rf"{marker} \]; then\s+export MYSQL_PWD", (DOCKER / "starrocks" / "start.sh").read_text())


def test_the_check_asks_for_every_service_that_runs_on() -> None:
    script = (DOCKER / "check.sh").read_text()
    (services_asked,) = re.findall(r"^for service in (.*); do$", script, re.MULTILINE)
    assert sorted([*services_asked.split(), "traffic"]) == sorted(services().keys() - one_time())


def test_no_pipeline_names_its_master_and_kubernetes_gets_sparks_own_image() -> None:
    assert ".master(" not in (DOCKER / "driver" / "pipeline.py").read_text()
    assert "--master local[2]" in (DOCKER / "driver" / "Dockerfile").read_text()
    image, *_ = re.findall(r"^FROM (.*)$", (DOCKER / "kubernetes" / "Dockerfile").read_text(), re.MULTILINE)
    version = image.split(":")[1].split("-")[0]
    spec = yaml.safe_load((DOCKER / "kubernetes" / "spark-application.yaml").read_text())["spec"]
    assert image == f"apache/spark:{version}-scala2.13-java17-python3-ubuntu"
    assert spec["sparkVersion"] == version
    assert spec["deps"]["packages"] == [f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}"]
