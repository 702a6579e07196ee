"""The C++ compiler of the steps aoti and cpp."""

import functools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SHARED_LIBRARY = "libstdc++.so.6"

# What AOTInductor does first in a package: a regular expression finds the kind of device.
CODE = """
#include <regex>
extern "C" bool is_device(const char* name) { return std::regex_match(name, std::regex("(cpu|cuda)(:[0-9]+)?")); }
"""
LOAD = """
import ctypes, sys
ctypes.CDLL(sys.argv[1])
sys.exit(0 if ctypes.CDLL(sys.argv[2]).is_device(b"cuda:0") & 1 else 1)
"""


def makes_packages(compiler):
    """Whether what a compiler links uses the C++ library that PyTorch has loaded, and runs beside it in Python.

    A package with a library of its own inside (-static-libstdc++) gets a part of the symbols from the other one there, and
    crashes; in a program that links libstdc++.so.6 itself, as run_package does, it gets all of them, and runs.
    """
    with tempfile.TemporaryDirectory() as folder:
        library = pathlib.Path(folder) / "device.so"
        command = [compiler, "-shared", "-fPIC", "-std=c++17", "-x", "c++", "-", "-o", library]
        try:
            done = subprocess.run(command, input=CODE, text=True, capture_output=True)
        except OSError:
            return False
        if done.returncode != 0 or f"\0{SHARED_LIBRARY}\0".encode() not in library.read_bytes():
            return False
        return subprocess.run([sys.executable, "-c", LOAD, SHARED_LIBRARY, library], capture_output=True).returncode == 0


@functools.cache
def cpp_compiler():
    """The first of CXX and g++ whose packages run in Python, or None."""
    for name in filter(None, (os.environ.get("CXX"), "g++")):
        compiler = shutil.which(name)
        if compiler and makes_packages(compiler):
            return compiler
        print(f"the C++ compiler {name} is not there or does not link {SHARED_LIBRARY}: passed over", flush=True)
    return None
