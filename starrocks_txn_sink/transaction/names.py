"""Labels: `{job}-{epoch}-{lane}-{batch}-{n}`, unique and never reused (design section 5, contract section 7).

`epoch` tells the driver's runs apart, `n` the tries inside one batch of one lane. In multi-table mode a label that was
rolled back cannot be begun again while the server remembers it, so every try gets a new one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from starrocks_txn_sink.errors import OptionError

LABEL = re.compile(r"^[-\w]{1,128}$", re.ASCII)


def label_prefix(job: str) -> str:
    """What all labels of a job begin with; recovery lists unfinished labels by it."""
    return f"{job}-"


def labels(job: str, epoch: str, lane: int, batch: int, attempt: int) -> Iterator[str]:
    """Yield this lane's labels for one batch, a new one for every try; `attempt` is unique to the Spark task's try.

    Raises OptionError when the parts cannot make a label.
    """
    for counter in itertools.count():
        label = f"{job}-{epoch}-{lane}-{batch}-{attempt}_{counter}"
        if not LABEL.match(label):
            raise OptionError(
                f"The label {label!r} is not allowed: 1 to 128 characters of letters, digits, '_' and '-'.",
                hint="Shorten `job`, or take other characters.",
            )
        yield label
