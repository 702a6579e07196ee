"""`pip wheel` of the package, from the repository and from a source distribution: both hold the API and import; with
libqgemm.so where it has been built, which loads with nothing but what the wheel and the system have."""

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture
def checkout(tmp_path):
    """A copy of what the build reads, so that it writes nothing into the repository."""
    ignored = shutil.ignore_patterns("tests", "build", "*.egg-info", "api.binpb", "__pycache__")
    shutil.copytree(REPOSITORY / "client" / "python", tmp_path / "client" / "python", ignore=ignored)
    shutil.copytree(REPOSITORY / "proto", tmp_path / "proto")
    return tmp_path / "client" / "python"


def run(*command, cwd):
    done = subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def check_wheel(folder, tmp_path):
    (wheel,) = folder.glob("qgemm-*.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = "import qgemm; print(qgemm.__file__, qgemm.Problem.parse('64x128').to_proto().ByteSize())"
    where, size = python(code, site).split()
    assert where.startswith(str(site)) and int(size) > 0
    return wheel, site


def python(code, site):
    """What a program prints that has the unpacked wheel alone."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={"PYTHONPATH": str(site)}, cwd=site, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


PIP_WHEEL = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "-w")


def test_wheel_of_the_repository(checkout, tmp_path):
    run(*PIP_WHEEL, str(tmp_path / "out"), ".", cwd=checkout)
    check_wheel(tmp_path / "out", tmp_path)


def test_wheel_of_a_source_distribution(checkout, tmp_path):
    run("setup.py", "--quiet", "sdist", "--dist-dir", str(tmp_path / "sdist"), cwd=checkout)
    (sdist,) = (tmp_path / "sdist").glob("qgemm-*.tar.gz")
    run(*PIP_WHEEL, str(tmp_path / "out"), str(sdist), cwd=tmp_path)
    check_wheel(tmp_path / "out", tmp_path)


LOADED = """
from qgemm.importers import library
library.load().qgemm_runtime_open
for line in open("/proc/self/maps"):
    if "libqgemm" in line or "libabsl" in line:
        print(line.split()[-1])
"""


@pytest.mark.skipif(not os.environ.get("QGEMM_LIBRARY"), reason="QGEMM_LIBRARY names no libqgemm.so")
def test_wheel_holds_the_library_and_what_it_needs(checkout, tmp_path):
    run(*PIP_WHEEL, str(tmp_path / "out"), ".", cwd=checkout)
    wheel, site = check_wheel(tmp_path / "out", tmp_path)
    assert wheel.name.endswith(".whl") and "-py3-none-manylinux_" in wheel.name
    loaded = set(python(LOADED, site).split())
    assert str(site / "qgemm" / "libqgemm.so") in loaded
    assert all(path.startswith(str(site)) for path in loaded)


def test_wheel_without_the_library_is_pure(checkout, tmp_path, monkeypatch):
    monkeypatch.setenv("QGEMM_LIBRARY", str(tmp_path / "none"))
    before = checkout / "build" / "lib" / "qgemm"
    before.mkdir(parents=True)
    (before / "gone.py").write_text("")
    run(*PIP_WHEEL, str(tmp_path / "out"), ".", cwd=checkout)
    wheel, site = check_wheel(tmp_path / "out", tmp_path)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not (site / "qgemm" / "gone.py").exists()  # a module of an earlier build
