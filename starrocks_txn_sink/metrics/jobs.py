"""State of each job that the endpoint serves: last commit, last progress, failures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MAX_JOBS = 100
"""Jobs at most; the job without events for the longest time is dropped."""


@dataclass(slots=True)
class JobStatus:
    """State of one job. Times are seconds since the Unix epoch, 0 for never; a success resets `failed_at` to 0.

    `query` is the streaming query's id, '' for a batch write.
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
        """Whether the job is expected to continue: a query that was not stopped, or a batch write while it runs."""
        if self.ended_at:
            return bool(self.ended_code)
        return bool(self.query or self.running_since)

    def stale(self, now: float, limit: float) -> bool:
        """Whether an expected job has made no progress for more than `limit` seconds."""
        return self.should_progress and not self.ended_at and now - (self.last_progress or self.first_seen) > limit


class JobStatuses:
    """Jobs by name. Not thread-safe."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobStatus] = {}

    def touch(self, name: str, now: float) -> JobStatus:
        """The job, created if unknown; marks it as the most recent one."""
        job = self._jobs.pop(name, None) or JobStatus(name, now)
        self._jobs[name] = job
        if len(self._jobs) > MAX_JOBS:
            del self._jobs[next(iter(self._jobs))]
        return job

    def for_query(self, query: str) -> JobStatus | None:
        """The job of a streaming query; None if the query does not use the sink."""
        return next((job for job in self if job.query == query), None) if query else None

    def __iter__(self) -> Iterator[JobStatus]:
        return iter(self._jobs.values())

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def in_doubt(self) -> int:
        return sum(job.in_doubt for job in self)

    def oldest_commit(self) -> float:
        """Oldest `last_commit` of the jobs expected to continue (0 if one has none); without such jobs the newest."""
        newest = max((job.last_commit for job in self), default=0.0)
        return min((job.last_commit for job in self if job.should_progress), default=newest)

    def oldest_progress(self) -> float:
        """Oldest `last_progress` of the jobs expected to continue; 0 without such a job, or if one has none."""
        return min((job.last_progress for job in self if job.should_progress), default=0.0)
