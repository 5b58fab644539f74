"""Users: who may log in, and which statements a user is denied, as far as clients meet it (wire contract 7.2, 7.3).

The transaction interface asks for a password only: every user may begin, load, commit, and roll back the labels of
others. Users live as long as the process does.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

_NAME = r"['\"`]?(?P<name>[\w.-]+)['\"`]?(?:@['\"`]?%['\"`]?)?"
_CREATE = re.compile(
    rf"CREATE\s+USER\s+(?P<exists>IF\s+NOT\s+EXISTS\s+)?{_NAME}(?:\s+IDENTIFIED\s+BY\s+'(?P<password>[^']*)')?",
    re.IGNORECASE,
)
_DROP = re.compile(rf"DROP\s+USER\s+(?P<exists>IF\s+EXISTS\s+)?{_NAME}", re.IGNORECASE)
_GRANT = re.compile(
    rf"(?P<verb>GRANT|REVOKE)\s+(?P<what>[\w\s,]+?)\s+ON\s+(?P<where>.+?)\s+(?:TO|FROM)\s+(?:USER\s+)?{_NAME}",
    re.IGNORECASE | re.DOTALL,
)
_STATEMENT = re.compile(r"\s*(?:(?:CREATE|DROP)\s+USER|GRANT|REVOKE)\b", re.IGNORECASE)
_EVERYTHING = frozenset({"ALL", "ALL PRIVILEGES"})


class Denied(Exception):
    """A statement that a privilege is missing for; the message is the server's."""


class UserError(Exception):
    """A statement about users that cannot be."""


@dataclass(slots=True)
class _Account:
    password: str
    grants: dict[str, set[str]] = field(default_factory=dict)


class Users:
    """One user who may do everything, and those that statements make. Thread-safe."""

    def __init__(self, name: str, password: str) -> None:
        self._guard = threading.Lock()
        self._first = name
        self._accounts = {name: _Account(password)}

    def knows(self, name: str, password: str) -> bool:
        """Whether the password is this user's; compared in constant time."""
        account = self._accounts.get(name)
        return hmac.compare_digest(password.encode(), (account.password if account else "").encode()) and bool(account)

    def double_hash(self, name: str) -> str | None:
        """The password as MySQL's native method keeps it; empty without a password, None without such a user."""
        account = self._accounts.get(name)
        if account is None:
            return None
        once = hashlib.sha1(account.password.encode()).digest()
        return hashlib.sha1(once).hexdigest() if account.password else ""

    def rights(self, name: str) -> Rights:
        """What a user may do; a name that is not known may do nothing."""
        return Rights(self, name)

    def grants(self, name: str) -> dict[str, set[str]] | None:
        """Privileges by object; None for the user who may do everything."""
        if name == self._first:
            return None
        with self._guard:
            account = self._accounts.get(name, _Account(""))
            return {where: set(privileges) for where, privileges in account.grants.items()}

    def run(self, sql: str) -> None:
        """CREATE USER, DROP USER, GRANT or REVOKE; raises UserError."""
        text = sql.strip().rstrip(";").strip()
        with self._guard:
            if (parts := _CREATE.fullmatch(text)) is not None:
                if parts["name"] not in self._accounts:
                    self._accounts[parts["name"]] = _Account(parts["password"] or "")
                elif not parts["exists"]:
                    raise UserError(f"Operation CREATE USER failed for '{parts['name']}'@'%' : user already exists.")
            elif (parts := _DROP.fullmatch(text)) is not None:
                self._known(parts["name"], missing_is_fine=bool(parts["exists"]))
                self._accounts.pop(parts["name"], None)
            elif (parts := _GRANT.fullmatch(text)) is not None:
                self._change(parts)
            else:
                raise UserError("This statement about users cannot be served by the emulator.")

    def _known(self, name: str, *, missing_is_fine: bool = False) -> _Account:
        account = self._accounts.get(name)
        if account is None and not missing_is_fine:
            raise UserError(f"cannot find user '{name}'@'%'")
        return account or _Account("")

    def _change(self, parts: re.Match[str]) -> None:
        privileges = {" ".join(part.split()).upper() for part in parts["what"].split(",")}
        grants = self._known(parts["name"]).grants
        where = _object(parts["where"])
        if parts["verb"].upper() == "GRANT":
            grants.setdefault(where, set()).update(privileges)
        else:
            grants.get(where, set()).difference_update(privileges)
            if not grants.get(where, True):
                del grants[where]


def is_about_users(sql: str) -> bool:
    """Whether `Users.run` is for the statement, to serve or to refuse it."""
    return _STATEMENT.match(sql) is not None


def _object(text: str) -> str:
    """The object of a GRANT in the server's spelling, such as `TABLE shop.orders`, `DATABASE shop`, `SYSTEM`."""
    where = " ".join(re.sub("[`'\"]", "", text).split())
    for keyword in ("ALL TABLES IN ALL DATABASES", "ALL TABLES IN DATABASE", "ALL DATABASES", "DATABASE", "TABLE"):
        if where.upper().startswith(keyword):
            return keyword + where[len(keyword) :]
    return where.upper() if where.upper() == "SYSTEM" or " " in where else f"TABLE {where}"


@dataclass(frozen=True, slots=True)
class Rights:
    """What one user may do, as of now."""

    users: Users
    name: str

    def allows(self, privileges: Iterable[str], objects: Iterable[str]) -> bool:
        """Whether one of `privileges` is granted on one of `objects`."""
        grants = self.users.grants(self.name)
        sufficient = _EVERYTHING.union(privileges)
        return grants is None or any(grants.get(where, set()) & sufficient for where in objects)

    def sees(self, database: str, table: str | None = None) -> bool:
        """Whether any privilege is granted on the database or something in it, or on the table."""
        grants = self.users.grants(self.name)
        if grants is None:
            return True
        if table is not None:
            return any(where in grants for where in _tables(database, table))
        whole = ("ALL DATABASES", f"DATABASE {database}", *_tables(database, ""))
        return any(where in whole or where.startswith(f"TABLE {database}.") for where in grants)

    def require_system(self, *privileges: str) -> None:
        """Raise Denied unless one of `privileges` is granted on the system."""
        self._require(privileges, ("SYSTEM",), "SYSTEM")

    def require_catalog(self, privilege: str) -> None:
        """Raise Denied unless the privilege is granted on the one catalog."""
        self._require((privilege,), ("CATALOG DEFAULT_CATALOG",), "CATALOG default_catalog")

    def require_database(self, privilege: str, database: str) -> None:
        """Raise Denied unless the privilege is granted on the database, or on all of them."""
        self._require((privilege,), (f"DATABASE {database}", "ALL DATABASES"), f"DATABASE {database}")

    def require_table(self, privilege: str, database: str, table: str) -> None:
        """Raise Denied unless the privilege is granted on the table, on all of its database, or on all."""
        self._require((privilege,), _tables(database, table), f"TABLE {table}")

    def _require(self, privileges: tuple[str, ...], objects: Iterable[str], place: str) -> None:
        if not self.allows(privileges, objects):
            raise Denied(
                f"Access denied; you need (at least one of) the {' OR '.join(privileges)} privilege(s) on {place} for "
                "this operation. Please ask the admin to grant permission(s) or try activating existing roles using "
                "<set [default] role>. Current role(s): NONE. Inactivated role(s): NONE."
            )


def _tables(database: str, table: str) -> tuple[str, ...]:
    return f"TABLE {database}.{table}", f"ALL TABLES IN DATABASE {database}", "ALL TABLES IN ALL DATABASES"
