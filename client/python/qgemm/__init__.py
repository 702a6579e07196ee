"""Client of qgemmd: tuned kernels for quantized matrix products. README.md beside this package tells how to use it."""

import importlib

from qgemm.aio import AsyncClient
from qgemm.buckets import LADDER, bucket_for
from qgemm.client import Client
from qgemm.errors import (
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    QgemmError,
    ResourceExhausted,
    TuneFailed,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from qgemm.results import TuneResults
from qgemm.retry import Retry
from qgemm.types import (
    CacheStats,
    DeviceInfo,
    Job,
    Kernel,
    KernelInfo,
    LaunchSpec,
    Pick,
    Problem,
    TuneProgress,
    TuneResult,
    TuneSummary,
    WeightFormat,
)

__version__ = "0.1.0"

_MODULES = ("access", "bundle", "errors", "importers", "packing", "torch", "weight_store")


def __getattr__(name):
    # qgemm.packing and the others are there after `import qgemm` alone; each is loaded when it is first asked for.
    if name in _MODULES:
        return importlib.import_module(f"qgemm.{name}")
    raise AttributeError(f"module 'qgemm' has no attribute {name!r}")


__all__ = [
    "AsyncClient",
    "CacheStats",
    "Cancelled",
    "Client",
    "DataLoss",
    "DeadlineExceeded",
    "DeviceInfo",
    "FailedPrecondition",
    "InvalidRequest",
    "Job",
    "Kernel",
    "KernelInfo",
    "LADDER",
    "LaunchSpec",
    "NotFound",
    "PermissionDenied",
    "Pick",
    "Problem",
    "QgemmError",
    "ResourceExhausted",
    "Retry",
    "TuneFailed",
    "TuneProgress",
    "TuneResult",
    "TuneResults",
    "TuneSummary",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "WeightFormat",
    "bucket_for",
]
