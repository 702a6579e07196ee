#!/usr/bin/env bash
# Installs what is missing, builds qgemm, and shows one real model's layers go through it:
# a private daemon tunes them, is restarted, and serves the same picks without a compile; one kernel is checked.
# No arguments, no questions; everything it starts is stopped and everything it writes outside build/ is removed.
#
# With a GPU the kernels are launched, verified and timed; without one the picks are predicted (MODEL).
set -euo pipefail
source "$(dirname "$0")/lib.sh"

model=deploy/models/gemma-3-27b-text-config.json
tune_options=(--model "$model" --format int4 --group-size 128 --act bf16 --m 1,16,64)
daemon_start_limit_s=30
daemon_stop_limit_s=30
tune_limit_s=300

scratch=$(mktemp -d "${TMPDIR:-/tmp}/qgemm-demo.XXXXXX")
daemon=
# shellcheck disable=SC2317  # called by the trap
clean_up() {
  [ -z "$daemon" ] || kill -9 "$daemon" 2>/dev/null || true
  rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

bin=build/release/bin
export QGEMM_SERVER=unix:$scratch/qgemm.sock

ctl() { "$bin/qgemmctl" "$@"; }

start_daemon() {
  local deadline=$((SECONDS + daemon_start_limit_s))
  "$bin/qgemmd" --listen "$QGEMM_SERVER" --data-dir "$scratch/data" </dev/null >>"$scratch/qgemmd.log" 2>&1 &
  daemon=$!
  until ctl device >"$scratch/device.txt" 2>&1; do
    if ! kill -0 "$daemon" 2>/dev/null || [ $SECONDS -ge $deadline ]; then
      cat "$scratch/device.txt" >&2
      tail -n 20 "$scratch/qgemmd.log" >&2
      die "the daemon did not answer within $daemon_start_limit_s s"
    fi
    sleep 0.2
  done
}

stop_daemon() {
  local deadline=$((SECONDS + daemon_stop_limit_s))
  kill -TERM "$daemon"
  while kill -0 "$daemon" 2>/dev/null; do
    [ $SECONDS -lt $deadline ] || die "the daemon did not stop within $daemon_stop_limit_s s of SIGTERM"
    sleep 0.1
  done
  wait "$daemon" || die "the daemon ended with status $?"
  daemon=
}

# json_numbers KEY FILE, json_strings KEY FILE: every value of that key, one a line.
json_numbers() { grep -o "\"$1\": *-\?[0-9.]*" "$2" | sed 's/.*: *//' || true; }
json_strings() { grep -o "\"$1\": *\"[^\"]*\"" "$2" | sed 's/.*: *"\(.*\)"/\1/' || true; }

install_packages build
find_cuda
step "CUDA: $CUDA_HOME"

step "build qgemmd, its compile worker and timing process, and qgemmctl"
configure release
build release qgemmd qgemm-compile qgemm-time qgemmctl

step "start a private daemon"
start_daemon
cat "$scratch/device.txt"

step "tune the linear layers of $model for M = 1, 16, 64: nothing is cached yet"
timeout "$tune_limit_s" "$bin/qgemmctl" tune "${tune_options[@]}"

step "restart the daemon and ask again"
stop_daemon
start_daemon
timeout "$tune_limit_s" "$bin/qgemmctl" --output json tune "${tune_options[@]}" >"$scratch/again.json"
say "results: $(json_strings kernel_sha256 "$scratch/again.json" | wc -l)," \
  "compiles: $(json_numbers compiles "$scratch/again.json")," \
  "timings: $(json_numbers timings "$scratch/again.json")," \
  "cache hits: $(json_numbers cache_hits "$scratch/again.json")," \
  "seconds: $(json_numbers wall_s "$scratch/again.json")"
[ "$(json_numbers compiles "$scratch/again.json")" = 0 ] || die "the restarted daemon compiled again"
[ "$(json_numbers timings "$scratch/again.json")" = 0 ] || die "the restarted daemon timed again"

step "check one kernel"
sha=$(json_strings kernel_sha256 "$scratch/again.json" | head -n 1)
ctl kernel get "$sha" -o "$scratch/kernel.cubin"
[ "$(sha256sum <"$scratch/kernel.cubin" | cut -d ' ' -f 1)" = "$sha" ] ||
  die "the bytes served for kernel $sha have another SHA-256"
say "SHA-256 of the $(stat -c %s "$scratch/kernel.cubin") bytes served is $sha, as the pick says"
# Bytes 18 and 19 of an ELF file name its machine: 190 is CUDA.
[ "$(od -An -tu2 -j 18 -N 2 "$scratch/kernel.cubin" | tr -d ' ')" = 190 ] || die "kernel $sha is no CUDA ELF file"
if cuobjdump=$(PATH="$PATH:$CUDA_HOME/bin" command -v cuobjdump); then
  say "$("$cuobjdump" -lelf "$scratch/kernel.cubin" | head -n 1)"
fi
if json_strings source "$scratch/again.json" | grep -q MEASURED; then
  say "launched on this GPU and compared with the reference before it was timed: candidates verified per result:" \
    "$(json_numbers verified "$scratch/again.json" | tr '\n' ' ')"
else
  say "no GPU here: nothing was launched, the picks are predictions for a named device (MODEL)"
fi

step "stop"
stop_daemon
say "done in $((SECONDS - started)) s; the two programs to try next are $bin/qgemmd and $bin/qgemmctl"
