"""What a client shows of itself and asks of a daemon: tokens and TLS. As in the C++ client."""

import os
import socket

import grpc

_LOOPBACK = ("localhost:", "127.", "[::1]:")


def default_client_id():
    """QGEMM_CLIENT_ID, else user@host: who a client is to a daemon that asks for no proof."""
    name = os.environ.get("QGEMM_CLIENT_ID")
    if not name:
        user = os.environ.get("USER") or f"uid-{os.geteuid()}"
        name = f"{user}@{socket.gethostname()}"
    return "".join(c if " " <= c <= "~" else "?" for c in name)[:128]


def _read(name, path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ValueError(f"{name}: {path} cannot be read: {error.strerror}") from error


def token_of(token):
    """The token itself, else QGEMM_TOKEN, else what the file QGEMM_TOKEN_FILE holds, else ""."""
    token = token or os.environ.get("QGEMM_TOKEN")
    path = os.environ.get("QGEMM_TOKEN_FILE")
    if not token and path:
        token = _read("QGEMM_TOKEN_FILE", path).decode("ascii", "replace")
    token = (token or "").strip()
    if not all("!" <= c <= "~" for c in token):
        raise ValueError("the token is not one word of printable ASCII characters")
    return token


def metadata(client_id, token):
    """Of every call."""
    sent = [("client_id", client_id or default_client_id())]
    if token_of(token):
        sent.append(("authorization", f"Bearer {token_of(token)}"))
    return tuple(sent)


def channel_credentials(address, tls_ca=None, tls_cert=None, tls_key=None):
    """grpc.ChannelCredentials for the PEM files, else of QGEMM_TLS_CA, QGEMM_TLS_CERT and QGEMM_TLS_KEY; None: the
    connection is not encrypted, as over a unix socket, and to this machine where nothing asks for it."""
    tls_ca = tls_ca or os.environ.get("QGEMM_TLS_CA")
    if not (tls_cert or tls_key):
        tls_cert, tls_key = os.environ.get("QGEMM_TLS_CERT"), os.environ.get("QGEMM_TLS_KEY")
    if bool(tls_cert) != bool(tls_key):
        raise ValueError("tls_cert and tls_key are needed together")
    if address.startswith("unix:") or (address.startswith(_LOOPBACK) and not (tls_ca or tls_cert)):
        return None
    return grpc.ssl_channel_credentials(
        root_certificates=_read("tls_ca", tls_ca) if tls_ca else None,
        private_key=_read("tls_key", tls_key) if tls_key else None,
        certificate_chain=_read("tls_cert", tls_cert) if tls_cert else None,
    )


def open_channel(module, address, credentials, options):
    """`module`: grpc or grpc.aio."""
    if credentials is None:
        return module.insecure_channel(address, options=options)
    return module.secure_channel(address, credentials, options=options)


def hint(details):
    """What gRPC's words about a failed connection say about TLS, as the end of a sentence; "" for nothing."""
    words = details.lower()
    if "refused" in words or "no such file" in words:
        return ""
    if "wrong version number" in words or "wrong_version_number" in words:
        return "; it speaks no TLS there: leave the tls_ arguments out"
    if "certificate verify failed" in words or "certificate_verify_failed" in words:
        return "; its certificate has expired or is not signed by tls_ca (QGEMM_TLS_CA)"
    if "peer name" in words or "hostname verification" in words:
        return "; its certificate is for another host name"
    if "socket closed" in words or "connection reset" in words or "handshake" in words or "broken pipe" in words:
        return "; over TCP it may ask for TLS (tls_ca) or a client certificate (tls_cert, tls_key)"
    return ""
