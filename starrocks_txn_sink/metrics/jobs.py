"""What is known of each job that the endpoint serves: when it last got anything done, and how it stands now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MAX_JOBS = 100
"""Jobs that are remembered; the one that was heard of longest ago gives way."""


@dataclass(slots=True)
class JobStatus:
    """One job. Times are seconds since the Unix epoch, 0 for never; `failed_at` is 0 again after a good micro-batch.

    `query` is the streaming query's id, empty for a batch write, which nobody expects to go on.
    """

    name: str
    first_seen: float
    query: str = ""
    last_commit: float = 0.0
    last_progress: float = 0.0
    last_batch_id: int = -1
    idle: bool = False
    running_since: float = 0.0
    lanes: int = 0
    failed_at: float = 0.0
    failed_code: str = ""
    failures: int = 0
    in_doubt: int = 0
    doubt_since: float = 0.0
    ended_at: float = 0.0
    ended_code: str = ""

    @property
    def should_progress(self) -> bool:
        """Whether it is to go on: a query that was not stopped, or a batch write while it runs."""
        if self.ended_at:
            return bool(self.ended_code)
        return bool(self.query or self.running_since)

    def stale(self, now: float, limit: float) -> bool:
        """Whether it should have got something done and did not."""
        return self.should_progress and not self.ended_at and now - (self.last_progress or self.first_seen) > limit


class JobStatuses:
    """Jobs by name. For one thread at a time."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobStatus] = {}

    def touch(self, name: str, now: float) -> JobStatus:
        """The job, which has just been heard of."""
        job = self._jobs.pop(name, None) or JobStatus(name, now)
        self._jobs[name] = job
        if len(self._jobs) > MAX_JOBS:
            del self._jobs[next(iter(self._jobs))]
        return job

    def for_query(self, query: str) -> JobStatus | None:
        """The job that a streaming query writes, if it is one of ours."""
        return next((job for job in self if job.query == query), None) if query else None

    def __iter__(self) -> Iterator[JobStatus]:
        return iter(self._jobs.values())

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def in_doubt(self) -> int:
        return sum(job.in_doubt for job in self)

    def oldest_commit(self) -> float:
        """The oldest last commit of the jobs that are to go on, 0 while one has none; else the newest of all."""
        newest = max((job.last_commit for job in self), default=0.0)
        return min((job.last_commit for job in self if job.should_progress), default=newest)

    def oldest_progress(self) -> float:
        """The oldest last progress of the jobs that are to go on; 0 when there is no such job, or one has none."""
        return min((job.last_progress for job in self if job.should_progress), default=0.0)
