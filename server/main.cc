// qgemmd: tunes quantized GEMM problems and serves picks and kernels over gRPC. The only file that names
// concrete classes.
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/subprocess.h"
#include "cache/housekeeping.h"
#include "cache/rocksdb_store.h"
#include "server/compile_pool.h"
#include "server/config.h"
#include "server/cpu_budget.h"
#include "server/daemon.h"
#include "server/gpu_lock.h"
#include "server/gpu_process.h"
#include "spdlog/spdlog.h"

namespace qgemm {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr std::chrono::seconds kStopGrace{5};
constexpr timespec kHealthInterval{1, 0};

struct CommandLine {
  Config config;
  bool check_config = false;
};

// Flags over the configuration file over defaults. Exits for --help and --version; InvalidArgument: usage.
absl::StatusOr<CommandLine> ParseCommandLine(int argc, char** argv, std::optional<int>* exit_code) {
  CommandLine line;
  Config flags;
  std::string config_file;
  CLI::App app("Tunes quantized GEMM problems on the pinned GPU and serves picks and kernels over gRPC.",
               "qgemmd");
  app.set_version_flag("--version", "qgemmd " QGEMM_VERSION);
  CLI::Option* listen =
      app.add_option("--listen", flags.listen, "unix:PATH or HOST:PORT (loopback); repeatable")
          ->expected(1)
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  CLI::Option* data_dir =
      app.add_option("--data-dir", flags.data_dir, "where picks, timings and kernels are kept");
  CLI::Option* device = app.add_option("--device", flags.device, "auto, none, or a GPU's UUID");
  CLI::Option* target =
      app.add_option("--target", flags.target, "device profile to predict for without a GPU");
  CLI::Option* arch =
      app.add_option("--arch", flags.arch, "compile for this arch instead of the profile's: sm_90a");
  CLI::Option* workers = app.add_option("--workers", flags.workers, "compile workers; 0: as many as fit");
  CLI::Option* cache_limit = app.add_option(
      "--cache-limit", flags.cache_limit, "most that the data directory may hold: 20GiB, 500MB; 0: no limit");
  CLI::Option* max_idle = app.add_option("--cache-max-idle-days", flags.cache_max_idle_days,
                                         "remove picks and kernels that nobody used for so long; 0: never");
  CLI::Option* timing_age = app.add_option("--timing-max-age-days", flags.timing_max_age_days,
                                           "remove timings older than this; 0: never");
  CLI::Option* log_format = app.add_option("--log-format", flags.log_format, "text or json");
  CLI::Option* log_level =
      app.add_option("--log-level", flags.log_level, "trace, debug, info, warn, error or off");
  CLI::Option* compile_binary =
      app.add_option("--compile-binary", flags.compile_binary, "the program qgemm-compile");
  CLI::Option* time_binary = app.add_option("--time-binary", flags.time_binary, "the program qgemm-time");
  CLI::Option* lock_dir = app.add_option("--lock-dir", flags.lock_dir, "where the pinned GPU's lock is");
  CLI::Option* config = app.add_option(
      "--config", config_file, "TOML file with the same keys (data_dir = \"...\"); flags win over it");
  app.add_flag("--check-config", line.check_config, "print the configuration that would be used, and exit");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {
    *exit_code = app.exit(done);
    return line;
  } catch (const CLI::ConversionError& error) {  // --workers alone is no text
    return absl::InvalidArgumentError(absl::StrCat(error.what(), ": a whole number is needed"));
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  if (config->count() > 0) {
    QGEMM_ASSIGN_OR_RETURN(line.config, LoadConfigFile(config_file, line.config));
  }
  if (listen->count() > 0) line.config.listen = flags.listen;
  if (data_dir->count() > 0) line.config.data_dir = flags.data_dir;
  if (device->count() > 0) line.config.device = flags.device;
  if (target->count() > 0) line.config.target = flags.target;
  if (arch->count() > 0) line.config.arch = flags.arch;
  if (workers->count() > 0) line.config.workers = flags.workers;
  if (cache_limit->count() > 0) line.config.cache_limit = flags.cache_limit;
  if (max_idle->count() > 0) line.config.cache_max_idle_days = flags.cache_max_idle_days;
  if (timing_age->count() > 0) line.config.timing_max_age_days = flags.timing_max_age_days;
  if (log_format->count() > 0) line.config.log_format = flags.log_format;
  if (log_level->count() > 0) line.config.log_level = flags.log_level;
  if (compile_binary->count() > 0) line.config.compile_binary = flags.compile_binary;
  if (time_binary->count() > 0) line.config.time_binary = flags.time_binary;
  if (lock_dir->count() > 0) line.config.lock_dir = flags.lock_dir;
  QGEMM_ASSIGN_OR_RETURN(line.config, ResolveConfig(line.config, ProcessEnvironment()));
  return line;
}

absl::StatusOr<std::string> SiblingProgram(const std::string& configured, const std::string& name) {
  if (!configured.empty()) return configured;
  QGEMM_ASSIGN_OR_RETURN(const std::string folder, ProgramFolder());
  return absl::StrCat(folder, "/", name);
}

// The pinned GPU and its lock; all empty without one.
struct PinnedGpu {
  std::unique_ptr<GpuProcess> process;
  std::optional<GpuInfo> info;
  std::optional<FileLock> lock;
};

absl::StatusOr<PinnedGpu> PinGpu(const Config& config, const std::string& holder, Spawner& spawner) {
  PinnedGpu gpu;
  if (config.device == "none") {
    spdlog::info("no GPU is used (--device none): picks are predicted for {}", config.target);
    return gpu;
  }
  GpuProcessOptions options;
  options.device = config.device;
  QGEMM_ASSIGN_OR_RETURN(options.program, SiblingProgram(config.time_binary, "qgemm-time"));
  auto process = std::make_unique<GpuProcess>(&spawner, options, &RealClock());
  absl::StatusOr<GpuInfo> info = process->Describe();
  if (!info.ok()) {
    if (config.device != "auto") return info.status();
    spdlog::info("no GPU can be used ({}): picks are predicted for {}", std::string(info.status().message()),
                 config.target);
    return gpu;
  }
  QGEMM_ASSIGN_OR_RETURN(gpu.lock, TakeGpuLock(info->uuid, config.lock_dir, config.data_dir, holder));
  spdlog::info("pinned {} {} driver {}", info->device.product_name(), info->uuid, info->driver_version);
  gpu.info = *std::move(info);
  gpu.process = std::move(process);
  return gpu;
}

// Blocks SIGTERM and SIGINT in this thread and in those it starts, so that the main thread can wait for them.
sigset_t BlockStopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return signals;
}

absl::Status Serve(const Config& config, Spawner& spawner) {
  const sigset_t stop_signals = BlockStopSignals();
  const std::string holder = DescribeHolder(config.data_dir);
  RocksDbStoreOptions store_options;
  QGEMM_ASSIGN_OR_RETURN(store_options.limit_bytes, ParseByteSize(config.cache_limit));
  absl::StatusOr<std::unique_ptr<RocksDbStore>> opened = RocksDbStore::Open(config.data_dir, store_options);
  if (!opened.ok()) {
    return absl::Status(opened.status().code(), absl::StrCat("data_dir: ", opened.status().message()));
  }
  const std::unique_ptr<RocksDbStore> store = *std::move(opened);
  if (store->moved_aside().has_value()) {
    spdlog::error("the store in {} was damaged; it was moved to {} and a new one begun", config.data_dir,
                  *store->moved_aside());
  }
  HousekeepingOptions housekeeping_options;
  housekeeping_options.retention.max_idle_hours = int64_t{24} * config.cache_max_idle_days;
  housekeeping_options.retention.timing_max_hours = int64_t{24} * config.timing_max_age_days;
  Housekeeping housekeeping(*store, RealClock(), housekeeping_options);
  housekeeping.Start();
  QGEMM_ASSIGN_OR_RETURN(PinnedGpu gpu, PinGpu(config, holder, spawner));
  QGEMM_ASSIGN_OR_RETURN(TargetResolver targets,
                         TargetResolver::Create(config.target, config.arch, gpu.info));

  CompilePoolOptions pool_options;
  QGEMM_ASSIGN_OR_RETURN(const std::string compile_binary,
                         SiblingProgram(config.compile_binary, "qgemm-compile"));
  pool_options.worker = CompileWorkerProgram(compile_binary);
  pool_options.num_workers =
      config.workers > 0 ? config.workers : DefaultCompileWorkers(ReadCpuBudget(), gpu.info.has_value());
  CompilePool pool(&spawner, &RealClock(), pool_options);

  DaemonOptions options;
  for (const std::string& text : config.listen) {
    QGEMM_ASSIGN_OR_RETURN(const ListenAddress address, ParseListenAddress(text));
    options.listen.push_back(address);
  }
  options.data_dir = config.data_dir;
  options.version = QGEMM_VERSION;
  options.holder = holder;
  QGEMM_ASSIGN_OR_RETURN(
      const std::unique_ptr<Daemon> daemon,
      Daemon::Start(*store, pool, gpu.process.get(), RealClock(), std::move(targets), options));
  absl::Status workers = daemon->UpdateHealth();
  if (!workers.ok()) {
    spdlog::error("nothing can be compiled, only the cache is served: {}", std::string(workers.message()));
  }
  spdlog::info("ready: listening on {}, {} compile workers", absl::StrJoin(daemon->addresses(), " "),
               pool.num_workers());

  int signal_number = -1;
  while (signal_number < 0) {
    signal_number = sigtimedwait(&stop_signals, nullptr, &kHealthInterval);
    if (signal_number >= 0) break;
    const absl::Status now = daemon->UpdateHealth();
    if (now.ok() != workers.ok()) {
      if (now.ok()) {
        spdlog::info("compile workers can be started again");
      } else {
        spdlog::error("nothing can be compiled, only the cache is served: {}", std::string(now.message()));
      }
    }
    workers = now;
  }
  spdlog::info("stopping (signal {})", signal_number);
  daemon->Stop(kStopGrace);
  spdlog::info("stopped");
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  std::optional<int> exit_code;
  const absl::StatusOr<CommandLine> line = ParseCommandLine(argc, argv, &exit_code);
  if (exit_code.has_value()) return *exit_code;
  if (!line.ok()) {
    std::fprintf(stderr, "qgemmd: %s\n", std::string(line.status().message()).c_str());
    return kExitUsage;
  }
  const absl::Status log = InitLog({line->config.log_format, line->config.log_level, "qgemmd"});
  if (!log.ok()) {
    std::fprintf(stderr, "qgemmd: %s\n", std::string(log.message()).c_str());
    return kExitUsage;
  }
  if (line->check_config) {
    std::fputs(PrintConfig(line->config).c_str(), stdout);
    return 0;
  }
  // Before any thread exists.
  absl::StatusOr<std::unique_ptr<Spawner>> spawner = Spawner::Start();
  const absl::Status served = spawner.ok() ? Serve(line->config, **spawner) : spawner.status();
  if (served.ok()) return 0;
  std::fprintf(stderr, "qgemmd: %s\n", std::string(served.message()).c_str());
  return absl::IsInvalidArgument(served) ? kExitUsage : kExitFailed;
}

}  // namespace
}  // namespace qgemm

int main(int argc, char** argv) { return qgemm::Main(argc, argv); }
