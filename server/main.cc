// qgemmd: tunes quantized GEMM problems and serves picks and kernels over gRPC. The only file that names
// concrete classes.
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

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
#include "server/driver_watch.h"
#include "server/fallback_compiler.h"
#include "server/gpu_lock.h"
#include "server/gpu_process.h"
#include "server/pausable_gpu.h"
#include "server/security.h"
#include "server/worker/nvrtc_compile.h"
#include "spdlog/spdlog.h"

namespace qgemm {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
// For calls that are answered at once; Tune and WatchJob are ended before.
constexpr std::chrono::seconds kStopGrace{5};
constexpr timespec kHealthInterval{1, 0};
constexpr timespec kDrainInterval{0, 100'000'000};
// What was freed goes back to the system so often: about a millisecond of a core, and the memory of a burst
// (a thousand keys, a long list, an export) is no longer the daemon's soon after it.
constexpr Duration kTrimInterval = std::chrono::seconds(1);

// The allocator would keep what is freed in eight arenas per core: three quarters of the daemon's memory
// after minutes of tunings. Few are enough, since threads have small blocks of their own. Blocks from some
// pages on (answers to many keys, kernels, write buffers) leave with their pages; by default the threshold
// grows with what is freed, and they leave holes between small blocks that stay. tests/bench/mixed_load grew
// by 14 to 21 % in half an hour with the defaults.
void LimitAllocator() {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  mallopt(M_ARENA_MAX, std::max(2, cores / 4));
  mallopt(M_MMAP_THRESHOLD, 16 << 10);
  mallopt(M_TRIM_THRESHOLD, 128 << 10);
}

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
  CLI::Option* listen = app.add_option("--listen", flags.listen,
                                       "unix:PATH or HOST:PORT (other than loopback: with TLS); repeatable")
                            ->expected(1)
                            ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  CLI::Option* admin =
      app.add_option("--admin", flags.admin,
                     "a name that may do everything once a token or certificate proves it; repeatable")
          ->expected(1)
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  struct TextFlag {
    CLI::Option* option;
    std::string Config::*field;
  };
  std::vector<TextFlag> files;
  const auto add_file = [&](const char* name, std::string Config::*field, const char* help) {
    files.push_back({app.add_option(name, flags.*field, help)->type_name("FILE"), field});
  };
  add_file("--tls-cert", &Config::tls_cert,
           "PEM certificate chain: TCP addresses speak TLS; read again at SIGHUP");
  add_file("--tls-key", &Config::tls_key, "its PEM private key, mode 0640 or less; read again at SIGHUP");
  add_file("--tls-client-ca", &Config::tls_client_ca,
           "PEM: TCP clients must show a certificate that it signed; its common name is who they are");
  add_file(
      "--tokens-file", &Config::tokens_file,
      "clients must send a token; lines of NAME:SHA256-OF-TOKEN[:admin], mode 0640 or less; read again at "
      "SIGHUP");
  add_file("--sample-log", &Config::sample_log,
           "gets every sample of every timing, a line of JSON per candidate and phase");
  CLI::Option* gpu_memory =
      app.add_option("--gpu-memory-limit", flags.gpu_memory_limit,
                     "most that tuning may hold of the GPU's memory: 4GiB, 500MB; 0: no limit");
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
  CLI::Option* in_process = app.add_flag("--compile-in-process", flags.compile_in_process,
                                         "while no compile worker can be started, compile inside the daemon");
  CLI::Option* log_format = app.add_option("--log-format", flags.log_format, "text or json");
  CLI::Option* log_level =
      app.add_option("--log-level", flags.log_level, "trace, debug, info, warn, error or off");
  CLI::Option* compile_binary =
      app.add_option("--compile-binary", flags.compile_binary, "the program qgemm-compile");
  CLI::Option* time_binary = app.add_option("--time-binary", flags.time_binary, "the program qgemm-time");
  CLI::Option* lock_dir = app.add_option("--lock-dir", flags.lock_dir, "where the pinned GPU's lock is");
  struct NumberFlag {
    CLI::Option* option;
    int64_t Config::*field;
  };
  std::vector<NumberFlag> numbers;
  const auto add_number = [&](const char* name, int64_t Config::*field, const char* help) {
    numbers.push_back({app.add_option(name, flags.*field, help), field});
  };
  add_number("--queue-per-client", &Config::queue_per_client, "picks that one client may have unfinished");
  add_number("--queue-total", &Config::queue_total, "picks that all clients may have unfinished");
  add_number("--calls-per-client", &Config::calls_per_client, "calls of one client that wait for jobs");
  add_number("--job-history", &Config::job_history, "finished jobs that are remembered");
  add_number("--job-history-days", &Config::job_history_days, "and for how many days");
  add_number("--drain-seconds", &Config::drain_seconds,
             "after SIGTERM, for jobs to finish; the others go on at the next start");
  add_number("--release-gpu-seconds", &Config::release_gpu_seconds,
             "give an idle GPU back after this long; 0: never");
  CLI::Option* config = app.add_option(
      "--config", config_file, "TOML file with the same keys (data_dir = \"...\"); flags win over it");
  app.add_flag("--check-config", line.check_config,
               "check the configuration and its files, print it, and exit");
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
  if (admin->count() > 0) line.config.admin = flags.admin;
  for (const TextFlag& file : files) {
    if (file.option->count() == 0) continue;
    // An unset variable in a script must not open the daemon to everybody.
    if ((flags.*file.field).empty()) {
      return absl::InvalidArgumentError(absl::StrCat(file.option->get_name(), " is empty; allowed: a file"));
    }
    line.config.*file.field = flags.*file.field;
  }
  if (data_dir->count() > 0) {
    // The usual directory is for who asks for none.
    if (flags.data_dir.empty()) {
      return absl::InvalidArgumentError("--data-dir is empty; allowed: a directory");
    }
    line.config.data_dir = flags.data_dir;
  }
  if (device->count() > 0) line.config.device = flags.device;
  if (target->count() > 0) line.config.target = flags.target;
  if (arch->count() > 0) line.config.arch = flags.arch;
  if (workers->count() > 0) line.config.workers = flags.workers;
  if (cache_limit->count() > 0) line.config.cache_limit = flags.cache_limit;
  if (max_idle->count() > 0) line.config.cache_max_idle_days = flags.cache_max_idle_days;
  if (timing_age->count() > 0) line.config.timing_max_age_days = flags.timing_max_age_days;
  if (in_process->count() > 0) line.config.compile_in_process = flags.compile_in_process;
  if (log_format->count() > 0) line.config.log_format = flags.log_format;
  if (log_level->count() > 0) line.config.log_level = flags.log_level;
  if (compile_binary->count() > 0) line.config.compile_binary = flags.compile_binary;
  if (time_binary->count() > 0) line.config.time_binary = flags.time_binary;
  if (gpu_memory->count() > 0) line.config.gpu_memory_limit = flags.gpu_memory_limit;
  if (lock_dir->count() > 0) line.config.lock_dir = flags.lock_dir;
  for (const NumberFlag& number : numbers) {
    if (number.option->count() > 0) line.config.*number.field = flags.*number.field;
  }
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

// How the GPU is given back and taken again. `gpu` outlives what is returned.
PausableGpu::Hooks GiveAndTake(PinnedGpu& gpu, const Config& config, const std::string& holder) {
  PausableGpu::Hooks hooks;
  hooks.release = [&gpu] {
    gpu.process->Stop();
    gpu.lock.reset();
  };
  hooks.acquire = [&gpu, &config, holder] {
    absl::StatusOr<FileLock> lock = TakeGpuLock(gpu.info->uuid, config.lock_dir, config.data_dir, holder);
    if (absl::IsFailedPrecondition(lock.status())) return absl::UnavailableError(lock.status().message());
    QGEMM_RETURN_IF_ERROR(lock.status());
    gpu.lock = *std::move(lock);
    return absl::OkStatus();
  };
  return hooks;
}

absl::StatusOr<PinnedGpu> PinGpu(const Config& config, const std::string& holder, Spawner& spawner) {
  PinnedGpu gpu;
  if (config.device == "none") {
    spdlog::info("no GPU is used (--device none): picks are predicted for {}", config.target);
    return gpu;
  }
  GpuProcessOptions options;
  options.device = config.device;
  QGEMM_ASSIGN_OR_RETURN(options.program, SiblingProgram(config.time_binary, "qgemm-time"));
  QGEMM_ASSIGN_OR_RETURN(options.memory_limit_bytes, ParseByteSize(config.gpu_memory_limit));
  options.sample_log = config.sample_log;
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

// Blocks SIGTERM, SIGINT and SIGHUP in this thread and in those it starts, so that the main thread can wait
// for them.
sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return signals;
}

// NVRTC in this process.
absl::StatusOr<FallbackCompiler::InProcess> LoadInProcess() {
  QGEMM_ASSIGN_OR_RETURN(const Nvrtc* nvrtc, Nvrtc::Load());
  FallbackCompiler::InProcess here;
  here.toolchain = nvrtc->toolchain();
  here.archs = nvrtc->archs();
  here.compile = [nvrtc](const CompileTask& task) -> absl::StatusOr<internal::CompileReply> {
    internal::CompileReply reply = CompileWithNvrtc(*nvrtc, MakeCompileRequest(task, /*id=*/0));
    if (reply.error().empty()) return reply;
    return reply.compiler_failed() ? absl::InternalError(reply.error())
                                   : absl::InvalidArgumentError(reply.error());
  };
  return here;
}

JobLimits JobLimitsOf(const Config& config) {
  JobLimits limits;
  limits.picks_per_client = config.queue_per_client;
  limits.picks_total = config.queue_total;
  limits.streams_per_client = static_cast<int>(config.calls_per_client);
  limits.history.count = static_cast<int>(config.job_history);
  limits.history.age = std::chrono::hours(24 * config.job_history_days);
  return limits;
}

// What SIGHUP does about certificates and tokens.
void ReloadSecurity(Security& security, Daemon& daemon, const std::vector<std::string>& admins) {
  for (const absl::Status& refused : security.Reload(admins)) {
    spdlog::error("SIGHUP: what was read before stays in use: {}", std::string(refused.message()));
  }
  daemon.SetAccess(security.rules());
  const std::string now = security.Describe();
  if (!now.empty()) spdlog::info("SIGHUP: in use: {}", now);
  for (const std::string& warning : security.Warnings()) spdlog::warn("{}", warning);
}

// Serves until a signal has ended it. At the first SIGTERM or SIGINT it refuses new jobs and lets the others
// finish for drain_seconds; at the second it stops at once. Whatever is left then is in the journal. SIGHUP:
// `reload` gives the configuration to take limits from, and certificates and tokens are read again. `tick`:
// to be called about once a second.
void ServeUntilSignalled(const sigset_t& signals, Daemon& daemon, Security& security, absl::Status workers,
                         Config config, const std::function<absl::StatusOr<Config>()>& reload,
                         const std::function<void()>& tick) {
  std::optional<TimePoint> drain_until;
  TimePoint next_trim = RealClock().Now() + kTrimInterval;
  while (true) {
    const int number =
        sigtimedwait(&signals, nullptr, drain_until.has_value() ? &kDrainInterval : &kHealthInterval);
    if (number == SIGHUP) {
      const absl::StatusOr<Config> read = reload();
      ReloadSecurity(security, daemon, read.ok() ? read->admin : config.admin);
      if (!read.ok()) {
        spdlog::error("SIGHUP: the limits stay as they were, nothing was changed: {}",
                      std::string(read.status().message()));
        continue;
      }
      const std::vector<std::string> others = ApplyReloadable(*read, config);
      daemon.SetLimits(JobLimitsOf(config));
      spdlog::set_level(spdlog::level::from_str(config.log_level));
      spdlog::info("SIGHUP: limits were read again{}",
                   others.empty() ? "" : absl::StrCat("; for a restart: ", absl::StrJoin(others, ", ")));
    } else if (number > 0 && drain_until.has_value()) {
      spdlog::info("stopping at once (signal {})", number);
      return;
    } else if (number > 0) {
      spdlog::info("draining for up to {} s (signal {})", config.drain_seconds, number);
      daemon.Drain();
      drain_until = RealClock().Now() + std::chrono::seconds(config.drain_seconds);
    }
    tick();
    if (RealClock().Now() >= next_trim) {
      malloc_trim(0);
      next_trim = RealClock().Now() + kTrimInterval;
    }
    if (config.release_gpu_seconds > 0) {
      daemon.ReleaseIdleGpu(std::chrono::seconds(config.release_gpu_seconds));
    }
    if (drain_until.has_value()) {
      if (daemon.active_jobs() == 0 || RealClock().Now() >= *drain_until) return;
      continue;
    }
    const absl::Status now = daemon.UpdateHealth();
    if (now.ok() != workers.ok()) {
      if (now.ok()) {
        spdlog::info("compile workers can be started again");
      } else {
        spdlog::error("nothing can be compiled, only the cache is served: {}", std::string(now.message()));
      }
    }
    workers = now;
  }
}

absl::Status Serve(const Config& config, Spawner& spawner,
                   const std::function<absl::StatusOr<Config>()>& reload) {
  const sigset_t signals = BlockSignals();
  const std::string holder = DescribeHolder(config.data_dir);
  QGEMM_ASSIGN_OR_RETURN(const std::unique_ptr<Security> security, Security::Load(config, RealClock()));
  if (const std::string described = security->Describe(); !described.empty()) spdlog::info("{}", described);
  for (const std::string& warning : security->Warnings()) spdlog::warn("{}", warning);
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

  std::optional<DriverWatch> driver;
  const auto driver_is = [targets](const std::string& version) {
    const std::string before = targets.driver_version();
    if (!targets.SetDriverVersion(version)) return;
    spdlog::warn("the driver is {} now, no longer {}: picks are stale until they are timed again", version,
                 before);
  };
  if (gpu.process != nullptr) {
    driver.emplace(targets.driver_version());
    gpu.process->OnStart([driver_is](const GpuInfo& info) { driver_is(info.driver_version); });
  }

  std::unique_ptr<PausableGpu> pausable;
  if (gpu.process != nullptr) {
    pausable = std::make_unique<PausableGpu>(*gpu.process, RealClock(), GiveAndTake(gpu, config, holder));
  }

  CompilePoolOptions pool_options;
  QGEMM_ASSIGN_OR_RETURN(const std::string compile_binary,
                         SiblingProgram(config.compile_binary, "qgemm-compile"));
  pool_options.worker = CompileWorkerProgram(compile_binary);
  pool_options.num_workers =
      config.workers > 0 ? config.workers : DefaultCompileWorkers(ReadCpuBudget(), gpu.info.has_value());
  CompilePool pool(&spawner, &RealClock(), pool_options);

  std::unique_ptr<FallbackCompiler> fallback;
  if (config.compile_in_process) fallback = std::make_unique<FallbackCompiler>(pool, LoadInProcess);
  Compiler& compiler = fallback != nullptr ? static_cast<Compiler&>(*fallback) : pool;

  DaemonOptions options;
  for (const std::string& text : config.listen) {
    QGEMM_ASSIGN_OR_RETURN(const ListenAddress address, ParseListenAddress(text));
    options.listen.push_back(address);
  }
  options.data_dir = config.data_dir;
  options.version = QGEMM_VERSION;
  options.holder = holder;
  options.tls = security->tls();
  options.access = security->rules();
  options.tuner.jobs = JobLimitsOf(config);
  QGEMM_ASSIGN_OR_RETURN(
      const std::unique_ptr<Daemon> daemon,
      Daemon::Start(*store, compiler, pausable.get(), RealClock(), std::move(targets), options));
  const absl::Status workers = daemon->UpdateHealth();
  if (!workers.ok()) {
    spdlog::error("nothing can be compiled, only the cache is served: {}", std::string(workers.message()));
  }
  spdlog::info("ready: listening on {}, {} compile workers", absl::StrJoin(daemon->addresses(), " "),
               pool.num_workers());

  const auto tick = [&] {
    const std::optional<std::string> version = driver.has_value() ? driver->Changed() : std::nullopt;
    if (version.has_value()) driver_is(*version);
    daemon->Tick();
  };
  ServeUntilSignalled(signals, *daemon, *security, workers, config, reload, tick);
  if (const int left = daemon->active_jobs(); left > 0) {
    spdlog::info("{} jobs are not finished; they go on at the next start", left);
  }
  daemon->Stop(kStopGrace);
  spdlog::info("stopped");
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  LimitAllocator();
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
    const absl::Status files = Security::Load(line->config, RealClock()).status();
    if (files.ok()) return 0;
    std::fprintf(stderr, "qgemmd: %s\n", std::string(files.message()).c_str());
    return kExitUsage;
  }
  const auto reload = [argc, argv]() -> absl::StatusOr<Config> {
    std::optional<int> unused;
    QGEMM_ASSIGN_OR_RETURN(const CommandLine again, ParseCommandLine(argc, argv, &unused));
    return again.config;
  };
  // Before any thread exists.
  absl::StatusOr<std::unique_ptr<Spawner>> spawner = Spawner::Start();
  const absl::Status served = spawner.ok() ? Serve(line->config, **spawner, reload) : spawner.status();
  if (served.ok()) return 0;
  std::fprintf(stderr, "qgemmd: %s\n", std::string(served.message()).c_str());
  return absl::IsInvalidArgument(served) ? kExitUsage : kExitFailed;
}

}  // namespace
}  // namespace qgemm

int main(int argc, char** argv) { return qgemm::Main(argc, argv); }
