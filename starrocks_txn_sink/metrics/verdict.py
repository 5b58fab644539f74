"""The state in one sentence, a light for each row of the dashboard, and readiness. Pure."""

from dataclasses import dataclass
from enum import Enum

from starrocks_txn_sink.clock import ago
from starrocks_txn_sink.metrics.jobs import STEPS, AlterWait, JobState
from starrocks_txn_sink.metrics.model import Model

_MINUTE = 60.0
_RECENTLY = 300.0  # a past failure colours its row for this long
_LAG_LIMIT = 300.0  # rows that have waited longer in the source are yellow
_FULL = 0.8  # of the server's running transactions is yellow
_OUTAGE_LIMIT = 300.0  # a wait for StarRocks is red after this time: rolling upgrades end sooner


class Light(Enum):
    """Colour of a row; NONE means that nothing is known yet."""

    NONE = "none"
    OK = "ok"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class HealthStatus:
    """The state in one sentence, with its light."""

    light: Light
    text: str


@dataclass(frozen=True, slots=True)
class Readiness:
    """`reason` is one sentence, even if the sink is ready."""

    ready: bool
    reason: str


def health_status(model: Model, now: float, limit: float) -> HealthStatus:
    """The most severe statement about the jobs; `limit` is the allowed age of the last progress, in seconds."""
    return _integrity_status(model, now) or _delay_status(model, now, limit) or _calm_status(model, now)


def _delay_status(model: Model, now: float, limit: float) -> HealthStatus | None:
    return (
        _failure_status(model, now, limit)
        or _outage_status(model, now)
        or _alter_status(model, now)
        or _slow_status(model, now)
        or _silence_status(model, now)
        or _lag_status(model, now)
        or _pace_status(model)
        or _room_status(model, now)
    )


def _pace_status(model: Model) -> HealthStatus | None:
    """A job whose rows are visible later than its freshness says."""
    for job in model.jobs:
        if job.pace is not None and job.late_because and not job.ended_at:
            text = f"{job.pace.late:.0%} of the newest rows were visible later than {job.pace.freshness:g} s."
            return _of_job(model, job, Light.WARN, f"{text} {job.late_because}")
    return None


def _room_status(model: Model, now: float) -> HealthStatus | None:
    """A database in which the server will soon refuse transactions. An idle query does not ask, so it ends."""
    for name, (room, measured_at) in model.rooms.items():
        if room is not None and room.running > _FULL * room.limit and now - measured_at < _RECENTLY:
            text = f"{room.running} of {room.limit} transactions are running in database {name}."
            return HealthStatus(Light.WARN, f"{text} At the limit the server refuses new ones.")
    return None


def _integrity_status(model: Model, now: float) -> HealthStatus | None:
    violations = int(model.metrics.total("integrity_violations_total"))
    if violations:
        sentence = f"{_plural(violations, 'integrity violation')}, the last one {ago(now, model.last_violation)} ago"
        return HealthStatus(Light.BAD, f"Data is wrong: {sentence}. Stop the job and investigate.")
    if not model.jobs.in_doubt:
        return None
    since = min(job.doubt_since for job in model.jobs if job.in_doubt)
    count = _plural(model.jobs.in_doubt, "StarRocks transaction")
    text = f"{count} in doubt for {ago(now, since)}: it is unknown whether the commit took effect."
    return HealthStatus(Light.BAD, text)


def _outage_status(model: Model, now: float) -> HealthStatus | None:
    job = min((job for job in model.jobs if job.outage_since), key=lambda job: job.outage_since, default=None)
    if job is None:
        return None
    if job.held:
        text = f"A command (verify or resync) has held the job for {ago(now, job.outage_since)}; it goes on by itself."
        return _of_job(model, job, Light.WARN, text)
    light = Light.BAD if now - job.outage_since > _OUTAGE_LIMIT else Light.WARN
    text = f"Waiting for StarRocks for {ago(now, job.outage_since)} ({job.outage_code}); nothing is lost."
    return _of_job(model, job, light, text)


def _alter_status(model: Model, now: float) -> HealthStatus | None:
    for job in model.jobs:
        if job.longest_alter is not None:
            text = f"Waiting for {_alter_text(job.longest_alter, now)}; nothing is lost."
            return _of_job(model, job, Light.WARN, text)
    return None


def _alter_text(wait: AlterWait, now: float) -> str:
    return f"ALTER of table {wait.table}{f', state {wait.state}' if wait.state else ''}, for {ago(now, wait.since)}"


def _failure_status(model: Model, now: float, limit: float) -> HealthStatus | None:
    """A job that has failed, ended or stands still; a job that waits for StarRocks, or for an ALTER, does not count."""
    jobs = [job for job in model.jobs if not (job.outage_since or job.alters)]
    failed = max((job for job in jobs if job.failed_at), key=lambda job: job.failed_at, default=None)
    if failed is not None:
        text = f"The last micro-batch failed {ago(now, failed.failed_at)} ago ({failed.failed_code})"
        return _of_job(model, failed, Light.BAD, f"{text}; {_last_commit(failed, now)}.")
    end = next((job for job in jobs if job.ended_code), None)
    if end is not None:
        return _of_job(model, end, Light.BAD, f"The query ended {ago(now, end.ended_at)} ago ({end.ended_code}).")
    for job in jobs:
        if job.stale(now, limit):
            text = f"No progress for {ago(now, job.last_progress or job.first_seen)}"
            busy = f"; a micro-batch has been running for {ago(now, job.running_since)}" if job.running_since else ""
            return _of_job(model, job, Light.BAD, f"{text}{busy}{_step_text(job, now)}.")
    return None


def _slow_status(model: Model, now: float) -> HealthStatus | None:
    job = min((job for job in model.jobs if job.slow(now)), key=lambda job: job.running_since, default=None)
    if job is None:
        return None
    usual = f", usually {ago(job.usual_seconds, 0.0)}" if job.batch_seconds else ""
    waiting = sum(lag.rows for lag in model.source_lags.get(job.query, {}).values())
    rows = f"; {_plural(waiting, 'row')} wait{'s' if waiting == 1 else ''} in the source" if waiting else ""
    running = f"A micro-batch has been running for {ago(now, job.running_since)}{usual}{_step_text(job, now)}"
    text = f"{running}; {_last_commit(job, now)}{rows}."
    return _of_job(model, job, Light.WARN, text)


def _silence_status(model: Model, now: float) -> HealthStatus | None:
    """A source that does not answer any more: Spark waits for it, and has no micro-batch that could fail."""
    for job in model.jobs:
        if (since := model.silent_sources.get(job.query)) is not None:
            text = f"The source's brokers have not answered for {ago(now, since)}; {_last_commit(job, now)}."
            return _of_job(model, job, Light.WARN, text)
    return None


def _lag_status(model: Model, now: float) -> HealthStatus | None:
    late = [
        (job, source, lag)
        for job in model.jobs
        for source, lag in model.source_lags.get(job.query, {}).items()
        if lag.seconds > _LAG_LIMIT and not job.ended_at
    ]
    if not late:
        return None
    job, source, lag = max(late, key=lambda late_job: late_job[2].seconds)
    rows = f"{_plural(lag.rows, 'row')} of {source} wait{'s' if lag.rows == 1 else ''}"
    text = f"{rows}, the oldest one for {ago(lag.seconds, 0.0)}; {_last_commit(job, now)}."
    return _of_job(model, job, Light.WARN, text)


def _calm_status(model: Model, now: float) -> HealthStatus:
    if not len(model.jobs):
        return HealthStatus(Light.NONE, f"Waiting for the first micro-batch for {ago(now, model.history.started)}.")
    last = max(job.last_commit for job in model.jobs)
    if all(job.ended_at for job in model.jobs):
        text = f"The query was stopped; last committed {ago(now, last)} ago; nothing in doubt."
        return HealthStatus(Light.NONE, text)
    if not last:
        return HealthStatus(Light.NONE, "No commit yet; nothing in doubt.")
    text = f"Committed {ago(now, last)} ago; nothing in doubt"
    if all(job.idle for job in model.jobs):
        return HealthStatus(Light.OK, f"{text}; the source is quiet.")
    recent = model.history.since(now - _MINUTE).counts
    if recent["failed"] or recent["aborted"]:
        repeated = _plural(recent["aborted"] or recent["failed"], "attempt")
        return HealthStatus(Light.WARN, f"{text}; {repeated} failed in the last minute and succeeded later.")
    return HealthStatus(Light.OK, f"{text}.")


def readiness(model: Model, now: float, limit: float) -> Readiness:
    """Ready if each job made progress (a commit or an idle report) within `limit` seconds and nothing is in doubt."""
    if model.jobs.in_doubt:
        return Readiness(False, f"{_plural(model.jobs.in_doubt, 'StarRocks transaction')} in doubt.")
    if not len(model.jobs):
        return Readiness(False, "No micro-batch has started yet.")
    for job in model.jobs:
        if job.outage_since:
            what = "is held by a command" if job.held else "waits for StarRocks"
            return Readiness(False, f"Job {job.name} {what} for {ago(now, job.outage_since)}.")
        if job.ended_at and (job.ended_code or not any(job.should_progress for job in model.jobs)):
            return Readiness(False, f"The query of job {job.name} has ended.")
        if not job.last_progress:
            return Readiness(False, f"Job {job.name} has not finished a micro-batch yet.")
        if job.stale(now, limit):
            if job.longest_alter is not None:
                return Readiness(False, f"Job {job.name} waits for {_alter_text(job.longest_alter, now)}.")
            last = f"Job {job.name} made its last progress {ago(now, job.last_progress)} ago{_step_text(job, now)}"
            return Readiness(False, f"{last}; the limit is {limit:g} s.")
    silence = _silence_status(model, now)
    if silence is not None:
        return Readiness(True, silence.text)
    return Readiness(True, "Every job makes progress, and nothing is in doubt.")


def lights(model: Model, now: float, limit: float) -> dict[str, Light]:
    """Light of each row of the dashboard, in order."""
    recent = model.history.since(now - _RECENTLY)
    metrics = model.metrics
    wrong = metrics.total("integrity_violations_total") or model.jobs.in_doubt
    delay = _delay_status(model, now, limit)
    age = metrics.value("transaction_age_ratio")
    limit_bytes = metrics.value("buffer_limit_bytes")
    full = metrics.value("buffer_bytes") / limit_bytes if limit_bytes else 0.0
    failing = any(job.failed_at for job in model.jobs)
    waiting = any(job.outage_since and not job.held for job in model.jobs)
    lights = {
        "right": Light.BAD if wrong else _warn(metrics.total("dead_letter_rows_total") or _unequal(model)),
        "fresh": Light.OK if delay is None else delay.light,
        "flow": Light.OK,
        "anatomy": Light.BAD if failing else _warn(recent.counts["aborted"]),
        "assembler": _warn(
            metrics.value("source_transactions_total", "dropped")
            or metrics.value("repeated_events_total", "unknown")
            or metrics.value("repeated_events_total", "late")
            or metrics.value("malformed_messages_total")
        ),
        "saturation": Light.BAD if age >= 0.8 else _warn(full >= 0.9 or age >= 0.5),
        "errors": Light.BAD if failing else _warn(waiting or recent.counts["errors"] or recent.counts["dead_letters"]),
        "partitions": Light.OK,
    }
    if any(job.last_progress or job.failed_at for job in model.jobs):
        return lights
    return {name: light if light is Light.BAD else Light.NONE for name, light in lights.items()}


def _unequal(model: Model) -> bool:
    return any(verdict.different for verdict in model.verified.values())


def _warn(condition: object) -> Light:
    return Light.WARN if condition else Light.OK


def _of_job(model: Model, job: JobState, light: Light, text: str) -> HealthStatus:
    """A statement about one job, which names it if there are several."""
    return HealthStatus(light, f"{job.name}: {text}" if len(model.jobs) > 1 else text)


def _last_commit(job: JobState, now: float) -> str:
    return f"last committed {ago(now, job.last_commit)} ago" if job.last_commit else "no commit yet"


def _step_text(job: JobState, now: float) -> str:
    return f", {STEPS[job.step.name]} for {ago(now, job.step.since)}" if job.step is not None else ""


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
