#include "client/bundle/bundle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/str_format.h"
#include "client/bundle/launch_spec_json.h"
#include "client/bundle/tar.h"
#include "tests/unit/client/sample_bundle.h"

namespace qgemm {
namespace {

using ::testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}
void ChangeByte(const std::string& path, size_t at) {
  std::string bytes = ReadFile(path);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  std::ofstream(path, std::ios::binary) << bytes;
}
std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(Bundle, DirectoryAndTarHoldTheSame) {
  const TemporaryFolder folder;
  WriteSampleBundle(folder / "b");
  WriteSampleBundle(folder / "b.tar");
  const auto directory = Bundle::Open(folder / "b");
  const auto tar = Bundle::Open(folder / "b.tar");
  ASSERT_TRUE(directory.ok()) << directory.status();
  ASSERT_TRUE(tar.ok()) << tar.status();
  EXPECT_EQ(directory->files(), tar->files());
  EXPECT_EQ(directory->files().size(), 6);  // manifest, two methods, two kernels, weights
  EXPECT_TRUE(directory->Verify().ok()) << directory->Verify();
  EXPECT_TRUE(tar->Verify().ok()) << tar->Verify();
}

TEST(Bundle, TheSameContentsAreTheSameBytes) {
  const TemporaryFolder folder;
  WriteSampleBundle(folder / "a.tar");
  WriteSampleBundle(folder / "b.tar");
  EXPECT_EQ(ReadFile(folder / "a.tar"), ReadFile(folder / "b.tar"));
}

TEST(Bundle, AStaticMethodCarriesOneKernelADynamicOneEveryBucket) {
  const TemporaryFolder folder;
  WriteSampleBundle(folder / "b");
  const auto bundle = Bundle::Open(folder / "b");
  ASSERT_TRUE(bundle.ok());
  EXPECT_EQ(bundle->Method("decode")->layers[0].picks.size(), 1);
  EXPECT_EQ(bundle->Method("prefill")->layers[0].picks.size(), BucketLadder().size());
  const auto missing = bundle->Method("encode");
  EXPECT_TRUE(absl::IsNotFound(missing.status()));
  EXPECT_THAT(Message(missing.status()), HasSubstr("decode, prefill"));
}

TEST(Bundle, VerifyFindsAChangedByteInAnyFile) {
  const TemporaryFolder folder;
  WriteSampleBundle(folder / "b");
  const auto names = Bundle::Open(folder / "b")->files();
  for (const auto& [name, bytes] : names) {
    if (name == kManifestFile) continue;
    WriteSampleBundle(folder / "b");
    ChangeByte(folder / ("b/" + name), bytes.size() / 2);
    const auto bundle = Bundle::Open(folder / "b");
    ASSERT_TRUE(bundle.ok());
    EXPECT_TRUE(absl::IsDataLoss(bundle->Verify())) << name;
    EXPECT_THAT(Message(bundle->Verify()), HasSubstr(name));
  }
}

TEST(Bundle, VerifyFindsMissingAndUnknownFiles) {
  const TemporaryFolder folder;
  WriteSampleBundle(folder / "b");
  std::ofstream(folder / "b/kernels/more") << "?";
  EXPECT_THAT(Message(Bundle::Open(folder / "b")->Verify()), HasSubstr("kernels/more is not listed"));
  WriteSampleBundle(folder / "b");
  std::filesystem::remove(folder / "b/weights.safetensors");
  EXPECT_THAT(Message(Bundle::Open(folder / "b")->Verify()), HasSubstr("weights.safetensors is missing"));
}

TEST(CheckAccess, AKernelWritesWhatItsLaunchSays) {
  const LaunchSpec launch = SamplePick(8, kMmaConfig, 2, SampleProblem()).launch;
  BundleKernel kernel;
  kernel.sha256 = "abc";
  EXPECT_TRUE(CheckAccess(kernel, launch).ok());  // not known
  for (size_t i = 0; i < launch.arguments.size(); ++i) {
    const auto* const pointer = std::get_if<PointerArgument>(&launch.arguments[i].kind);
    for (const bool written : {false, true}) {
      kernel.access = {
          {"failure", nullptr},
          {"parameters", {{{"index", i}, {"read", true}, {"written", written}, {"alignment", 16}}}}};
      const bool declared = pointer != nullptr && pointer->written;
      const absl::Status status = CheckAccess(kernel, launch);
      EXPECT_EQ(status.ok(), !written || declared) << launch.arguments[i].name;
      if (!status.ok()) {
        EXPECT_THAT(Message(status), HasSubstr("writes argument '" + launch.arguments[i].name));
      }
    }
    kernel.access["failure"] = "calls a function";
    EXPECT_TRUE(CheckAccess(kernel, launch).ok());
  }
}

TEST(Bundle, VerifyFindsAKernelThatWritesItsInput) {
  const TemporaryFolder folder;
  WriteSampleBundle(folder / "b");
  std::string manifest = ReadFile(folder / "b/manifest.json");
  const size_t at = manifest.find("\"access\": null");
  manifest.replace(
      at, 14,
      "\"access\": {\"failure\": null, \"parameters\": [{\"index\": 0, \"read\": true, \"written\": true, "
      "\"alignment\": 16}]}");
  std::ofstream(folder / "b/manifest.json") << manifest;
  EXPECT_THAT(Message(Bundle::Open(folder / "b")->Verify()), HasSubstr("which its launch does not say"));
}

TEST(Bundle, ATruncatedTarNamesTheByte) {
  const TemporaryFolder folder;
  WriteSampleBundle(folder / "b.tar");
  const std::string whole = ReadFile(folder / "b.tar");
  for (size_t size = 0; size < whole.size(); size += 511) {
    std::ofstream(folder / "cut.tar", std::ios::binary) << whole.substr(0, size);
    const auto bundle = Bundle::Open(folder / "cut.tar");
    if (size + 1024 > whole.size()) continue;  // only the end marker is incomplete
    EXPECT_TRUE(absl::IsDataLoss(bundle.status())) << size << " " << bundle.status();
  }
}

TEST(Bundle, IsNotFoundWhereThereIsNone) {
  const TemporaryFolder folder;
  EXPECT_TRUE(absl::IsNotFound(Bundle::Open(folder / "b").status()));
  std::filesystem::create_directory(folder / "b");
  EXPECT_THAT(Message(Bundle::Open(folder / "b").status()), HasSubstr("is no bundle"));
}

TEST(Bundle, AnotherVersionIsRefused) {
  const TemporaryFolder folder;
  WriteSampleBundle(folder / "b");
  std::string manifest = ReadFile(folder / "b/manifest.json");
  manifest.replace(manifest.find("\"bundle_version\": 1"), 19, "\"bundle_version\": 2");
  std::ofstream(folder / "b/manifest.json") << manifest;
  const auto bundle = Bundle::Open(folder / "b");
  EXPECT_TRUE(absl::IsFailedPrecondition(bundle.status())) << bundle.status();
}

TEST(Bundle, ANameThatAManifestHasTwiceIsRefused) {
  const TemporaryFolder folder;
  WriteSampleBundle(folder / "b");
  std::string manifest = ReadFile(folder / "b/manifest.json");
  manifest.replace(manifest.find("\"bundle_version\": 1"), 19,
                   "\"bundle_version\": 2, \"bundle_version\": 1");
  std::ofstream(folder / "b/manifest.json") << manifest;
  const auto bundle = Bundle::Open(folder / "b");
  EXPECT_TRUE(absl::IsDataLoss(bundle.status())) << bundle.status();
  EXPECT_THAT(Message(bundle.status()), HasSubstr("has \"bundle_version\" twice"));
}

TEST(Bundle, ManifestsOfAllKindsOfNonsenseAreRefused) {
  const TemporaryFolder folder;
  WriteSampleBundle(folder / "b");
  const std::string manifest = ReadFile(folder / "b/manifest.json");
  const size_t at = manifest.find("\"bundle_version\": 1") + 18;
  for (const char* version : {"1e400", "-1", "1.5", "99999999999999999999999", "18446744073709551615",
                              "\"1\"", "true", "null", "[1]", "{}", "NaN"}) {
    std::ofstream(folder / "b/manifest.json") << std::string(manifest).replace(at, 1, version);
    EXPECT_TRUE(absl::IsDataLoss(Bundle::Open(folder / "b").status())) << version;
  }
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string(200000, '['), std::string("\xff\xfe"),
        std::string(100000, '{'), manifest.substr(0, manifest.size() / 2)}) {
    std::ofstream(folder / "b/manifest.json") << text;
    EXPECT_TRUE(absl::IsDataLoss(Bundle::Open(folder / "b").status())) << text.substr(0, 9);
  }
}

TEST(Bundle, FilesMayBeLinksIntoAStore) {
  const TemporaryFolder folder;
  WriteSampleBundle(folder / "b");
  std::filesystem::create_directory(folder / "store");
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder / "b")) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  for (const auto& file : files) {
    const std::filesystem::path blob = folder / ("store/" + Sha256Hex(file.string()));
    std::filesystem::rename(file, blob);
    std::filesystem::create_symlink(blob, file);
  }
  std::filesystem::create_directory_symlink(folder / "b", folder / "link");
  for (const char* name : {"b", "b/", "link"}) {
    const auto bundle = Bundle::Open(folder / name);
    ASSERT_TRUE(bundle.ok()) << bundle.status();
    EXPECT_TRUE(bundle->Verify().ok()) << name << ": " << bundle->Verify();
  }
  std::filesystem::remove_all(folder / "store");
  EXPECT_TRUE(absl::IsNotFound(Bundle::Open(folder / "b").status()));
}

TEST(Tar, WhatIsNoRegularFileOrHasANameTwiceIsRefused) {
  const auto sealed = [](std::string header) {
    header.replace(148, 8, "        ");
    unsigned sum = 0;
    for (const char c : header) sum += static_cast<unsigned char>(c);
    header.replace(148, 7, absl::StrFormat("%06o", sum) + std::string(1, '\0'));
    return header;
  };
  const std::string file = TarHeader("a", 3) + "abc" + TarPadding(3);
  EXPECT_TRUE(ReadTar(file + TarEnd()).ok());
  EXPECT_TRUE(absl::IsDataLoss(ReadTar(file + file + TarEnd()).status()));
  for (const char type : {'1', '2', '3', '5', '6', 'x', 'L'}) {  // links, devices, folders, pipes, long names
    std::string header = TarHeader("a", 0);
    header[156] = type;
    EXPECT_TRUE(absl::IsDataLoss(ReadTar(sealed(header) + TarEnd()).status())) << type;
  }
  std::string huge = TarHeader("a", 0);
  huge.replace(124, 12, "777777777777");
  EXPECT_THAT(Message(ReadTar(sealed(huge) + TarEnd()).status()), HasSubstr("goes beyond the end"));
}

TEST(Bundle, ATarsNamesReachNoFileOutside) {
  const TemporaryFolder folder;
  WriteSampleBundle(folder / "b");
  std::ofstream(folder / "outside.cubin") << "outside";
  std::string archive;
  const auto plain = Bundle::Open(folder / "b");
  ASSERT_TRUE(plain.ok()) << plain.status();
  for (const auto& [name, bytes] : plain->files()) {
    archive += TarHeader(name, bytes.size()) + std::string(bytes) + TarPadding(bytes.size());
  }
  const std::string evil = TarHeader("../outside.cubin", 4) + "evil" + TarPadding(4);
  std::ofstream(folder / "evil.tar", std::ios::binary) << archive << evil << TarEnd();
  const auto bundle = Bundle::Open(folder / "evil.tar");
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  EXPECT_THAT(Message(bundle->Verify()), HasSubstr("../outside.cubin is not listed"));
  EXPECT_EQ(ReadFile(folder / "outside.cubin"), "outside");
}

TEST(BundleWriter, LeavesWhatIsNoBundleAlone) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "mine");
  std::ofstream(folder / "mine/file") << "precious";
  // A web application's has the same name.
  for (const char* manifest : {"", "{\"name\": \"My App\", \"start_url\": \".\"}"}) {
    if (*manifest != '\0') std::ofstream(folder / "mine/manifest.json") << manifest;
    EXPECT_TRUE(absl::IsFailedPrecondition(BundleWriter::Create(folder / "mine").status())) << manifest;
    EXPECT_EQ(ReadFile(folder / "mine/file"), "precious");
  }
}

TEST(BundleWriter, TakesABundlesPlaceWhole) {
  const TemporaryFolder folder;
  WriteSampleBundle(folder / "b");
  std::ofstream(folder / "b/kernels/old.cubin") << "of the bundle before";
  WriteSampleBundle(folder / "b");
  const auto bundle = Bundle::Open(folder / "b");
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  EXPECT_TRUE(bundle->Verify().ok()) << bundle->Verify();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / ""), {}), 1);  // no leavings
}

TEST(BundleWriter, OfWritersOfOneBundleOneWinsAndItIsNeverAway) {
  const TemporaryFolder folder;
  WriteSampleBundle(folder / "b");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&folder] {
      for (int round = 0; round < 5; ++round) {
        WriteSampleBundle(folder / "b");
        EXPECT_TRUE(std::filesystem::exists(folder / "b/manifest.json"));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto bundle = Bundle::Open(folder / "b");
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  EXPECT_TRUE(bundle->Verify().ok()) << bundle->Verify();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / ""), {}), 1);
}

TEST(BundleWriter, LeavesNothingBehindWhenItIsNotFinished) {
  const TemporaryFolder folder;
  { const auto writer = BundleWriter::Create(folder / "b"); }
  EXPECT_TRUE(std::filesystem::is_empty(folder / ""));
}

TEST(BundleWriter, NeedsEveryKernel) {
  const TemporaryFolder folder;
  const auto writer = BundleWriter::Create(folder / "b");
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->AddMethod(SampleMethod("decode", 1, "")).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition((*writer)->Finish()));
  EXPECT_FALSE(std::filesystem::exists(folder / "b"));
}

TEST(ValidateMethod, NamesTheBucketThatADynamicMethodLacks) {
  BundleMethod method = SampleMethod("prefill", 0, "");
  auto& picks = method.layers[0].picks;
  picks.erase(picks.begin() + 4);
  EXPECT_THAT(Message(ValidateMethod(method)), HasSubstr("and 16 is missing"));
  method = SampleMethod("decode", 1, "");
  method.static_m = 3;
  EXPECT_THAT(Message(ValidateMethod(method)), HasSubstr("for bucket 4"));
  for (const char* name : {"", "../up", ".hidden", "a/b"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ValidateMethod(SampleMethod(name, 1, "")))) << name;
  }
}

TEST(ParseMethod, ReadsADynamicMethodOfSomeBuckets) {
  BundleMethod method = SampleMethod("some", 0, "");
  method.layers[0].picks.resize(4);
  const auto read = ParseMethod(MethodText(method));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->layers[0].picks.size(), 4);
  method.layers[0].picks.clear();
  EXPECT_TRUE(absl::IsDataLoss(ParseMethod(MethodText(method)).status()));
}

TEST(LaunchSpecJson, ComesBackAsItWas) {
  for (const char* config : {kMmaConfig, kWgmmaConfig}) {
    Problem problem = SampleProblem();
    problem.signature.format.zero_point = ZeroPoint::kInteger;
    problem.signature.epilogue.bias = true;
    const LaunchSpec spec = SamplePick(4, config, 2, problem).launch;
    const auto json = ToJson(spec);
    const auto back = LaunchSpecFromJson(json);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(ToJson(*back), json);
    const auto problem_back = ProblemFromJson(ToJson(problem));
    ASSERT_TRUE(problem_back.ok()) << problem_back.status();
    EXPECT_EQ(*problem_back, problem);
  }
}

TEST(LaunchSpecJson, Int8ActivationsComeBackAndOlderManifestsHaveNone) {
  Problem problem = SampleProblem();
  problem.signature.quantization = ActivationQuantization::kInt8;
  auto json = ToJson(problem);
  EXPECT_EQ(json["act_quantization"], "int8");
  EXPECT_EQ(*ProblemFromJson(json), problem);
  json["act_quantization"] = "int4";
  EXPECT_THAT(Message(ProblemFromJson(json).status()),
              ::testing::AllOf(HasSubstr("problem.act_quantization"), HasSubstr("use none or int8")));
  json.erase("act_quantization");
  EXPECT_EQ(*ProblemFromJson(json), SampleProblem());
}

TEST(LaunchSpecJson, NamesEveryFieldThatIsMissing) {
  const auto whole = ToJson(SamplePick(4, kWgmmaConfig, 1, SampleProblem()).launch);
  for (const auto& [key, value] : whole.items()) {
    auto json = whole;
    json.erase(key);
    EXPECT_THAT(Message(LaunchSpecFromJson(json).status()), HasSubstr(key));
    json[key] = nlohmann::ordered_json::array({nullptr});
    EXPECT_FALSE(LaunchSpecFromJson(json).ok()) << key;
  }
  auto older = whole;
  older["abi_version"] = kLaunchAbiVersion - 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(LaunchSpecFromJson(older).status()));
}

TEST(Tar, KeepsSizesBeyondOctal) {
  // Only the header: 8 GiB do not fit a test.
  const int64_t bytes = (int64_t{1} << 33) + 5;
  const std::string header = TarHeader("weights.safetensors", bytes);
  const auto files = ReadTar(header);
  EXPECT_TRUE(absl::IsDataLoss(files.status()));
  EXPECT_THAT(Message(files.status()), HasSubstr("weights.safetensors goes beyond the end"));
  EXPECT_EQ(TarPadding(bytes).size(), 507);
}

}  // namespace
}  // namespace qgemm
