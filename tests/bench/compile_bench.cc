// What compiling a kernel costs: CPU time of NVRTC per config, by family and token tiles, median and worst,
// in this process. Needs NVRTC, no GPU.
//   compile_bench [--arch sm_90a] [--stride 10] [--match TEXT]... [--config TEXT]... [--out FILE]
// Every --stride-th config of every signature whose name contains one of --match (default: int4, int5, int6
// and int8 with groups of 128, bf16), of the configs whose name contains one of --config (default: all).
// Prints spills and serialised wgmma (ptxas C7512 to C7515), which no shipped config may have. JSON: {"cpu",
// "arch", "toolchain", "rows": [{"family", "token_tiles", "kernels", "median_ms", "worst_ms", "worst"}],
// "kernels", "median_ms", "worst_ms", "spilling", "serialised", "refused"}.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "kernels/cuda/nvrtc.h"
#include "kernels/device_profile.h"
#include "kernels/family/family.h"
#include "kernels/kernel_source.h"
#include "kernels/search_space.h"

namespace qgemm {
namespace {

struct Arguments {
  std::string arch = "sm_90a";
  size_t stride = 10;
  std::vector<std::string> match = {"int4-g128-bf16 act bf16", "int5-g128-bf16 act bf16",
                                    "int6-g128-bf16 act bf16", "int8-g128-bf16 act bf16"};
  std::vector<std::string> config;
  std::string out;
};

// User and system time of this process: what a worker's core is busy for, whoever else runs.
double CpuMs() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto ms = [](const timeval& t) { return t.tv_sec * 1e3 + t.tv_usec / 1e3; };
  return ms(usage.ru_utime) + ms(usage.ru_stime);
}

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (absl::StartsWith(line, "model name")) return line.substr(line.find(": ") + 2);
  }
  return "unknown";
}

// Formats, types and the plain epilogue; those that kernels exist for.
std::vector<KernelSignature> Signatures(const std::vector<std::string>& match) {
  std::vector<KernelSignature> out;
  for (const int bits : {4, 5, 6, 8}) {
    for (const int group : {0, 16, 32, 64, 128, 256}) {
      for (const ScalarType act : {ScalarType::kBf16, ScalarType::kFp16}) {
        for (const ZeroPoint zero : {ZeroPoint::kNone, ZeroPoint::kInteger, ZeroPoint::kFloat}) {
          for (const int levels : {1, 2}) {
            KernelSignature signature;
            signature.act = signature.out = act;
            signature.format = {bits, group, levels == 2 ? ScalarType::kFp16 : act, zero, levels};
            const std::string name = SignatureName(signature);
            const bool wanted = std::any_of(match.begin(), match.end(), [&](const std::string& text) {
              return absl::StrContains(name, text);
            });
            if (wanted && ValidateSignature(signature).ok() && SupportsSignature(signature).ok()) {
              out.push_back(signature);
            }
          }
        }
      }
    }
  }
  return out;
}

struct Cost {
  double ms = 0;
  std::string kernel;
};

double Median(std::vector<Cost>& costs) {
  std::sort(costs.begin(), costs.end(), [](const Cost& a, const Cost& b) { return a.ms < b.ms; });
  return costs[costs.size() / 2].ms;
}

// The profile whose arch it is: legality needs one.
absl::StatusOr<DeviceProfile> ProfileOf(const std::string& arch) {
  for (const char* name : {"a100", "l40s", "h200", "b200", "rtx5090"}) {
    absl::StatusOr<DeviceProfile> profile = FindDeviceProfile(name);
    if (profile.ok() && profile->arch == arch) return profile;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("--arch '%s' is none of the device profiles': sm_80, sm_89, "
                      "sm_90a, sm_100a or sm_120",
                      arch));
}

absl::Status Run(const Arguments& arguments) {
  absl::StatusOr<DeviceProfile> profile = ProfileOf(arguments.arch);
  if (!profile.ok()) return profile.status();
  absl::StatusOr<const Nvrtc*> nvrtc = Nvrtc::Load();
  if (!nvrtc.ok()) return nvrtc.status();
  const std::vector<KernelSignature> signatures = Signatures(arguments.match);
  if (signatures.empty()) return absl::InvalidArgumentError("--match names no signature");

  std::map<std::pair<Family, int>, std::vector<Cost>> rows;
  std::vector<Cost> all;
  int spilling = 0, serialised = 0, refused = 0;
  size_t begin = 0;  // another one for each signature, so that a few cover the space
  for (const KernelSignature& signature : signatures) {
    std::vector<KernelConfig> configs = WholeConfigSpace(signature, *profile);
    std::erase_if(configs, [&](const KernelConfig& config) {
      const std::string name = ConfigName(config);
      return !arguments.config.empty() &&
             std::none_of(arguments.config.begin(), arguments.config.end(),
                          [&](const std::string& text) { return absl::StrContains(name, text); });
    });
    const size_t before = all.size();
    for (size_t i = begin++ % arguments.stride; i < configs.size(); i += arguments.stride) {
      const KernelSource source = RenderKernelSource(configs[i], signature);
      const double start = CpuMs();
      const absl::StatusOr<NvrtcOutput> output = (*nvrtc)->Compile(source, arguments.arch, false);
      const Cost cost{CpuMs() - start, source.name};
      if (!output.ok()) {
        ++refused;
        std::fprintf(stderr, "refused: %s: %s\n", source.name.c_str(), output.status().ToString().c_str());
        continue;
      }
      if (output->resources.spill_store_bytes > 0) {
        ++spilling;
        std::fprintf(stderr, "spills: %s\n", source.name.c_str());
      }
      if (SerialisesWgmma(output->log)) {
        ++serialised;
        std::fprintf(stderr, "serialised: %s\n", source.name.c_str());
      }
      rows[{configs[i].family, configs[i].token_tiles}].push_back(cost);
      all.push_back(cost);
    }
    std::fprintf(stderr, "%s: %zu of %zu configs\n", SignatureName(signature).c_str(), all.size() - before,
                 configs.size());
  }
  if (all.empty()) return absl::InvalidArgumentError("--stride leaves no config");

  nlohmann::ordered_json json = {
      {"cpu", CpuName()}, {"arch", arguments.arch}, {"toolchain", (*nvrtc)->toolchain()}};
  json["rows"] = nlohmann::ordered_json::array();
  std::printf("%s, %s, %s; CPU ms per kernel\n", CpuName().c_str(), arguments.arch.c_str(),
              (*nvrtc)->toolchain().c_str());
  std::printf("%-7s %6s %8s %7s %7s  %s\n", "family", "tokens", "kernels", "median", "worst", "the worst");
  for (auto& [key, costs] : rows) {
    const double median = Median(costs);
    const Cost& worst = costs.back();
    const std::string family = std::vector<std::string>(absl::StrSplit(worst.kernel, '_')).front();
    std::printf("%-7s %6d %8zu %7.0f %7.0f  %s\n", family.c_str(), 8 * key.second, costs.size(), median,
                worst.ms, worst.kernel.c_str());
    json["rows"].push_back({{"family", family},
                            {"token_tiles", key.second},
                            {"kernels", costs.size()},
                            {"median_ms", median},
                            {"worst_ms", worst.ms},
                            {"worst", worst.kernel}});
  }
  const double median = Median(all);
  std::printf("%-7s %6s %8zu %7.0f %7.0f  spilling %d, serialised %d, refused %d\n", "all", "", all.size(),
              median, all.back().ms, spilling, serialised, refused);
  json.update({{"kernels", all.size()},
               {"median_ms", median},
               {"worst_ms", all.back().ms},
               {"spilling", spilling},
               {"serialised", serialised},
               {"refused", refused}});
  if (!arguments.out.empty()) {
    std::ofstream file(arguments.out);
    file << json.dump(1) << "\n";
    if (!file.flush()) {
      return absl::UnavailableError(absl::StrFormat("--out '%s' cannot be written", arguments.out));
    }
  }
  return refused > 0 ? absl::FailedPreconditionError("some kernels were refused") : absl::OkStatus();
}

}  // namespace
}  // namespace qgemm

int main(int argc, char** argv) {
  qgemm::KeepCompilersMemory();  // as a worker does
  qgemm::Arguments arguments;
  CLI::App app("CPU time of compiling kernels");
  app.add_option("--arch", arguments.arch, "sm_80, sm_89, sm_90a, sm_100a or sm_120")->capture_default_str();
  app.add_option("--stride", arguments.stride, "every how manieth config")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--match", arguments.match, "part of a signature's name; repeatable");
  app.add_option("--config", arguments.config, "part of a config's name; repeatable");
  app.add_option("--out", arguments.out, "file to write the JSON to");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = qgemm::Run(arguments);
  if (status.ok()) return 0;
  std::fprintf(stderr, "compile_bench: %s\n", std::string(status.message()).c_str());
  return 1;
}
