#ifndef QGEMM_SERVER_CONFIG_H_
#define QGEMM_SERVER_CONFIG_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/listen_address.h"

namespace qgemm {

// Everything that qgemmd can be told. The same names serve as flags (--data-dir) and, with underscores, as
// keys of the configuration file (data_dir); a flag given wins over the file, the file over the default.
struct Config {
  std::vector<std::string> listen;  // empty: DefaultSocket()
  std::string data_dir;             // empty: DefaultDataDir()
  std::string tls_cert;             // PEM; with it and tls_key every TCP address speaks TLS
  std::string tls_key;              // PEM, without a pass phrase; others must not be able to read it
  std::string tls_client_ca;        // PEM; set: TCP clients show a certificate that it signed, their name
  std::string tokens_file;          // who may call (server/token_file.h); the files' contents are read again
                                    // at SIGHUP, as those of the tls_ keys
  std::vector<std::string> admin;   // names that may do everything, when a token or certificate proves them
  std::string device = "auto";      // auto, none, or a GPU's UUID
  std::string target = "h200";      // device profile to predict for without a GPU
  std::string arch;                 // overrides the profile's
  int workers = 0;                  // compile workers; 0: as many as the CPUs and the memory allow
  std::string cache_limit = "20GiB";  // size of the data directory: 64MiB or more; 0: no limit
  int cache_max_idle_days = 0;        // picks and kernels not used for so long are removed; 0: never
  int timing_max_age_days = 0;        // timings older than this are removed; 0: never
  std::string log_format = "text";
  std::string log_level = "info";
  bool compile_in_process = false;     // compile inside the daemon while no worker can be started
  std::string compile_binary;          // empty: qgemm-compile beside this program
  std::string time_binary;             // empty: qgemm-time beside this program
  std::string gpu_memory_limit = "0";  // what tuning may hold of the GPU's memory: 4GiB; 0: no limit
  std::string sample_log;              // file that gets every sample of every timing; empty: none
  // Read again at SIGHUP; all others need a restart.
  int64_t queue_per_client = 32768;  // picks that one client may have unfinished
  int64_t queue_total = 131072;      // and all clients together
  int64_t calls_per_client = 256;    // calls of one client that wait for jobs
  int64_t job_history = 1000;        // finished jobs remembered
  int64_t job_history_days = 7;      // for this long at most
  int64_t drain_seconds = 20;        // after SIGTERM, for jobs to finish; the others go on at the next start
  int64_t release_gpu_seconds = 0;   // an idle GPU is given back after this long; 0: never
  std::string lock_dir = "/run/lock";  // where the pinned GPU's lock is; containers that share a GPU share it
};

// "20GiB", "500MB", "0" in bytes. InvalidArgument: no such size.
[[nodiscard]] absl::StatusOr<int64_t> ParseByteSize(absl::string_view text);

// What the environment says, injected for tests.
using Environment = std::map<std::string, std::string>;
Environment ProcessEnvironment();

// "unix:$XDG_RUNTIME_DIR/qgemm.sock", else "unix:/run/qgemm/qgemm.sock".
std::string DefaultSocket(const Environment& environment);
// "$HOME/.local/state/qgemm" for a user with a home, else "/var/lib/qgemm".
std::string DefaultDataDir(const Environment& environment);

// The file's keys over `base`. NotFound: there is no such file. InvalidArgument: not TOML (with line and
// column), an unknown key, or a value of the wrong type, naming it and what is allowed.
[[nodiscard]] absl::StatusOr<Config> LoadConfigFile(const std::string& path, const Config& base);

// Checks every value and fills in the defaults that depend on the environment. InvalidArgument names field,
// value and what is allowed.
[[nodiscard]] absl::StatusOr<Config> ResolveConfig(Config config, const Environment& environment);

// Takes over what SIGHUP may change. Returns the names of other keys that differ: they need a restart.
std::vector<std::string> ApplyReloadable(const Config& from, Config& to);

// One "key = value" line per key, as the file would have it.
std::string PrintConfig(const Config& config);

}  // namespace qgemm

#endif  // QGEMM_SERVER_CONFIG_H_
