"""python3 -m qgemm.importers CHECKPOINT -o FILE: canonical weights for `qgemmctl bundle create --weights FILE`."""

import argparse
import pathlib
import re
import sys

from qgemm.importers import open_checkpoint, save_canonical


def _pattern(text):
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None
    return text


def main():
    parser = argparse.ArgumentParser(prog="python3 -m qgemm.importers", description=__doc__.split(": ", 1)[1])
    parser.add_argument("checkpoint", help="a Hugging Face folder, or a .gguf file")
    parser.add_argument("-o", "--out", required=True, type=pathlib.Path, help="the file to write, safetensors")
    parser.add_argument("--act", choices=("bf16", "fp16"), default="bf16", help="type of activations: biases are rounded to it")
    parser.add_argument("--include", type=_pattern, help="only layers in whose name this regular expression is found")
    parser.add_argument("--exclude", type=_pattern, help="no layers in whose name it is")
    parser.add_argument("--gptq-zeros", choices=("v1", "v2"), help="where the checkpoint does not show its convention")
    parser.add_argument("--encoding", choices=("padded", "dense"), help="of compressed-tensors, where it does not show")
    arguments = parser.parse_args()
    try:
        checkpoint = open_checkpoint(arguments.checkpoint, gptq_zeros=arguments.gptq_zeros, encoding=arguments.encoding)
        names = save_canonical(
            arguments.out, checkpoint, include=arguments.include, exclude=arguments.exclude, act=arguments.act
        )  # fmt: skip
    except ModuleNotFoundError as error:
        sys.exit(f"qgemm.importers: {error.name} is missing: pip install {error.name}")
    except (ValueError, KeyError, OSError, ImportError) as error:
        sys.exit(f"qgemm.importers: {error.args[0] if isinstance(error, KeyError) else error}")
    print(f"{arguments.out}: {len(names)} layers of {checkpoint.format}, {arguments.out.stat().st_size / 1e6:.1f} MB")


main()
