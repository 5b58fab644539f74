"""Which frontend to ask first: the one that last answered as leader, then the configured ones in their order."""

from __future__ import annotations

from threading import Lock

from starrocks_txn_sink.options.addresses import Address


class Frontends:
    """The configured addresses and the leader, as far as known. Shared by all threads of a transport."""

    def __init__(self, configured: tuple[Address, ...]) -> None:
        self._configured = configured
        self._leader: Address | None = None
        self._lock = Lock()

    def in_order(self) -> tuple[Address, ...]:
        with self._lock:
            leader = self._leader
        first = () if leader is None else (leader,)
        return (*first, *(address for address in self._configured if address != leader))

    def includes(self, address: Address) -> bool:
        """Whether `address` is surely a frontend, not a backend."""
        with self._lock:
            return address in self._configured or address == self._leader

    def found_leader(self, address: Address) -> None:
        with self._lock:
            self._leader = address

    def lost(self, address: Address) -> None:
        """Forget `address` as the leader, because it could not be reached or passed a request on."""
        with self._lock:
            if self._leader == address:
                self._leader = None
