#include "server/config.h"

#include <toml++/toml.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "cache/rocksdb_store.h"
#include "kernels/device_profile.h"

namespace qgemm {
namespace {

constexpr int kMaxWorkers = 1024;

// The scalar text keys, in the order in which they are printed.
struct TextKey {
  absl::string_view name;
  std::string Config::*field;
  bool is_file = false;  // names a file: may be left out, not be empty
};
constexpr TextKey kTextKeys[] = {
    {"tls_cert", &Config::tls_cert, true},
    {"tls_key", &Config::tls_key, true},
    {"tls_client_ca", &Config::tls_client_ca, true},
    {"tokens_file", &Config::tokens_file, true},
    {"data_dir", &Config::data_dir},
    {"device", &Config::device},
    {"target", &Config::target},
    {"arch", &Config::arch},
    {"cache_limit", &Config::cache_limit},
    {"log_format", &Config::log_format},
    {"log_level", &Config::log_level},
    {"compile_binary", &Config::compile_binary},
    {"time_binary", &Config::time_binary},
    {"gpu_memory_limit", &Config::gpu_memory_limit},
    {"sample_log", &Config::sample_log, true},
    {"lock_dir", &Config::lock_dir},
};

// The keys with one text or several.
struct ListKey {
  absl::string_view name;
  std::vector<std::string> Config::*field;
};
constexpr ListKey kListKeys[] = {{"listen", &Config::listen}, {"admin", &Config::admin}};

// The whole-number keys.
struct NumberKey {
  absl::string_view name;
  int Config::*field;
  int most;
  absl::string_view zero;  // what 0 means
};
constexpr int kMaxDays = 36500;
constexpr NumberKey kNumberKeys[] = {
    {"workers", &Config::workers, kMaxWorkers, "automatic"},
    {"cache_max_idle_days", &Config::cache_max_idle_days, kMaxDays, "never"},
    {"timing_max_age_days", &Config::timing_max_age_days, kMaxDays, "never"},
};

absl::Status CheckNumber(const NumberKey& key, int64_t value) {
  if (value >= 0 && value <= key.most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(key.name, " is ", value, "; allowed: 0 (", key.zero, ") .. ", key.most));
}

// The whole numbers that SIGHUP may change, in the order in which they are printed.
struct LimitKey {
  absl::string_view name;
  int64_t Config::*field;
  int64_t least;
  int64_t most;
};
constexpr LimitKey kLimitKeys[] = {
    {"queue_per_client", &Config::queue_per_client, 1, 100'000'000},
    {"queue_total", &Config::queue_total, 1, 100'000'000},
    {"calls_per_client", &Config::calls_per_client, 1, 10'000},
    {"job_history", &Config::job_history, 0, 1'000'000},
    {"job_history_days", &Config::job_history_days, 0, 3650},
    {"drain_seconds", &Config::drain_seconds, 0, 3600},
    {"release_gpu_seconds", &Config::release_gpu_seconds, 0, 1'000'000},
};

std::string AllowedKeys() {
  const auto name = [](std::string* out, const auto& key) { absl::StrAppend(out, key.name); };
  return absl::StrCat(absl::StrJoin(kListKeys, ", ", name), ", compile_in_process, ",
                      absl::StrJoin(kNumberKeys, ", ", name), ", ", absl::StrJoin(kTextKeys, ", ", name),
                      ", ", absl::StrJoin(kLimitKeys, ", ", name));
}

absl::Status OutOfRange(const LimitKey& key, int64_t value) {
  return absl::InvalidArgumentError(
      absl::StrCat(key.name, " is ", value, "; allowed: ", key.least, " .. ", key.most));
}

absl::Status WrongType(const std::string& path, absl::string_view key, absl::string_view allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": ", key, " has a value of the wrong type; allowed: ", allowed));
}

absl::Status SetList(const std::string& path, const ListKey& key, const toml::node& value, Config& config) {
  std::vector<std::string>& list = config.*key.field;
  list.clear();
  if (const auto text = value.value_exact<std::string>()) {
    list.push_back(*text);
    return absl::OkStatus();
  }
  const toml::array* array = value.as_array();
  if (array == nullptr) return WrongType(path, key.name, "a string or an array of strings");
  for (const toml::node& element : *array) {
    const auto text = element.value_exact<std::string>();
    if (!text) return WrongType(path, key.name, "a string or an array of strings");
    list.push_back(*text);
  }
  return absl::OkStatus();
}

absl::Status SetKey(const std::string& path, absl::string_view key, const toml::node& value, Config& config) {
  for (const ListKey& list_key : kListKeys) {
    if (list_key.name == key) return SetList(path, list_key, value, config);
  }
  for (const NumberKey& number_key : kNumberKeys) {
    if (number_key.name != key) continue;
    const auto number = value.value_exact<int64_t>();
    if (!number) return WrongType(path, key, "a whole number");
    const absl::Status valid = CheckNumber(number_key, *number);
    if (!valid.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", valid.message()));
    config.*number_key.field = static_cast<int>(*number);
    return absl::OkStatus();
  }
  for (const TextKey& text_key : kTextKeys) {
    if (text_key.name != key) continue;
    const auto text = value.value_exact<std::string>();
    if (!text) return WrongType(path, key, "a string");
    // A template that left a name out must not open the daemon to everybody.
    if (text->empty() && text_key.is_file) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", key, " is empty; allowed: a file"));
    }
    config.*text_key.field = *text;
    return absl::OkStatus();
  }
  if (key == "compile_in_process") {
    const auto flag = value.value_exact<bool>();
    if (!flag) return WrongType(path, key, "true or false");
    config.compile_in_process = *flag;
    return absl::OkStatus();
  }
  for (const LimitKey& limit_key : kLimitKeys) {
    if (limit_key.name != key) continue;
    const auto number = value.value_exact<int64_t>();
    if (!number) return WrongType(path, key, "a whole number");
    config.*limit_key.field = *number;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ": unknown key ", key, "; allowed: ", AllowedKeys()));
}

absl::Status CheckTls(const Config& config, const std::vector<ListenAddress>& addresses) {
  if (config.tls_cert.empty() != config.tls_key.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(config.tls_cert.empty() ? "tls_key" : "tls_cert", " is set and ",
                     config.tls_cert.empty() ? "tls_cert" : "tls_key", " is not; TLS needs both"));
  }
  if (!config.tls_client_ca.empty() && config.tls_cert.empty()) {
    return absl::InvalidArgumentError("tls_client_ca is set, which needs tls_cert and tls_key, too");
  }
  if (!config.tls_cert.empty()) return absl::OkStatus();
  for (const ListenAddress& address : addresses) {
    if (address.IsLocal()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("listen is \"", address.ForGrpc(),
                     "\", which is not a loopback address, and the port would be open to everybody; allowed: "
                     "unix:PATH, HOST:PORT with HOST of 127.0.0.1, ::1 or localhost, or TLS (--tls-cert and "
                     "--tls-key)"));
  }
  return absl::OkStatus();
}

absl::string_view Lookup(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? absl::string_view() : absl::string_view(found->second);
}

}  // namespace

Environment ProcessEnvironment() {
  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view line(*entry);
    const size_t equals = line.find('=');
    if (equals != absl::string_view::npos) {
      environment.emplace(std::string(line.substr(0, equals)), std::string(line.substr(equals + 1)));
    }
  }
  return environment;
}

absl::StatusOr<int64_t> ParseByteSize(absl::string_view text) {
  static constexpr std::pair<absl::string_view, double> kUnits[] = {
      {"", 1},      {"B", 1},      {"KB", 1e3},      {"MB", 1e6},         {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}, {"TiB", 1099511627776},
  };
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const absl::string_view unit = absl::StripLeadingAsciiWhitespace(text.substr(digits));
  double number = 0;
  for (const auto& [name, bytes] : kUnits) {
    if (name != unit || !absl::SimpleAtod(text.substr(0, digits), &number) || number * bytes > 1e18) continue;
    return static_cast<int64_t>(number * bytes);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is no size; allowed: a number with B, KB, MB, GB, KiB, MiB, GiB or TiB"));
}

std::string DefaultSocket(const Environment& environment) {
  const absl::string_view runtime = Lookup(environment, "XDG_RUNTIME_DIR");
  return runtime.empty() ? "unix:/run/qgemm/qgemm.sock" : absl::StrCat("unix:", runtime, "/qgemm.sock");
}

std::string DefaultDataDir(const Environment& environment) {
  const absl::string_view home = Lookup(environment, "HOME");
  // A service user's home is usually "/" or "/nonexistent".
  if (home.empty() || home == "/" || home == "/nonexistent") return "/var/lib/qgemm";
  return absl::StrCat(home, "/.local/state/qgemm");
}

absl::StatusOr<Config> LoadConfigFile(const std::string& path, const Config& base) {
  if (access(path.c_str(), F_OK) != 0) {
    return absl::NotFoundError(absl::StrCat("config ", path, " does not exist"));
  }
  if (access(path.c_str(), R_OK) != 0) {
    return absl::PermissionDeniedError(absl::StrCat("config ", path, " cannot be read"));
  }
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat("config ", path, " is a folder; allowed: a TOML file"));
  }
  toml::table table;
  try {
    table = toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("config ", path, " is not TOML: ", std::string(error.description()), " at line ",
                     error.source().begin.line, ", column ", error.source().begin.column));
  }
  Config config = base;
  for (const auto& [key, value] : table) {
    const absl::string_view name(key.str().data(), key.str().size());
    QGEMM_RETURN_IF_ERROR(SetKey(absl::StrCat("config ", path), name, value, config));
  }
  return config;
}

absl::StatusOr<Config> ResolveConfig(Config config, const Environment& environment) {
  if (config.listen.empty()) config.listen.push_back(DefaultSocket(environment));
  std::vector<ListenAddress> addresses;
  for (const std::string& text : config.listen) {
    QGEMM_ASSIGN_OR_RETURN(const ListenAddress address, ParseListenAddress(text));
    addresses.push_back(address);
  }
  QGEMM_RETURN_IF_ERROR(CheckTls(config, addresses));
  if (config.data_dir.empty()) config.data_dir = DefaultDataDir(environment);
  if (config.device != "auto" && config.device != "none" && !absl::StartsWith(config.device, "GPU-")) {
    return absl::InvalidArgumentError(
        absl::StrCat("device is \"", config.device, "\"; allowed: auto, none, or a GPU's UUID (GPU-...)"));
  }
  QGEMM_RETURN_IF_ERROR(FindDeviceProfile(config.target).status());
  if (!config.arch.empty()) QGEMM_RETURN_IF_ERROR(ValidateArch(config.arch));
  for (const NumberKey& key : kNumberKeys) QGEMM_RETURN_IF_ERROR(CheckNumber(key, config.*key.field));
  if (const absl::Status memory = ParseByteSize(config.gpu_memory_limit).status(); !memory.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("gpu_memory_limit is \"", config.gpu_memory_limit,
                                                   "\": ", std::string(memory.message())));
  }
  const absl::StatusOr<int64_t> limit = ParseByteSize(config.cache_limit);
  if (!limit.ok() || (*limit != 0 && *limit < kMinStoreLimitBytes)) {
    return absl::InvalidArgumentError(absl::StrCat("cache_limit is \"", config.cache_limit,
                                                   "\"; allowed: 0 (none), or a size from 64MiB on"));
  }
  for (const LimitKey& key : kLimitKeys) {
    const int64_t value = config.*key.field;
    if (value < key.least || value > key.most) return OutOfRange(key, value);
  }
  return config;
}

std::vector<std::string> ApplyReloadable(const Config& from, Config& to) {
  for (const LimitKey& key : kLimitKeys) to.*key.field = from.*key.field;
  to.log_level = from.log_level;
  to.admin = from.admin;
  std::vector<std::string> differing;
  for (const ListKey& key : kListKeys) {
    if (from.*key.field != to.*key.field) differing.emplace_back(key.name);
  }
  for (const NumberKey& key : kNumberKeys) {
    if (from.*key.field != to.*key.field) differing.emplace_back(key.name);
  }
  if (from.compile_in_process != to.compile_in_process) differing.emplace_back("compile_in_process");
  for (const TextKey& key : kTextKeys) {
    if (from.*key.field != to.*key.field) differing.emplace_back(key.name);
  }
  return differing;
}

std::string PrintConfig(const Config& config) {
  std::string text;
  const auto quoted = [](std::string* out, const std::string& element) {
    absl::StrAppend(out, "\"", element, "\"");
  };
  for (const ListKey& key : kListKeys) {
    absl::StrAppend(&text, key.name, " = [", absl::StrJoin(config.*key.field, ", ", quoted), "]\n");
  }
  for (const TextKey& key : kTextKeys) {
    if (key.is_file && (config.*key.field).empty()) {
      absl::StrAppend(&text, "# ", key.name, " is not set\n");
    } else {
      absl::StrAppend(&text, key.name, " = \"", config.*key.field, "\"\n");
    }
  }
  for (const NumberKey& key : kNumberKeys) {
    absl::StrAppend(&text, key.name, " = ", config.*key.field, "\n");
  }
  absl::StrAppend(&text, "compile_in_process = ", config.compile_in_process ? "true" : "false", "\n");
  for (const LimitKey& key : kLimitKeys) absl::StrAppend(&text, key.name, " = ", config.*key.field, "\n");
  return text;
}

}  // namespace qgemm
