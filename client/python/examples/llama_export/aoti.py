"""Steps aoti and load: the decoding step as an AOTInductor package."""

import faulthandler
import pathlib
import re
import tempfile
import time
import zipfile

import torch
import torch._inductor.config
import torch._inductor.select_algorithm
from llama_export.compare import judge
from llama_export.compiler import SHARED_LIBRARY, cpp_compiler
from llama_export.decoding import generate_with
from llama_export.programs import Prefill, constants_of, step_program


class GemmChoices:
    """What Inductor looks for a kernel for, by name, and how often it has more than one to choose from."""

    def __enter__(self):
        self.names, self.choices = [], 0
        self._class = torch._inductor.select_algorithm.AlgorithmSelectorCache
        self._original = self._class.__call__

        def counting(selector, name, choices, *arguments, **options):
            self.names.append(name)
            self.choices += len(choices) > 1
            return self._original(selector, name, choices, *arguments, **options)

        self._class.__call__ = counting
        return self

    def __exit__(self, *_):
        self._class.__call__ = self._original


def products_in(package):
    """Calls of matrix products in a package's generated C++, by name: what Inductor made of the program."""
    found = {}
    with zipfile.ZipFile(package) as archive:
        for name in archive.namelist():
            if name.endswith(".cpp"):
                for call in re.findall(r"aoti_torch_\w*?_((?:add|b|baddb|_scaled_)?mm)_out\(", archive.read(name).decode()):
                    found[call] = found.get(call, 0) + 1
    return found


def without_vector_instructions(run):
    """For a GPU nothing is vectorized on the CPU: no half minute of trying what that can, when compiling and when loading."""
    return torch._inductor.config.patch({"cpp.vec_isa_ok": False} if run.is_cuda else {})


def aoti(run, figures):
    started = time.monotonic()

    def phase(what):
        figures[f"{what}_s"] = round(time.monotonic() - started, 1)
        print(f"aoti: {what} after {figures[f'{what}_s']} s", flush=True)

    compiler = cpp_compiler()
    if compiler is None:
        raise RuntimeError(f"no C++ compiler links {SHARED_LIBRARY}: set CXX to one that does, or install g++")
    program = step_program(run)
    phase("exported")
    path = tempfile.mkdtemp(prefix="qgemm-aoti.") + "/step.pt2"
    # Fused code rounds to bf16 where the model does. The weights stay where they are.
    in_package = run.arguments.weights_in_package
    options = {
        "emulate_precision_casts": True, "aot_inductor.package_constants_in_so": in_package, "cpp.cxx": (None, compiler),
    }  # fmt: skip
    faulthandler.dump_traceback_later(45, repeat=True)  # says what a compilation that does not end is at
    try:
        with torch._inductor.config.patch(options), without_vector_instructions(run), GemmChoices() as choices:
            path = torch._inductor.aoti_compile_and_package(program, package_path=path)
    finally:
        faulthandler.cancel_dump_traceback_later()
    phase("compiled")
    figures["bytes"] = pathlib.Path(path).stat().st_size
    run.package = path
    config = torch._inductor.config
    figures["gemm_configs_chosen_by_inductor"] = choices.choices
    figures["products_looked_for"] = sorted(set(choices.names))
    figures["max_autotune"] = config.max_autotune or config.max_autotune_gemm
    figures["products_in_generated_code"] = products_in(path)
    of_weights = {"mm", "addmm", "_scaled_mm"} & {*figures["products_in_generated_code"], *choices.names}
    no_gemm = choices.choices == 0 and not figures["max_autotune"] and not of_weights
    run.expect("aoti", no_gemm, "Inductor multiplied by weights or chose a config for it")


def load(run, figures):
    if run.package is None:
        figures["left_out"] = "there is no package"
        return
    name = next(iter(run.prompts))
    print("load: the package", flush=True)  # a crash of what is loaded says where it was
    with without_vector_instructions(run):
        package = torch._inductor.aoti_load_package(run.package)
    if not run.arguments.weights_in_package:
        constants, names = constants_of(run.step_program), package.get_constant_fqns()
        figures["constants"] = len(names)
        print(f"load: {len(names)} weights", flush=True)
        package.load_constants({each: constants[each] for each in names}, check_full_update=True, user_managed=True)
    print("load: run", flush=True)
    result = generate_with(Prefill(run.quantized), package, run.prompts[name], run.cache, run.arguments.new)
    judge(run, figures, "load", name, result)
    if run.cpp_tokens is not None:
        figures["same_tokens_without_python"] = run.cpp_tokens == result[0][0].tolist()
        run.expect("load", figures["same_tokens_without_python"], "the tokens without Python differ from those with it")
