"""The TLS settings of both ways to a server, HTTP and SQL."""

import ssl
from pathlib import Path

from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options import SinkOptions


def tls_context(options: SinkOptions, kind: type[ssl.SSLContext] = ssl.SSLContext) -> ssl.SSLContext:
    """A context of `kind`: TLS 1.2 or later that checks certificate and host name, unless `tls_verify` is off.

    Raises OptionError if a file of the options is missing or cannot be read.
    """
    context = kind(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        name = "tls_ca"
        if options.tls_ca is not None:
            folder = Path(options.tls_ca).is_dir()
            context.load_verify_locations(**{"capath" if folder else "cafile": options.tls_ca})
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
