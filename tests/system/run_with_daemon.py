#!/usr/bin/env python3
"""Runs one of this folder's Python programs against a daemon of its own, without a GPU.

    run_with_daemon.py QGEMMD PROGRAM [ARGUMENT...]

PROGRAM gets `--server ADDR` before its arguments; @OUT@ in an argument stands for an empty folder. It is run by
build/venv's Python (deploy/test.sh installs requirements.txt there) or, without one, by the running Python. Exit
code: the program's; 77 = skipped, where grpcio is not installed.
"""

import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77
STOP_LIMIT_S = 30


def python_with_grpc():
    here = pathlib.Path(__file__).resolve().parent
    candidates = [here.parent.parent / "build" / "venv" / "bin" / "python", pathlib.Path(sys.executable)]
    for python in candidates:
        probe = [python, "-c", "import grpc, grpc_reflection"]
        if python.exists() and subprocess.run(probe, capture_output=True).returncode == 0:
            return python
    return None


def main():
    qgemmd, program, *arguments = sys.argv[1:]
    python = python_with_grpc()
    if python is None:
        print("skipped: grpcio and grpcio-reflection are not installed (see tests/system/requirements.txt)")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory(prefix="qgemm-python.") as folder:
        address = f"unix:{folder}/socket"
        command = [qgemmd, "--listen", address, "--data-dir", f"{folder}/data", "--device", "none"]
        daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        try:
            # The programs wait for the daemon to listen.
            words = [word.replace("@OUT@", f"{folder}/out") for word in arguments]
            code = subprocess.run([python, program, "--server", address, *words]).returncode
        finally:
            daemon.terminate()
            daemon.wait(timeout=STOP_LIMIT_S)
    sys.exit(code)


if __name__ == "__main__":
    main()
