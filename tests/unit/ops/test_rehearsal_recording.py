"""`rehearse --record`: the answers are there, and nothing of the user is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Settings
from starrocks_txn_ops import cli
from starrocks_txn_ops.rehearsal.recording import Recorder
from starrocks_txn_sink import SinkOptions
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.http.connection import Exchange, HttpResponse
from starrocks_txn_sink.options.addresses import Address
from starrocks_txn_sink.protocol.wire import Operation, Request
from tests.support.judgement import judged
from tests.support.recordings import records

PASSWORD = "secret-of-the-recording"


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("emulator")
    file = folder / "recording.json"
    with pytest.MonkeyPatch.context() as patch, Emulator(folder, Settings(user="jane", password=PASSWORD)) as server:
        patch.setenv("SECRET", PASSWORD)
        place = ["--load-url", server.load_url, "--query-url", server.query_url, "--database", "jane_scratch"]
        login = ["--username", "jane", "--password-environment", "SECRET"]
        code = cli.main(["rehearse", *place, *login, "--seconds", "0.3", "--megabytes", "0.2", "--record", str(file)])
    assert code == 0
    return file.read_text(encoding="utf-8")


def test_each_check_is_a_scene_with_requests_and_answers(recording: str) -> None:
    document = json.loads(recording)
    assert document["server"] == "StarRocks 4.0.7-emulator"
    scenes = [scene["scene"] for scene in document["scenes"]]
    assert {"load.two_tables", "commit.repeated", "reject.bad_row"} <= set(scenes)
    begin = next(record for name, record in records(document) if name.endswith(" begin") and "two_tables" in name)
    assert begin["request"]["method"] == "POST"
    assert begin["request"]["headers"]["label"].startswith("${job}-")
    assert begin["answer"]["body"] == {"Status": "OK", "Message": ""}


def test_the_sink_can_judge_the_answers(recording: str) -> None:
    judgements = {judged(record) for _, record in records(json.loads(recording))}
    assert judgements >= {"begun", "redirected", "loaded", "confirm", "rolled back", "VISIBLE", "load again"}


@pytest.mark.parametrize("secret", [PASSWORD, "jane", "jane_scratch", "127.0.0.1", "Basic ", "authorization"])
def test_nothing_of_the_user_is_in_it(recording: str, secret: str) -> None:
    assert secret not in recording


def recorder() -> Recorder:
    options = SinkOptions(load_url="http://fe.corp:8030", query_url="mysql://fe.corp:9030", database="scratch")
    return Recorder(options, "rehearsal_1")


def test_bodies_are_left_out_and_hosts_of_redirects_are_hidden() -> None:
    recorded = recorder()
    exchange = Exchange(
        Request(Operation.LOAD, "scratch", "l", table="t"),
        Address("http", "fe.corp", 8030),
        {"authorization": b"Basic abc", "table": b"t"},
        None,
        Deadline.after(1, SystemClock()),
        1.0,
    )
    recorded.exchange(exchange, HttpResponse(307, "http://be7.corp:8040/api/transaction/load", b""))
    text = json.dumps(recorded.document("4.1.1"))
    assert "corp" not in text
    assert "${host.2}:8040" in text


def test_rows_of_other_tables_are_counted_only() -> None:
    recorded = recorder()
    recorded.answer("SELECT * FROM information_schema.loads LIMIT 1", (), [{"label": "orders-1", "user": "bob"}])
    recorded.answer("SHOW FRONTENDS", (), [{"ip": "10.0.0.7", "name": "fe_a", "role": "LEADER"}])
    recorded.answer("SELECT count(*) AS n FROM `scratch`.`t`", (), [{"n": 3}])
    recorded.refusal("DELETE FROM `scratch`.`t`", (), "no backend at 10.0.0.7 or fd00:1:2:3::7 (1064)")
    document = recorded.document("4.1.1")
    text = json.dumps(document)
    assert [name for name in ("orders-1", "bob", "10.0.0.7", "fd00") if name in text] == []
    _, _, scratch, refused = (record["answer"] for _, record in records(document))
    assert scratch == {"columns": ["n"], "count": 1, "rows": [["3"]]}
    assert refused["error"] == 1064


def test_a_scene_is_bounded() -> None:
    recorded = recorder()
    recorded.begin("speed")
    for number in range(500):
        recorded.answer("SELECT count(*) AS n FROM `scratch`.`t`", (), [{"n": number}])
    (scene,) = recorded.document("4.1.1")["scenes"]
    assert len(scene["records"]) + scene["left_out"] == 500
    assert len(scene["records"]) < 100


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "nowhere" / "recording.json"
    with Emulator(tmp_path / "emulator", Settings()) as server:
        place = ["--load-url", server.load_url, "--query-url", server.query_url, "--database", "scratch"]
        code = cli.main(["rehearse", *place, "--seconds", "0.1", "--megabytes", "0.1", "--record", str(file)])
    assert code == 2
    assert "record" in capsys.readouterr().err
