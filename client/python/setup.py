"""Adds one build step: protoc turns the public API, proto/qgemm/v1, into the package's file api.binpb.

A descriptor set serves every protobuf run-time; generated modules would demand one at least as new as their protoc.
"""

import pathlib
import shutil
import subprocess
import sys

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).resolve().parent


def proto_folder():
    # In a source distribution the protos lie beside this file, in the repository at its root.
    for folder in (HERE / "proto", HERE.parent.parent / "proto"):
        if (folder / "qgemm" / "v1" / "tuner.proto").exists():
            return folder
    raise SystemExit(f"qgemm: proto/qgemm/v1/tuner.proto is neither in {HERE} nor in the repository that holds it")


def protoc():
    try:
        import grpc_tools.protoc  # noqa: F401
    except ImportError:
        found = shutil.which("protoc")
        if found is None:
            raise SystemExit("qgemm: protoc is missing: pip install grpcio-tools, or apt-get install protobuf-compiler")
        return [found]
    return [sys.executable, "-m", "grpc_tools.protoc"]


class BuildWithApi(build_py):
    def run(self):
        super().run()
        folder = proto_folder()
        out = pathlib.Path(self.build_lib) / "qgemm"
        if getattr(self, "editable_mode", False):
            out = HERE / "qgemm"
        out.mkdir(parents=True, exist_ok=True)
        protos = sorted(str(path.relative_to(folder)) for path in (folder / "qgemm" / "v1").glob("*.proto"))
        command = [*protoc(), f"--proto_path={folder}", "--include_imports", f"--descriptor_set_out={out / 'api.binpb'}"]
        subprocess.run([*command, *protos], check=True)


class SdistWithProtos(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        shutil.copytree(proto_folder() / "qgemm" / "v1", pathlib.Path(base_dir) / "proto" / "qgemm" / "v1")


setup(cmdclass={"build_py": BuildWithApi, "sdist": SdistWithProtos})
