"""One login at one query port: the socket, TLS, and the rules for the password.

Without TLS, the password leaves only as an answer to a challenge (`mysql_native_password`). A server that asks for it
in another way is refused: PyMySQL would send it in clear, or encrypted with a key that this server chose.
"""

import socket
import ssl
from typing import Any

from pymysql.connections import Connection
from pymysql.constants import CLIENT

from starrocks_txn_sink.errors import OptionError, QueryRefused
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.addresses import Address

CHALLENGE = "mysql_native_password"
"""The only authentication without TLS: the client answers a random challenge, and the answer hides the password."""


def dial(address: Address, seconds: float) -> socket.socket:
    """Connect to an address within `seconds`; raises OSError."""
    connected = socket.create_connection((address.host, address.port), seconds)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return connected


def login(options: SinkOptions, address: Address) -> dict[str, Any]:
    """Arguments of the driver. Reads the password again; raises OptionError if it or a TLS file cannot be read."""
    secure: dict[str, Any] = {"ssl": _tls_context(options)} if options.query_tls else {"ssl_disabled": True}
    return {
        "host": address.host,
        "port": address.port,
        "user": options.username,
        "password": options.read_password().encode(),  # UTF-8 as in HTTP; the driver would take latin-1
        "autocommit": True,
        "defer_connect": True,
        "auth_plugin_map": None if options.query_tls else _ChallengeOnly(),
        **secure,
    }


class Driver(Connection):
    """PyMySQL's connection, with the rules for the password applied to the greeting, before anything is sent."""

    server_capabilities: int
    greeted = False
    """Whether a server has spoken, as MySQL's does first."""

    def _get_server_information(self) -> None:
        super()._get_server_information()  # type: ignore[misc]
        self.greeted = True
        if not self.ssl:
            self._auth_plugin_name = CHALLENGE
        elif not self.server_capabilities & CLIENT.SSL:
            raise QueryRefused(
                "The query port offers no TLS, and the password was not sent.",
                hint="Give the frontends a certificate (ssl_keystore_location), or set query_tls=False inside a "
                "trusted network.",
                place=f"{self.host}:{self.port}",
            )


class _ChallengeOnly(dict[Any, Any]):
    """Maps every authentication plugin but CHALLENGE to `_Refusing`."""

    def __init__(self) -> None:
        super().__init__(all_others=_Refusing)  # PyMySQL replaces an empty map

    def get(self, plugin: Any, default: Any = None) -> Any:
        name = plugin.decode("ascii", "replace") if isinstance(plugin, bytes) else plugin
        return default if name in ("", CHALLENGE) else _Refusing


class _Refusing:
    """Refuses to answer a server that asks for the password in clear, or encrypted with the server's key."""

    def __init__(self, driver: Driver) -> None:
        self._place = f"{driver.host}:{driver.port}"

    def authenticate(self, _: object) -> None:
        raise QueryRefused(
            "The query port asks for the password itself on a connection without TLS; it was not sent.",
            hint="Set query_tls=True, or give the user mysql_native_password.",
            place=self._place,
        )


class _TlsContext(ssl.SSLContext):
    def wrap_socket(  # type: ignore[override]
        self, bounded: Any, *_: Any, server_hostname: Any = None, **__: Any
    ) -> Any:
        bounded.start_tls(super().wrap_socket, server_hostname)
        return bounded


def _tls_context(options: SinkOptions) -> ssl.SSLContext:
    """TLS 1.2 or later that checks certificate and host name, unless `tls_verify` is off."""
    context = _TlsContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        name = "tls_ca"
        if options.tls_ca is not None:
            context.load_verify_locations(cafile=options.tls_ca)
        elif options.tls_verify:
            context.load_default_certs()
        name = "tls_certificate"
        if options.tls_certificate is not None:
            context.load_cert_chain(options.tls_certificate, options.tls_key)
    except OSError as error:
        raise OptionError(
            f"{name} cannot be read ({type(error).__name__}).",
            hint="Put its files, in PEM, on the driver and on every executor.",
            option=name,
        ) from None
    if not options.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
