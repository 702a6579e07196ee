"""Step cpp: the package run by run_package.cc."""

import json
import os
import pathlib
import struct
import subprocess
import tempfile

import torch
from llama_export.compare import judge
from llama_export.compiler import cpp_compiler
from llama_export.programs import constants_of
from llama_export.run import EXAMPLES


def library_of(arguments):
    """Where libqgemm.so is, or None: as told, else beside this folder, as in the bundle of programs."""
    given = arguments.library or os.environ.get("QGEMM_LIBRARY")
    path = pathlib.Path(given) if given else EXAMPLES.parent / "lib" / "libqgemm.so"
    return path if path.exists() else None


def start_compiling(run):
    """run_package.cc is compiled while other steps run: (process, program), or None where it cannot be."""
    if library_of(run.arguments) is None or {"aoti", "cpp"} & run.arguments.skip:
        return None
    compiler = cpp_compiler()
    if compiler is None:
        return None
    from torch.utils.cpp_extension import include_paths, library_paths

    program = pathlib.Path(tempfile.mkdtemp(prefix="qgemm-cpp.")) / "run_package"
    headers = [*include_paths("cpu"), EXAMPLES.parents[1], EXAMPLES.parent / "include"]  # the last two: of qgemm/c_api.h
    libraries = library_paths("cpu")  # PyTorch's own, which find those of CUDA by themselves
    command = [compiler, "-std=c++20", "-O1", EXAMPLES / "run_package.cc", "-o", program, *(f"-I{path}" for path in headers)]
    command += [option for path in libraries for option in (f"-L{path}", f"-Wl,-rpath,{path}")]
    command += ["-Wl,--no-as-needed,--allow-shlib-undefined", "-ltorch", "-ltorch_cpu", "-lc10", "-ldl"]
    command += ["-ltorch_cuda", "-lc10_cuda"] if run.is_cuda else []  # which register what runs a package on a GPU
    log = open(f"{program}.log", "w")
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT), program


# c10::ScalarType
SCALAR_TYPES = {torch.uint8: 0, torch.int64: 4, torch.float16: 5, torch.float32: 6, torch.bool: 11, torch.bfloat16: 15}


def bundle_header(path):
    """A safetensors file's header, and where its data begin."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(size)), 8 + size


def write_state(run, path, prompt, token):
    """What run_package.cc starts from: the program's constants, each with its place in the bundle's weights file or in this
    one, the cache after the prompt, its position and the first token."""
    header, base = bundle_header(run.bundle / "weights.safetensors")
    constants = constants_of(run.step_program)
    own, rows = [], []
    for name, tensor in constants.items():
        place = header.get(name.removeprefix("model."))  # of the layer in the model that the step wraps
        if place is None:
            own.append(tensor)
        offset = base + place["data_offsets"][0] if place else sum(each.nbytes for each in own[:-1])
        rows.append((name.encode(), SCALAR_TYPES[tensor.dtype], tensor.shape, 0 if place is None else 1, offset))
    with open(path, "wb") as file:

        def numbers(*values):
            file.write(struct.pack(f"<{len(values)}q", *values))

        def dimensions(shape):
            numbers(len(shape), *shape)

        numbers(prompt.shape[1], token)
        dimensions(run.cache.shape)
        numbers(len(rows))
        for name, scalar_type, shape, source, offset in rows:
            numbers(len(name))
            file.write(name)
            numbers(scalar_type, source, offset)
            dimensions(shape)
        for tensor in (run.cache, *own):
            file.write(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())


def cpp(run, figures):
    if run.compiling is None or run.package is None:
        figures["left_out"] = "needs a package, g++ and libqgemm.so (--library)"
        return
    process, program = run.compiling
    if process.wait(timeout=600) != 0:
        raise RuntimeError("run_package.cc does not compile: " + pathlib.Path(f"{program}.log").read_text()[-2000:])
    name = next(iter(run.prompts))
    prompt, new = run.prompts[name], run.arguments.new
    with torch.no_grad():
        run.cache.zero_()
        first = run.quantized(prompt, run.cache)[:, 0]
    token = int(first.argmax(-1))
    state = program.with_suffix(".state")
    write_state(run, state, prompt, token)
    logits_file = program.with_suffix(".logits")
    command = [program, library_of(run.arguments), run.bundle, run.package, state, str(new - 1), logits_file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"run_package ended with {done.returncode}: {done.stderr[-2000:]}")
    run.cpp_tokens = [token, *(int(line) for line in done.stdout.split())]
    figures["said"] = done.stderr.splitlines()[-3:]
    logits = [first.float()]
    if new > 1:
        rest = torch.from_file(str(logits_file), size=(new - 1) * first.shape[1], dtype=torch.float32)
        logits.append(rest.view(new - 1, -1).to(run.device))
    tokens = torch.tensor([run.cpp_tokens], device=run.device)
    judge(run, figures, "cpp", name, (tokens, torch.cat(logits)[None]))
