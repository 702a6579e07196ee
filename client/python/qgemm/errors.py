"""What can go wrong, by what the caller should do about it. Each message is one sentence."""

import grpc

from qgemm import security


class QgemmError(Exception):
    """Base of all; `code` is gRPC's name of the status, "INVALID_ARGUMENT"; `retry_after_s`: the daemon's word when to
    come again, or None."""

    code = "UNKNOWN"
    retry_after_s = None


class InvalidRequest(QgemmError, ValueError):
    """Fix the request: the message names the field, its value and what is allowed."""

    code = "INVALID_ARGUMENT"


class Unavailable(QgemmError, ConnectionError):
    """No daemon answers there, or it cannot serve now: try later. Was tried again already (`Retry`)."""

    code = "UNAVAILABLE"


class DeadlineExceeded(QgemmError, TimeoutError):
    """No answer within the call's time-out."""

    code = "DEADLINE_EXCEEDED"


class NotFound(QgemmError, LookupError):
    """The daemon has no such thing."""

    code = "NOT_FOUND"


class FailedPrecondition(QgemmError):
    """Fix the daemon's state first: the message says which."""

    code = "FAILED_PRECONDITION"


class ResourceExhausted(QgemmError):
    """A quota is used up or a disk is full."""

    code = "RESOURCE_EXHAUSTED"


class DataLoss(QgemmError):
    """Bytes are not what their digest says."""

    code = "DATA_LOSS"


class Cancelled(QgemmError):
    code = "CANCELLED"


class Unauthenticated(QgemmError):
    """The daemon wants a token or a certificate."""

    code = "UNAUTHENTICATED"


class PermissionDenied(QgemmError):
    code = "PERMISSION_DENIED"


class Unimplemented(QgemmError):
    """The daemon is of another version."""

    code = "UNIMPLEMENTED"


class TuneFailed(QgemmError):
    """Some problem got no pick: `results` holds those that did and the reasons of the others."""

    code = "ABORTED"

    def __init__(self, message, results):
        super().__init__(message)
        self.results = results


_BY_CODE = {
    kind.code: kind
    for kind in (
        InvalidRequest, Unavailable, DeadlineExceeded, NotFound, FailedPrecondition, ResourceExhausted, DataLoss,
        Cancelled, Unauthenticated, PermissionDenied, Unimplemented,
    )
}  # fmt: skip


def from_rpc(error, server):
    """The error of a failed call; `error` is a grpc.RpcError (sync or asyncio), `server` the address called."""
    code, details = error.code(), (error.details() or "").strip()
    name = code.name if isinstance(code, grpc.StatusCode) else str(code)
    if name == "UNAVAILABLE" and _is_unreachable(details):
        hint = "" if server.startswith("unix:") else security.hint(details)
        return Unavailable(
            f"cannot reach qgemmd at {server}{hint or ': start one with `qgemmd`, or set QGEMM_SERVER'}"
        )
    if name == "DEADLINE_EXCEEDED" and details.startswith("Deadline Exceeded"):  # gRPC's words, not the daemon's
        return DeadlineExceeded(f"qgemmd at {server} did not answer within the deadline: raise the call's timeout")
    if name == "UNIMPLEMENTED":
        return Unimplemented(f"qgemmd at {server} does not know this call: it is of another version than this client")
    kind = _BY_CODE.get(name, QgemmError)
    made = kind(details or f"qgemmd at {server} answered {name} without a reason")
    made.code, made.retry_after_s = name, _pushback_s(error)
    return made


def _pushback_s(error):
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-retry-pushback-ms" and str(value).isdigit():
            return int(value) / 1000
    return None


def _is_unreachable(details):
    """Whether gRPC itself, and not a daemon, said UNAVAILABLE."""
    words = ("failed to connect", "Failed to connect", "Socket closed", "Connection", "connection", "No such file",
             "DNS resolution", "GOAWAY", "recvmsg", "RST_STREAM", "empty address list")  # fmt: skip
    return not details or any(word in details for word in words)
