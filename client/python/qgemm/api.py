"""Messages and methods of the public API, from the descriptor set that the package's build made of proto/qgemm/v1.

    request = api.message("TuneRequest")(m=[1, 16])
    method = api.method("Tuner", "Tune")     # its path, its classes, and whether it streams

The descriptors live in a pool of their own: another package that knows an API of the same name is not disturbed.
"""

import dataclasses
import functools
import importlib.resources

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "qgemm.v1"


@dataclasses.dataclass(frozen=True)
class Method:
    path: str
    request: type
    response: type
    streams: bool


@functools.lru_cache(maxsize=None)
def _pool():
    file = importlib.resources.files("qgemm") / "api.binpb"
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise ImportError(
            "qgemm/api.binpb is missing: this folder is source code, install it with `pip install client/python` or "
            "build the CMake target qgemm_python"
        ) from None
    pool = descriptor_pool.DescriptorPool()
    for proto in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.Add(proto)
    return pool


@functools.lru_cache(maxsize=None)
def message(name):
    """The class of a message of the package, "TuneRequest"."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{PACKAGE}.{name}"))


@functools.lru_cache(maxsize=None)
def enum_values(name):
    """{name: number} of an enumeration of the package."""
    return {value.name: value.number for value in _pool().FindEnumTypeByName(f"{PACKAGE}.{name}").values}


@functools.lru_cache(maxsize=None)
def method(service, name):
    found = _pool().FindServiceByName(f"{PACKAGE}.{service}").FindMethodByName(name)
    proto = descriptor_pb2.MethodDescriptorProto()
    found.CopyToProto(proto)
    return Method(
        f"/{PACKAGE}.{service}/{name}",
        message_factory.GetMessageClass(found.input_type),
        message_factory.GetMessageClass(found.output_type),
        proto.server_streaming,
    )
