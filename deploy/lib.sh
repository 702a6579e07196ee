# Shared by deploy/test.sh, demo.sh and bundle.sh; sourced, never run. Callers set `set -euo pipefail` first.
#
#   install_packages TAG...   the packages of deploy/packages.txt with these tags, by apt
#   python_environment FOLDER ARGUMENT...   a virtual environment with what `pip install ARGUMENT...` brings
#   find_cuda                 exports CUDA_HOME and QGEMM_NVRTC_PATH
#   configure PRESET          CMake with that preset; ccache where it is there
#   build PRESET TARGET...    bounded by cores and memory
#
# Everything written lies in build/ of the repository.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
started=$SECONDS

# The seconds since the script started stand before each line.
step() { printf '\n[%4d s] %s\n' $((SECONDS - started)) "$*"; }
say() { printf '         %s\n' "$*"; }
die() {
  printf '\n%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  else
    sudo "$@"
  fi
}

tagged_packages() {
  local tag
  for tag in "$@"; do sed -n "s/^$tag //p" deploy/packages.txt; done
}

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

install_packages() {
  local package missing=()
  for package in $(tagged_packages "$@"); do
    installed "$package" || missing+=("$package")
  done
  [ ${#missing[@]} = 0 ] && return 0
  step "install ${#missing[@]} Debian packages: ${missing[*]}"
  command -v apt-get >/dev/null ||
    die "this system has no apt-get; install what stands for these Debian 12 packages by hand: ${missing[*]}"
  [ "$(id -u)" = 0 ] || command -v sudo >/dev/null ||
    die "installing packages needs root or sudo; as root: apt-get install --no-install-recommends ${missing[*]}"
  local log=build/apt.log
  mkdir -p build
  # Standard input is closed: neither apt nor a package's set-up may wait for an answer.
  if ! { as_root apt-get -q update &&
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "${missing[@]}"; } \
    </dev/null >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    die "apt-get could not install ${missing[*]}; its output is in $log"
  fi
}

# Fails, with pip's last words, when it cannot be made; a finished one is kept while what is asked for stays the same.
python_environment() {
  local folder=$1 log=build/pip-$(basename "$1").log wanted argument
  shift
  wanted=$(for argument in "$@"; do if [ -f "$argument" ]; then cat "$argument"; else echo "$argument"; fi; done)
  [ ! -e "$folder/.complete" ] || [ "$(cat "$folder/.complete")" != "$wanted" ] || return 0
  mkdir -p build
  if { python3 -m venv --clear "$folder" && "$folder/bin/pip" install --quiet "$@"; } </dev/null >"$log" 2>&1; then
    printf '%s\n' "$wanted" >"$folder/.complete"
  else
    tail -n 3 "$log" >&2
    return 1
  fi
}

# nvrtc_library_in ROOT: prints the path of ROOT's libnvrtc.so.13 where ROOT holds the CUDA 13 headers and NVRTC.
nvrtc_library_in() {
  local folder version
  [ -f "$1/include/cuda.h" ] && [ -f "$1/include/nvrtc.h" ] || return 1
  version=$(sed -n 's/^#define CUDA_VERSION \([0-9]*\).*/\1/p' "$1/include/cuda.h" | head -n 1)
  [ "${version:-0}" -ge 13000 ] && [ "$version" -lt 14000 ] || return 1
  for folder in lib64 lib targets/x86_64-linux/lib; do
    if [ -e "$1/$folder/libnvrtc.so.13" ]; then
      echo "$1/$folder/libnvrtc.so.13"
      return 0
    fi
  done
  return 1
}

# The toolkit in $CUDA_HOME or its usual place, else NVRTC and the headers from NVIDIA's pip packages in
# build/cuda-venv. QGEMM_NVRTC_PATH tells the programs which NVRTC to open; its libnvrtc-builtins lies beside it.
find_cuda() {
  local candidate site
  for candidate in "${CUDA_HOME:-}" /usr/local/cuda /usr/local/cuda-13 /usr/local/cuda-13.*; do
    if [ -n "$candidate" ] && QGEMM_NVRTC_PATH=$(nvrtc_library_in "$candidate"); then
      export CUDA_HOME=$candidate QGEMM_NVRTC_PATH
      return 0
    fi
  done
  site=$(pip_cuda_root)
  if [ -z "$site" ]; then
    install_packages python
    step "no CUDA 13 toolkit here: NVRTC and the CUDA headers from NVIDIA's pip packages"
    python_environment build/cuda-venv 'nvidia-cuda-nvrtc==13.0.*' 'nvidia-cuda-runtime==13.0.*' || true
    site=$(pip_cuda_root)
  fi
  [ -n "$site" ] ||
    die "no CUDA 13 found: neither a toolkit in \$CUDA_HOME or /usr/local/cuda (include/cuda.h, include/nvrtc.h," \
      "lib64/libnvrtc.so.13) nor NVIDIA's pip packages nvidia-cuda-nvrtc and nvidia-cuda-runtime; install either"
  QGEMM_NVRTC_PATH=$(nvrtc_library_in "$site")
  export CUDA_HOME=$site QGEMM_NVRTC_PATH
}

pip_cuda_root() {
  local site
  for site in "$root"/build/cuda-venv/lib/python3*/site-packages/nvidia/cu13; do
    if nvrtc_library_in "$site" >/dev/null; then echo "$site"; fi
  done
}

# One compiler per core, but 1.5 GiB of memory for each: the files that include gRPC need it.
build_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ {print int($2 / 1572864)}' /proc/meminfo)
  [ "$memory" -ge 1 ] || memory=1
  echo $((memory < cores ? memory : cores))
}

configure() {
  mkdir -p build
  local launcher=()
  if command -v ccache >/dev/null; then
    launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
    # A clone in another folder finds the same objects.
    export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1
  fi
  cmake --preset "$1" "${launcher[@]}" -DQGEMM_CUDA_INCLUDE_DIR="$CUDA_HOME/include" >"build/configure-$1.log" 2>&1 || {
    tail -n 30 "build/configure-$1.log" >&2
    die "CMake could not configure the preset $1; its output is in build/configure-$1.log"
  }
}

build() {
  local preset=$1
  shift
  cmake --build --preset "$preset" -j "$(build_jobs)" ${1:+--target "$@"} </dev/null
}
