"""Texts of dates and times: as the server reads them, in another spelling, or as instants in the job's zone."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta, timezone, tzinfo
from typing import Final

_PLAIN_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_PLAIN_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?", re.ASCII)
_TEXT: Final = re.compile(
    r" *(?P<year>\d{4})(?:(?P<mark>[-/])(?P<month>\d{1,2})(?P=mark)(?P<day>\d{1,2})|(?P<compact>\d{4}))"
    r"(?:[ T](?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d{1,30}))?)?)?"
    r" ?(?P<zone>Z|UTC|[+-]\d\d(?::?\d\d)?)? *",
    re.ASCII,
)
_FIRST_LEAP_YEAR: Final = 4  # Python's calendar begins with the year 1, and the server keeps days of the year 0 as well


class NoTime(ValueError):
    """The end of a sentence: what is wrong with a text."""


def plain_date(text: str, zone: tzinfo | None) -> str:
    """The date as YYYY-MM-DD; raises NoTime for one with a time of the day, or none."""
    if _PLAIN_DATE.fullmatch(text):
        _check(int(text[:4]), int(text[5:7]), int(text[8:]))
        return text
    moment = _moment(text, zone)
    if moment[10:] not in ("", " 00:00:00"):
        raise NoTime("has a time of the day, which a DATE loses")
    return moment[:10]


def plain_time(text: str, zone: tzinfo | None) -> str:
    """The date, and its time if it has one, without a zone; raises NoTime."""
    if _PLAIN_DATE.fullmatch(text) or _PLAIN_TIME.fullmatch(text):
        _check(int(text[:4]), int(text[5:7]), int(text[8:10]))
        if text[11:13] > "23" or text[14:16] > "59" or text[17:19] > "59":
            raise NoTime("has a time of the day that does not exist")
        return text
    return _moment(text, zone)


def _moment(text: str, zone: tzinfo | None) -> str:
    match = _TEXT.fullmatch(text)
    if match is None:
        raise NoTime("is no date or time of the years 0 to 9999, with four digits for the year")
    compact = match["compact"] or ""
    year, month, day = int(match["year"]), int(match["month"] or compact[:2]), int(match["day"] or compact[2:])
    _check(year, month, day)
    if match["hour"] is None:
        if match["zone"] not in (None, "Z", "UTC"):
            raise NoTime("is a date with the offset of a zone, and the day there may be another one")
        return f"{year:04}-{month:02}-{day:02}"
    hour, minute, second = (int(match[name] or 0) for name in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 59:
        raise NoTime("has a time of the day that does not exist")
    fraction = (match["fraction"] or "").rstrip("0")
    if len(fraction) > 6:
        raise NoTime("has more than six decimals of a second, which a DATETIME loses")
    if match["zone"] is not None:
        year, month, day, hour, minute, second = _in_zone((year, month, day, hour, minute, second), match["zone"], zone)
    clock = f"{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}"
    return f"{clock}.{fraction.ljust(6, '0')}" if fraction else clock


def _in_zone(moment: tuple[int, ...], name: str, zone: tzinfo | None) -> tuple[int, ...]:
    """The same instant in the job's zone, UTC without one."""
    if name in ("Z", "UTC") and zone is None:
        return moment
    offset = timedelta()
    if name not in ("Z", "UTC"):
        hours, minutes = int(name[1:3]), int(name[-2:]) if len(name) > 3 else 0
        if hours > 18 or minutes > 59:
            raise NoTime("has an offset that no zone has")
        offset = timedelta(hours=hours, minutes=minutes) * (-1 if name[0] == "-" else 1)
    try:
        instant = datetime(*moment, tzinfo=timezone(offset))  # type: ignore[arg-type,misc]
        return instant.astimezone(zone or timezone.utc).timetuple()[:6]
    except (ValueError, OverflowError):
        raise NoTime("is outside of the years 1 to 9999 in the zone of the column") from None


def _check(year: int, month: int, day: int) -> None:
    try:
        date(year or _FIRST_LEAP_YEAR - 1, month, day)
    except ValueError:
        raise NoTime("is a day that does not exist") from None
