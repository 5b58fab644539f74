"""The requests of the recordings, put to a real server: `make record` writes its answers for the project."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.starrocks import StarRocks
from tests.support.judgement import write_judgements
from tests.support.recordings import Place, read, record_again, recordings, records, write


@pytest.mark.parametrize("path", recordings(), ids=lambda path: path.stem)
@pytest.mark.timeout(1200)  # the recordings of clocks wait for them
def test_the_server_is_recorded(path: Path, request: pytest.FixtureRequest) -> None:
    folder = request.config.getoption("record", default=None)
    if folder is None:
        pytest.skip("Nothing is recorded without --record.")
    if all("needs" in scene for scene in read(path)["scenes"]):
        pytest.skip("Each scene of it needs a person's hand.")
    server: StarRocks = request.getfixturevalue("real_starrocks")
    place = Place(server.load_url, server.query_url, server.rewrites)
    document = record_again(read(path), place, f"StarRocks {server.version}", "real")
    file = Path(str(folder)) / f"real-{server.version.partition('-')[0]}" / path.name
    write(file, document)
    write_judgements(file)
    assert all("answer" in record for _, record in records(document))
