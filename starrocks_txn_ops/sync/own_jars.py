"""The archives of Spark's Kafka source, as an earlier start of `sync` has found them.

For `spark.jars.packages` the JVM asks Ivy before Spark starts, also where all files are on this machine. So what Ivy
has found once is kept in Python's environment, as the class archive is, and later starts name the files themselves.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

FOLDER: Final = Path(sys.prefix, "share", "starrocks-txn-sink")
JARS, PACKAGES = "spark.jars", "spark.jars.packages"
_SCHEME: Final = "file:"


def kept(settings: Mapping[str, object]) -> str:
    """The files of the packages of `settings`, for `spark.jars`; empty if they are not known, or one is gone."""
    with suppress(OSError, ValueError):
        jars: list[str] = json.loads(_list_of(settings).read_text("utf-8"))
        if jars and all(_path(jar).is_file() for jar in jars):
            return ",".join(jars)
    return ""


def keep(settings: Mapping[str, object], jars: str) -> None:
    """Keep `jars`, which Spark has had for the packages of `settings`; never raises.

    Not if they come from several folders: some are then not Ivy's, but those of the user's defaults.
    """
    found = [jar for jar in jars.split(",") if jar]
    if not found or len({_path(jar).parent for jar in found}) > 1 or not all(jar.startswith(_SCHEME) for jar in found):
        return
    with suppress(OSError):
        file = _list_of(settings)
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{secrets.token_hex(8)}")
        unfinished.write_text(json.dumps(found), "utf-8")
        unfinished.replace(file)


def _path(jar: str) -> Path:
    return Path("/" + jar.removeprefix(_SCHEME).lstrip("/"))


def _list_of(settings: Mapping[str, object]) -> Path:
    """The file for the packages as they are looked for: all that says where, and what else has archives."""
    from starrocks_txn_sink.class_archive import conf_folder

    where = {name: str(value) for name, value in settings.items() if name.startswith(JARS)}
    try:
        defaults = (conf_folder() / "spark-defaults.conf").read_bytes()
    except OSError:
        defaults = b""
    content = json.dumps([where, os.environ.get("PYSPARK_SUBMIT_ARGS", "")], sort_keys=True).encode() + defaults
    return FOLDER / f"jars-{hashlib.sha256(content).hexdigest()[:12]}.json"
