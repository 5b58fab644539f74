"""`starrocks-txn-sink recover` against the emulator: what it shows, what it rolls back, what it refuses."""

from __future__ import annotations

import json

import pytest

from starrocks_emulator.server import Emulator
from starrocks_txn_ops import cli
from starrocks_txn_sink.errors import LedgerBehind
from starrocks_txn_sink.sink.session import Resumption, open_session
from tests.support.left_behind import PASSWORD, leave_open, options, write_a_position
from tests.support.micro_batch import write_micro_batch
from tests.support.query_port import query

pytestmark = pytest.mark.emulator(
    "CREATE TABLE shop.items (id BIGINT) DUPLICATE KEY(id) DISTRIBUTED BY HASH(id)", password=PASSWORD
)


def recover(server: Emulator, *words: str, job: str = "shop") -> int:
    place = ["--query-url", server.query_url, "--load-url", server.load_url, "--database", "shop", "--job", job]
    return cli.main(["recover", *place, "--password-environment", "SECRET", *words])


@pytest.mark.usefixtures("environment")
def test_shows_open_labels(server: Emulator, capsys: pytest.CaptureFixture[str]) -> None:
    session = write_a_position(server)
    leave_open(server, f"shop-{session.epoch}-0-6-2_0")
    leave_open(server, "shop-b-1-0-1-1_0")  # another job, whose name begins the same
    assert recover(server, "--json") == 0
    output = json.loads(capsys.readouterr().out)
    assert [entry["label"] for entry in output["labels"]] == [f"shop-{session.epoch}-0-6-2_0"]
    assert output["labels"][0]["after"] is None
    assert recover(server) == 0
    text = capsys.readouterr().out
    assert f"open labels: 1\n  shop-{session.epoch}-0-6-2_0  open\n" in text
    assert PASSWORD not in text


@pytest.mark.emulator(
    "CREATE TABLE shop.items (id BIGINT) DUPLICATE KEY(id) DISTRIBUTED BY HASH(id)",
    password=PASSWORD,
    loads_stay_preparing=True,
)
@pytest.mark.usefixtures("environment")
def test_committed_labels_that_the_server_lists_are_no_open_ones(
    server: Emulator, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wire contract 10.6."""
    for number in range(20):
        session = write_micro_batch(options(server), {number: '{"id":1}'}, number, checkpoint="checkpoint-1")
    open_label = f"shop-{session.epoch}-0-6-2_0"
    leave_open(server, open_label)
    assert recover(server, "--json") == 0
    output = json.loads(capsys.readouterr().out)
    assert ([entry["label"] for entry in output["labels"]], output["committed"]) == ([open_label], 20)
    assert recover(server, "--roll-back") == 0
    text = capsys.readouterr().out
    assert "open labels: 1\n  and 20 committed ones, which StarRocks before 4.1.3 lists as well\n" in text
    assert f"  {open_label}  open -> ABORTED\n" in text
    assert recover(server) == 0
    assert "open labels: none\n  and 20 committed" in capsys.readouterr().out


@pytest.mark.usefixtures("environment")
def test_a_misspelt_job_is_an_error_that_names_the_others(server: Emulator, capsys: pytest.CaptureFixture[str]) -> None:
    write_a_position(server)
    assert recover(server, job="shpo") == 1
    assert "no rows of the job shpo. Its jobs are: shop." in capsys.readouterr().err
    leave_open(server, "shpo-a1-0-6-2_0")  # at-least-once
    assert recover(server, job="shpo") == 0


@pytest.mark.usefixtures("environment")
def test_accepts_the_ledger_on_request_and_claims_nothing(server: Emulator, capsys: pytest.CaptureFixture[str]) -> None:
    write_a_position(server)
    query(server, "DELETE FROM shop._starrocks_txn_sink_ledger WHERE kind <> 'x'")
    sink_options, resumption = options(server), Resumption(3)
    with pytest.raises(LedgerBehind):
        open_session(sink_options, "run", "shop", "checkpoint-1", resumption=resumption)
    assert recover(server, "--accept-ledger") == 0
    assert "The ledger is accepted as it is" in capsys.readouterr().out
    assert query(server, "SELECT kind, name FROM shop._starrocks_txn_sink_ledger") == [("marker", "accepted")]
    session = open_session(sink_options, "run", "shop", "checkpoint-1", resumption=resumption)
    assert len(session.proof(3).accepted) == 1


@pytest.mark.usefixtures("environment")
def test_rolls_back_on_request_and_only_the_jobs_own(server: Emulator, capsys: pytest.CaptureFixture[str]) -> None:
    write_a_position(server)
    for name in ("shop-a1-0-6-2_0", "shop-a2-1-7-3_0", "other-a1-0-0-1_0"):
        leave_open(server, name)
    assert recover(server, "--roll-back", "--json") == 0
    output = json.loads(capsys.readouterr().out)
    assert [entry["label"] for entry in output["labels"]] == ["shop-a1-0-6-2_0", "shop-a2-1-7-3_0"]
    assert [(entry["state"], entry["after"]) for entry in output["labels"]] == [("UNKNOWN", "ABORTED")] * 2
    labels = query(
        server, "SELECT DISTINCT LABEL FROM information_schema.loads WHERE STATE NOT IN ('FINISHED','CANCELLED')"
    )
    assert labels == [("other-a1-0-0-1_0",)]
    assert query(server, "SELECT count(*) FROM shop.items") == [(1,)]
    assert recover(server, "--json") == 0
    assert json.loads(capsys.readouterr().out)["labels"] == []


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--database", "nowhere"], "The database 'nowhere' does not exist"),
        (["--option", "password=x"], "can read a password on the command line"),
        (["--option", "PassWord=x"], "can read a password on the command line"),
        (["--option", "lanes"], "--option lanes has no value"),
        (["--option", "nonsense=1"], "nonsense"),
        (["--job", "no spaces"], "job"),
        (["--query-url", "mysql://127.0.0.1:1", "--deadline", "3"], "Check query_url"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_exit_code_1(
    server: Emulator, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    assert recover(server, *words) == 1
    output = capsys.readouterr().err
    assert text in output
    assert len(output.strip().splitlines()) == 1


def test_a_wrong_password_is_not_shown(
    server: Emulator, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "not-the-one")
    assert recover(server) == 1
    output = capsys.readouterr().err
    assert "not-the-one" not in output
    assert "the user name or the password is wrong" in output


@pytest.mark.parametrize("word", ["--password", "--passwor"])
def test_there_is_no_option_for_a_password_in_the_open(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--query-url", "mysql://h", "--load-url", "http://h", "--database", "d", "--job", "j"]
    with pytest.raises(SystemExit):
        cli.main(["recover", *place, word, "x"])
    capsys.readouterr()
