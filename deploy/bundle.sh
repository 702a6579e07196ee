#!/usr/bin/env bash
# Makes build/bundle/: qgemm's programs, GPU tests and benches with the shared libraries they need, for machines
# that have CUDA but none of the Debian packages. Relocatable: copy the folder anywhere, run bin/qgemmd.
# Needs on the target: glibc 2.36 and libstdc++ of GCC 12 or newer, libnvrtc.so.13, and for timing the driver.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

size_limit_mib=50
programs=(qgemmd qgemm-compile qgemm-time qgemmctl run_layer make_layer)

# Of the target's own system, never bundled: the C and C++ run-time (a newer one runs our build, an older libc cannot
# be replaced) and everything of CUDA (all opened with dlopen).
stays_out='^(ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libgcc_s|libstdc\+\+|libcuda|libnvrtc.*|libnvidia.*)\.so'

install_packages build bundle
find_cuda

step "build release"
configure release
build release

step "collect build/bundle"
bundle=build/bundle
rm -rf "$bundle"
mkdir -p "$bundle/bin" "$bundle/lib"
for program in "${programs[@]}"; do cp "build/release/bin/$program" "$bundle/bin/"; done
# GPU tests are whatever the build made from their folder; of the benches what needs a GPU.
while IFS= read -r name; do
  if [ -x "build/release/bin/$name" ]; then cp "build/release/bin/$name" "$bundle/bin/"; fi
done < <(ninja -C build/release -t query tests/gpu/all | sed -n 's/^ *bin\///p')
cp build/release/bin/regret "$bundle/bin/"
git ls-files -z 'tests/bench/*.py' tests/bench/kernel_bench tests/bench/read_kernels.cu tests/bench/anchors.json tests/bench/pairs44.json \
  'tests/system/*.py' 'tests/system/requirements.txt' |
  xargs -0 cp --parents -t "$bundle"
install -D -m 644 -t "$bundle/models" deploy/models/*.json
cp -R build/release/python "$bundle/python"
rm -f "$bundle/python/qgemm/libqgemm.so"  # the one of lib/ serves
find "$bundle/python" -name __pycache__ -prune -exec rm -r {} +
install -D -m 644 -t "$bundle/examples" client/python/examples/*.*
install -D -m 644 -t "$bundle/examples/llama_export" client/python/examples/llama_export/*.py
install -D -m 644 -t "$bundle/include/qgemm" client/qgemm/*c_api.h
install -D -m 644 -t "$bundle/examples/tests" client/python/tests/conftest.py client/python/tests/test_torch_gpu.py
mkdir -p "$bundle/proto" && (cd proto && find qgemm/v1 -name '*.proto' -exec cp --parents {} "$root/$bundle/proto/" \;)

for file in "$bundle"/bin/*; do strip "$file"; done
# ldd lists the libraries of the libraries too.
ldd "$bundle"/bin/* | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u | while IFS= read -r library; do
  if ! basename "$library" | grep -Eq "$stays_out"; then cp -L "$library" "$bundle/lib/"; fi
done
strip --strip-unneeded "$bundle/lib/libqgemm.so"  # the others are stripped by who packaged them
if ldd "$bundle"/bin/* | grep 'not found'; then die "a shared library is missing on this machine"; fi
# RPATH rather than RUNPATH: it also holds for libraries of libraries and wins over the target's LD_LIBRARY_PATH.
for file in "$bundle"/bin/*; do patchelf --force-rpath --set-rpath '$ORIGIN/../lib' "$file"; done
# Libraries that need none of the others stay as they are: patchelf makes a file larger, by up to a tenth.
for file in "$bundle"/lib/*; do
  for needed in $(patchelf --print-needed "$file"); do
    if [ -e "$bundle/lib/$needed" ]; then
      patchelf --force-rpath --set-rpath '$ORIGIN' "$file"
      break
    fi
  done
done

cat >"$bundle/README.md" <<TEXT
# qgemm $(git describe --always --dirty), built on Debian 12

Runs in any folder on x86-64 Linux with glibc 2.36 or newer and CUDA 13: \`libnvrtc.so.13\` in \$CUDA_HOME, in
/usr/local/cuda, on the loader's path, or named by QGEMM_NVRTC_PATH; timing needs the driver. Nothing else is needed.

    bin/qgemmd --listen unix:/tmp/qgemm.sock --data-dir /tmp/qgemm-data &
    export QGEMM_SERVER=unix:/tmp/qgemm.sock
    bin/qgemmctl device
    bin/qgemmctl tune --model models/gemma-3-27b-text-config.json --m 1,16,64

Export a layer and run it by the C interface alone, without the daemon (client/examples in the sources):

    bin/make_layer /tmp/case 1024 4096 128 13
    bin/qgemmctl bundle create -o /tmp/layer.tar --weights /tmp/case/weights.safetensors --method any=dynamic
    bin/run_layer /tmp/layer.tar any layer 13 /tmp/case/x.bin /tmp/case/y.bin

| folder | holds |
|---|---|
| bin/ | qgemmd and its two worker programs, qgemmctl, the GPU tests and benches, the example |
| lib/ | libqgemm.so and the programs' shared libraries, except the C and C++ run-time and CUDA |
| models/ | configurations for \`qgemmctl tune --model\` |
| python/ | the Python package qgemm: put the folder on PYTHONPATH; needs grpcio, protobuf and numpy |
| examples/ | \`PYTHONPATH=python python3 examples/export_llama.py --out figures.json\`: a model from bf16 to tuned kernels |
| proto/ | the API, for clients of other languages |
| tests/ | benches and clients in Python; tests/bench/kernel_bench times the kernels beside their limits and peers and needs PyTorch alone, tests/system/requirements.txt is what the others need |
TEXT

size_mib=$(du -sm "$bundle" | cut -f 1)
step "build/bundle: $size_mib MiB, $(ls "$bundle/bin" | wc -l) programs, $(ls "$bundle/lib" | wc -l) libraries"
[ "$size_mib" -le $size_limit_mib ] || die "the bundle is $size_mib MiB; at most $size_limit_mib are allowed"
