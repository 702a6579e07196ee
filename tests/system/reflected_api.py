"""The gRPC API of a server, learnt from the server alone by reflection: no generated code, no .proto files.

    api = ReflectedApi("unix:/run/qgemm/qgemm.sock")
    api.services()                                          # ["grpc.health.v1.Health", "qgemm.v1.Cache", ...]
    answer = api.call("qgemm.v1.Device", "Describe", {})    # messages are dictionaries, as protobuf's JSON mapping
    for event in api.stream("qgemm.v1.Tuner", "Tune", {...}):
"""

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase


class ReflectedApi:
    def __init__(self, server):
        # A daemon is addressed directly, whatever http_proxy says.
        options = [
            ("grpc.enable_http_proxy", 0),
            ("grpc.max_receive_message_length", 64 << 20),
            ("grpc.initial_reconnect_backoff_ms", 100),
        ]
        self.channel = grpc.insecure_channel(server, options)
        # Also a daemon that was started a moment ago and does not listen yet.
        grpc.channel_ready_future(self.channel).result(timeout=30)
        self._database = ProtoReflectionDescriptorDatabase(self.channel)
        self._pool = descriptor_pool.DescriptorPool(self._database)

    def services(self):
        return sorted(self._database.get_services())

    def call(self, service, method, request, timeout=30):
        """One request, one answer."""
        send, message = self._method(service, method, request, self.channel.unary_unary)
        return _to_dict(send(message, timeout=timeout))

    def stream(self, service, method, request, timeout=None):
        """One request, many answers."""
        send, message = self._method(service, method, request, self.channel.unary_stream)
        for response in send(message, timeout=timeout):
            yield _to_dict(response)

    def _method(self, service, method, request, kind):
        found = self._pool.FindServiceByName(service).FindMethodByName(method)
        request_class = message_factory.GetMessageClass(found.input_type)
        response_class = message_factory.GetMessageClass(found.output_type)
        send = kind(
            f"/{service}/{method}",
            request_serializer=request_class.SerializeToString,
            response_deserializer=response_class.FromString,
        )
        return send, json_format.ParseDict(request, request_class())


def _to_dict(message):
    return json_format.MessageToDict(message, preserving_proto_field_name=True)
