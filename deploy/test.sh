#!/usr/bin/env bash
# Installs what is missing, builds and runs all tests. No arguments, no questions; exit status 0: all passed.
#
#   1. base, kernels, cache and the fuzz tests under AddressSanitizer and UndefinedBehaviorSanitizer
#   2. the server's concurrent code under ThreadSanitizer; the presets asan and tsan have the rest of it
#   3. clang-tidy on the sources that changed, warnings are errors
#   4. everything in release; ctest's summary is the last thing printed
#
# Tests that need a GPU, or pip's packages, skip themselves, with the reason, where there is none. PyTorch is installed,
# and tested with, only where CI=true or QGEMM_TEST_TORCH=1.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

sanitized_areas=(unit/base unit/kernels unit/kernels/import unit/cache fuzz)
thread_sanitized=(tuner_test compile_pool_test gpu_process_test)
tidy_file_limit=16

run_ctest() {
  local folder=$1
  shift
  ctest --test-dir "$folder" -j "$(build_jobs)" --output-on-failure --timeout 300 --no-tests=error "$@" </dev/null
}

# Sources changed since the branch left origin/main; on origin/main itself, in its last commit.
changed_sources() {
  local base
  base=$(git merge-base HEAD origin/main 2>/dev/null) || base=
  if [ -z "$base" ] || [ "$base" = "$(git rev-parse HEAD)" ]; then base=$(git rev-parse -q --verify HEAD~1) || return 0; fi
  git diff --name-only --diff-filter=d "$base" -- '*.cc'
}

install_packages build lint python
find_cuda
step "CUDA: $CUDA_HOME"
python_requirements=(-r tests/system/requirements.txt -r client/python/tests/requirements.txt)
python_environment build/venv "${python_requirements[@]}" ||
  say "the Python clients' tests skip themselves: pip could not install ${python_requirements[*]}"
# PyTorch is some 6 GB: on CI's machines, and where somebody asks for it.
if [ "${CI:-}" = true ] || [ "${QGEMM_TEST_TORCH:-}" = 1 ]; then
  python_environment build/torch-venv -r client/python/tests/requirements-torch.txt ||
    say "the tests of qgemm.torch skip themselves: pip could not install client/python/tests/requirements-torch.txt"
fi

step "asan: build the tests of ${sanitized_areas[*]}"
configure asan
sanitized=("${sanitized_areas[@]/#/tests/}")
build asan "${sanitized[@]/%//all}"
for area in "${sanitized_areas[@]}"; do
  step "asan: test $area"
  run_ctest "build/asan/tests/$area"
done

step "tsan: build ${thread_sanitized[*]}"
configure tsan
build tsan "${thread_sanitized[@]}"
step "tsan: test the server's concurrent code"
TSAN_OPTIONS="suppressions=$root/tests/tsan.supp die_after_fork=0" run_ctest build/tsan/tests/unit/server -L concurrent

step "release: build everything"
configure release
build release

# Only what this build compiles: clang-tidy takes a source's flags from there.
mapfile -t sources < <(changed_sources | while IFS= read -r source; do
  if grep -qF "\"file\": \"$root/$source\"" build/release/compile_commands.json; then echo "$source"; fi
done)
step "clang-tidy: ${#sources[@]} changed sources"
if [ ${#sources[@]} -gt $tidy_file_limit ]; then
  say "more than $tidy_file_limit: only the first $tidy_file_limit of them are checked here"
  sources=("${sources[@]:0:tidy_file_limit}")
fi
if [ ${#sources[@]} -gt 0 ]; then
  printf '%s\0' "${sources[@]}" |
    xargs -0 -n 1 -P "$(build_jobs)" clang-tidy-14 -p build/release --quiet --warnings-as-errors='*'
fi

step "release: run all tests"
run_ctest build/release
