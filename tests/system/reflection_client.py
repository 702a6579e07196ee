#!/usr/bin/env python3
"""A client that knows nothing but a daemon's address and server reflection: lists the services, asks for the health,
and looks up a pick.

    python3 tests/system/reflection_client.py --server unix:/run/qgemm/qgemm.sock --shape 5376x4096 --m 64

Exit code 0: all services of the public API are there and Lookup answered, with a pick or with the reason for none.
"""

import argparse
import sys

from reflected_api import ReflectedApi

EXPECTED_SERVICES = {
    "grpc.health.v1.Health",
    "grpc.reflection.v1alpha.ServerReflection",
    "qgemm.v1.Cache",
    "qgemm.v1.Device",
    "qgemm.v1.Tuner",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", required=True, help="unix:PATH or HOST:PORT")
    parser.add_argument("--shape", default="5376x4096", help="NxK")
    parser.add_argument("--m", type=int, default=64)
    arguments = parser.parse_args()
    n, k = map(int, arguments.shape.split("x"))

    api = ReflectedApi(arguments.server)
    services = api.services()
    print("services:", ", ".join(services))
    missing = EXPECTED_SERVICES - set(services)
    if missing:
        sys.exit(f"the server does not offer {', '.join(sorted(missing))}")

    # gRPC's own health service has no descriptor to reflect: an empty request, and field 1 = 1 means SERVING.
    health = api.channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=30)
    print("health:", "SERVING" if health == b"\x08\x01" else health)
    if health != b"\x08\x01":
        sys.exit("the server is not serving")

    problem = {"n": n, "k": k, "format": {"bits": 4, "group_size": 128}, "act": "SCALAR_TYPE_BF16"}
    answer = api.call("qgemm.v1.Tuner", "Lookup", {"keys": [{"problem": problem, "m": arguments.m}]})["answers"][0]
    if "pick" in answer:
        pick = answer["pick"]
        print(f"lookup: {pick['source']} {pick['config']} split {pick['split_k']} kernel {pick['kernel']['sha256']}")
    elif answer.get("miss_reason"):
        print("lookup: no pick:", answer["miss_reason"])
    else:
        sys.exit("Lookup answered neither a pick nor why there is none")


if __name__ == "__main__":
    main()
