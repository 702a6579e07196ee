"""Adds two build steps.

protoc turns the public API, proto/qgemm/v1, into the package's file api.binpb: a descriptor set serves every protobuf
run-time; generated modules would demand one at least as new as their protoc.

libqgemm.so, where it has been built ($QGEMM_LIBRARY, else build/release of the repository), goes into the package with the
shared libraries it needs beyond the C and C++ run-time; the wheel is then one for this platform. Without it the wheel is pure
Python and the importers, the weight store and the C runtime look for the library elsewhere.
"""

import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel

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


# Of the system, never in a wheel (as in deploy/bundle.sh).
SYSTEM = re.compile(r"(ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libgcc_s|libstdc\+\+|libcuda|libnvrtc.*)\.so")


def library():
    """libqgemm.so, or None."""
    path = pathlib.Path(os.environ.get("QGEMM_LIBRARY") or HERE.parent.parent / "build" / "release" / "lib" / "libqgemm.so")
    return path if path.exists() else None


def libraries_of(path):
    """The shared libraries that a library needs, whole, but the system's."""
    listed = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=True).stdout
    found = [pathlib.Path(line.split(" => ")[1].split(" (")[0]) for line in listed.splitlines() if " => /" in line]
    return [each for each in found if not SYSTEM.match(each.name)]


class WithLibrary(Distribution):
    def has_ext_modules(self):
        return library() is not None


class PlatformWheel(bdist_wheel):
    """py3-none-manylinux_2_36_x86_64: of any Python, of this C library or a newer one."""

    def get_tag(self):
        if self.root_is_pure:
            return super().get_tag()
        name, version = platform.libc_ver()
        machine = platform.machine()
        tag = f"manylinux_{version.replace('.', '_')}_{machine}" if name == "glibc" else f"linux_{machine}"
        return "py3", "none", tag


class BuildWithApi(build_py):
    def run(self):
        # Of an earlier build: modules that are no more would go into the wheel.
        shutil.rmtree(pathlib.Path(self.build_lib) / "qgemm", ignore_errors=True)
        super().run()
        folder = proto_folder()
        out = pathlib.Path(self.build_lib) / "qgemm"
        if getattr(self, "editable_mode", False):
            out = HERE / "qgemm"
        out.mkdir(parents=True, exist_ok=True)
        protos = sorted(str(path.relative_to(folder)) for path in (folder / "qgemm" / "v1").glob("*.proto"))
        command = [*protoc(), f"--proto_path={folder}", "--include_imports", f"--descriptor_set_out={out / 'api.binpb'}"]
        subprocess.run([*command, *protos], check=True)
        if library() is not None and not getattr(self, "editable_mode", False):
            for each in [library(), *libraries_of(library())]:
                shutil.copy2(each, out / each.name)


class SdistWithProtos(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        shutil.copytree(proto_folder() / "qgemm" / "v1", pathlib.Path(base_dir) / "proto" / "qgemm" / "v1")


setup(distclass=WithLibrary, cmdclass={"build_py": BuildWithApi, "sdist": SdistWithProtos, "bdist_wheel": PlatformWheel})
