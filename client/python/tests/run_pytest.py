#!/usr/bin/env python3
"""Runs pytest on files of this folder with a Python that has what they need.

    run_pytest.py --modules grpc;numpy FILE...

That Python is the one of build/torch-venv or build/venv (deploy/test.sh makes both), of $QGEMM_TEST_PYTHON, or the
running one. Exit code: pytest's; 77 = skipped, where none of them has the modules.
"""

import argparse
import os
import pathlib
import subprocess
import sys

SKIPPED = 77


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--modules", required=True, help="separated by ';'")
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    modules = [module for module in arguments.modules.split(";") if module]
    build = pathlib.Path(__file__).resolve().parents[3] / "build"
    pythons = [os.environ.get("QGEMM_TEST_PYTHON"), build / "venv" / "bin" / "python",
               build / "torch-venv" / "bin" / "python", sys.executable]  # fmt: skip
    for python in filter(None, pythons):
        probe = [str(python), "-c", f"import {', '.join(modules)}"]
        if pathlib.Path(python).exists() and subprocess.run(probe, capture_output=True).returncode == 0:
            command = [str(python), "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *arguments.files]
            sys.exit(subprocess.run(command).returncode)
    print(f"skipped: no Python here has all of {', '.join(modules)} (client/python/tests/requirements.txt)")
    sys.exit(SKIPPED)


if __name__ == "__main__":
    main()
