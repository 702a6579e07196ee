"""The importers beside the dequantizers of the ecosystems that are installed here: tests/system/importer_reference.py."""

import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "tests" / "system" / "importer_reference.py"


def test_every_ecosystem_that_is_installed():
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)
    print(done.stdout)
    if done.returncode == 77:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
