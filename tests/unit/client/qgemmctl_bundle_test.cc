// qgemmctl bundle: exports, with and without a daemon.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "client/bundle/bundle.h"
#include "client/bundle/safetensors.h"
#include "kernels/launch_spec.h"
#include "kernels/packing.h"
#include "tests/unit/client/qgemmctl_fixture.h"

namespace qgemm {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class QgemmctlBundle : public Qgemmctl {
 protected:
  // A daemon whose every pick is one kernel.
  void SetUp() override {
    Qgemmctl::SetUp();
    v1::KernelChunk chunk;
    chunk.set_data("cubin");
    chunk.set_sha256(Sha256Hex(chunk.data()));
    chunk.set_total_bytes(5);
    chunk.mutable_info()->set_entry("qgemm_mma");
    chunk.mutable_info()->set_arch("sm_90a");
    daemon_.answers().chunks = {chunk};
    daemon_.answers().tune = [this, sha256 = chunk.sha256()](const v1::TuneRequest& request, auto* writer) {
      v1::TuneEvent event;
      for (int i = 0; i < request.problems_size(); ++i) {
        for (const int64_t m : request.m()) {
          v1::TuneResult& result = *event.mutable_result();
          result.set_problem_index(i);
          *result.mutable_pick() = MakePick(request.problems(i), static_cast<int>(m));
          result.mutable_pick()->set_predicted_us(predicted_us_);
          result.mutable_pick()->mutable_kernel()->set_sha256(sha256);
          v1::LaunchSpec& launch = *result.mutable_pick()->mutable_launch();
          launch.set_abi_version(kLaunchAbiVersion);
          launch.set_layout_id(std::string(kLayoutId));
          launch.set_tile_m(8);
          launch.set_tile_n(16);
          launch.set_grid_n(4);
          launch.set_split_k(1);
          launch.set_block_threads(32);
          launch.set_max_m(m == 4096 ? 0 : m);
          v1::KernelArgument& x = *launch.add_arguments();
          x.set_name("x");
          x.mutable_pointer()->set_role(v1::KernelArgument::POINTER_ROLE_X);
          x.mutable_pointer()->set_alignment(16);
          writer->Write(event);
        }
      }
      event.mutable_summary()->set_compiles(1);
      writer->Write(event);
      return grpc::Status::OK;
    };
  }
  std::string Path(const std::string& name) { return folder_ + "/" + name; }

  struct Plane {
    std::string name;
    std::string dtype;
    std::vector<int64_t> shape;
    std::string bytes;
  };
  using Planes = std::vector<Plane>;
  // File "canonical": layers a and b, 64x128 with one group a row, and these planes.
  void WriteWeights(const Planes& more) {
    auto writer = SafetensorsWriter::Create(Path("canonical"));
    ASSERT_TRUE(writer.ok());
    for (const std::string layer : {"a", "b"}) {
      ASSERT_TRUE(writer->Write(layer + ".codes", "U8", {64, 128}, std::string(64 * 128, '\3')).ok());
      ASSERT_TRUE(writer->Write(layer + ".scales", "BF16", {64, 1}, std::string(64 * 2, '\x3f')).ok());
    }
    for (const Plane& plane : more) {
      ASSERT_TRUE(writer->Write(plane.name, plane.dtype, plane.shape, plane.bytes).ok()) << plane.name;
    }
    ASSERT_TRUE(writer->Finish({}).ok());
  }
  // Bundle "b" of them.
  int Create(const std::vector<std::string>& options) {
    std::vector<std::string> line = {"bundle",    "create",          "-o",       Path("b"),
                                     "--weights", Path("canonical"), "--method", "decode=1"};
    line.insert(line.end(), options.begin(), options.end());
    return Run(line);
  }

  double predicted_us_ = 8.5;
};

TEST_F(QgemmctlBundle, CreateMakesWhatVerifyAcceptsAndInspectShows) {
  ASSERT_EQ(Run({"bundle", "create", "-o", Path("b"), "--shape", "64x128", "--method", "decode=1", "--method",
                 "prefill=dynamic", "--output", "json"}),
            0)
      << err_;
  EXPECT_EQ(json::parse(out_)["picks"], 17);  // one, and every bucket
  EXPECT_EQ(json::parse(out_)["kernels"], 1);
  EXPECT_EQ(Run({"bundle", "verify", Path("b")}), 0) << err_;
  ASSERT_EQ(Run({"bundle", "inspect", Path("b"), "--output", "json"}), 0) << err_;
  const json shown = json::parse(out_);
  EXPECT_EQ(shown["methods"][0]["name"], "decode");
  EXPECT_EQ(shown["methods"][0]["layers"][0]["picks"].size(), 1u);
  EXPECT_EQ(shown["methods"][1]["layers"][0]["picks"].size(), 16u);
  EXPECT_TRUE(shown["methods"][1]["static_m"].is_null());
  ASSERT_EQ(Run({"bundle", "inspect", Path("b")}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("dynamic"));
}

TEST_F(QgemmctlBundle, ThePicksOfABundleMakeTheSameBytesWithoutADaemon) {
  const std::vector<std::string> rest = {"--shape", "64x128", "--method", "prefill=dynamic"};
  std::vector<std::string> first = {"bundle", "create", "-o", Path("a.tar")};
  first.insert(first.end(), rest.begin(), rest.end());
  ASSERT_EQ(Run(first), 0) << err_;
  daemon_.Stop();
  std::vector<std::string> second = {"bundle", "create", "-o", Path("b.tar"), "--picks", Path("a.tar")};
  second.insert(second.end(), rest.begin(), rest.end());
  ASSERT_EQ(Run(second), 0) << err_;
  EXPECT_EQ(ReadFile(Path("a.tar")), ReadFile(Path("b.tar")));
  EXPECT_EQ(Run({"bundle", "diff", Path("a.tar"), Path("b.tar")}), 0) << out_;
  // What the old bundle has not is refused by name.
  EXPECT_EQ(Run({"bundle", "create", "-o", Path("c.tar"), "--picks", Path("a.tar"), "--shape", "64x256",
                 "--method", "decode=1"}),
            6);
  EXPECT_THAT(err_, HasSubstr("64x256"));
  EXPECT_FALSE(std::filesystem::exists(Path("c.tar")));
}

TEST_F(QgemmctlBundle, PicksOfADamagedBundleAreNotTaken) {
  const auto create = [&](const char* name, const std::vector<std::string>& more) {
    std::vector<std::string> line = {"bundle",  "create", "-o",       Path(name),
                                     "--shape", "64x128", "--method", "decode=1"};
    line.insert(line.end(), more.begin(), more.end());
    return Run(line);
  };
  ASSERT_EQ(create("a", {}), 0) << err_;
  const std::string manifest = ReadFile(Path("a/manifest.json"));
  // By the second the kernel writes x, which its launch does not say.
  const std::string parameter = R"({"index": 0, "read": true, "written": true, "alignment": 16})";
  for (const auto& [access, what] :
       {std::pair(std::string(R"({"parameters": [7]})"), "parameter must be an object"),
        std::pair(R"({"parameters": [)" + parameter + "]}", "writes argument 'x'")}) {
    json changed = json::parse(manifest);
    changed["kernels"][0]["access"] = json::parse(access);
    std::ofstream(Path("a/manifest.json")) << changed.dump();
    EXPECT_EQ(create("b", {"--picks", Path("a")}), 8);
    EXPECT_THAT(err_, HasSubstr(what));
    EXPECT_FALSE(std::filesystem::exists(Path("b")));
  }
}

TEST_F(QgemmctlBundle, WhatIsNotTunedIsRefusedWhereTuningIsOff) {
  daemon_.answers().lookup = [](const v1::LookupRequest& request, v1::LookupResponse* response) {
    for (int i = 0; i < request.keys_size(); ++i) response->add_answers()->set_miss_reason("was never tuned");
    return grpc::Status::OK;
  };
  int tuned = 0;
  daemon_.answers().tune = [&](const v1::TuneRequest&, auto*) {
    ++tuned;
    return grpc::Status::OK;
  };
  EXPECT_EQ(
      Run({"bundle", "create", "-o", Path("b"), "--shape", "64x128", "--method", "decode=16", "--no-tune"}),
      6);
  EXPECT_THAT(err_, AllOf(HasSubstr("64x128"), HasSubstr("M <= 16: was never tuned")));
  EXPECT_EQ(tuned, 0);
  EXPECT_FALSE(std::filesystem::exists(Path("b")));
}

TEST_F(QgemmctlBundle, DiffNamesWhatDiffers) {
  ASSERT_EQ(Run({"bundle", "create", "-o", Path("a"), "--shape", "64x128", "--method", "decode=1"}), 0)
      << err_;
  ASSERT_EQ(Run({"bundle", "create", "-o", Path("b"), "--shape", "64x128", "--method", "decode=4"}), 0)
      << err_;
  EXPECT_EQ(Run({"bundle", "diff", Path("a"), Path("b"), "--output", "json"}), 1);
  EXPECT_EQ(json::parse(out_)["changes"].size(), 2u);
}

TEST_F(QgemmctlBundle, DiffNamesDamageAndNotADifference) {
  for (const char* name : {"a", "b"}) {
    ASSERT_EQ(Run({"bundle", "create", "-o", Path(name), "--shape", "64x128", "--method", "decode=1"}), 0)
        << err_;
  }
  ASSERT_EQ(Run({"bundle", "diff", Path("a"), Path("b")}), 0) << err_;
  const auto kernel = std::filesystem::directory_iterator(Path("b/kernels"))->path();
  std::fstream(kernel, std::ios::in | std::ios::out | std::ios::binary).put('!');
  EXPECT_EQ(Run({"bundle", "diff", Path("a"), Path("b")}), 8);
  EXPECT_THAT(err_, AllOf(HasSubstr(kernel.filename().string()), HasSubstr("another SHA-256")));
  EXPECT_EQ(Run({"bundle", "diff", Path("b"), Path("a")}), 8);
  EXPECT_THAT(err_, HasSubstr(kernel.filename().string()));
}

TEST_F(QgemmctlBundle, DiffNamesTheFileWhereEveryPickIsTheSame) {
  ASSERT_EQ(Run({"bundle", "create", "-o", Path("a"), "--shape", "64x128", "--method", "decode=1"}), 0)
      << err_;
  predicted_us_ = 9.5;
  ASSERT_EQ(Run({"bundle", "create", "-o", Path("b"), "--shape", "64x128", "--method", "decode=1"}), 0)
      << err_;
  EXPECT_EQ(Run({"bundle", "diff", Path("a"), Path("b"), "--output", "json"}), 1);
  const json changes = json::parse(out_)["changes"];
  std::vector<std::string> differing;
  for (const json& change : changes) differing.push_back(change["what"]);
  EXPECT_THAT(differing, ElementsAre("file manifest.json", "file methods/decode.json"));
}

TEST_F(QgemmctlBundle, CreatePacksCanonicalWeights) {
  auto writer = SafetensorsWriter::Create(Path("canonical"));
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->Write("model.q.codes", "U8", {64, 128}, std::string(64 * 128, '\3')).ok());
  ASSERT_TRUE(writer->Write("model.q.scales", "BF16", {64, 1}, std::string(64 * 2, '\x3f')).ok());
  ASSERT_TRUE(writer->Write("model.k.codes", "U8", {64, 128}, std::string(64 * 128, '\3')).ok());
  ASSERT_TRUE(writer->Write("model.k.scales", "BF16", {64, 2}, std::string(64 * 4, '\x3f')).ok());
  ASSERT_TRUE(writer->Finish({}).ok());
  ASSERT_EQ(Run({"bundle", "create", "-o", Path("b"), "--weights", Path("canonical"), "--method", "decode=1",
                 "--method", "prefill=dynamic"}),
            0)
      << err_;
  EXPECT_EQ(Run({"bundle", "verify", Path("b")}), 0) << err_;
  const auto bundle = Bundle::Open(Path("b"));
  ASSERT_TRUE(bundle.ok());
  const auto weights = bundle->Weights();
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->size(), 4u);  // written once for both methods
  EXPECT_EQ(weights->at("model.q.weights").bytes.size(), 64u * 128 / 2);
  const auto method = bundle->Method("decode");
  ASSERT_TRUE(method.ok());
  EXPECT_EQ(method->layers[0].problem.signature.format.group_size, 64);  // model.k
  EXPECT_EQ(method->layers[1].problem.signature.format.group_size, 0);   // model.q: one group a row
}

TEST_F(QgemmctlBundle, EveryLayerMayHaveItsOwnBits) {
  WriteWeights({{"a.bits", "U8", {1}, std::string(1, '\6')}, {"b.bits", "U8", {1}, std::string(1, '\4')}});
  ASSERT_EQ(Create({}), 0) << err_;
  const auto bundle = Bundle::Open(Path("b"));
  ASSERT_TRUE(bundle.ok());
  const auto method = bundle->Method("decode");
  ASSERT_TRUE(method.ok());
  EXPECT_EQ(method->layers[0].problem.signature.format.bits, 6);
  EXPECT_EQ(method->layers[1].problem.signature.format.bits, 4);
  EXPECT_EQ(Run({"bundle", "verify", Path("b")}), 0) << err_;
}

TEST_F(QgemmctlBundle, NoTensorOfALayerCountsForNothing) {
  const std::string zeros(64, '\7');
  struct Case {
    Planes planes;
    std::string what;
  };
  const std::vector<Case> cases = {
      {{{"a.zero", "U8", {64, 1}, zeros}}, "tensor a.zero is not allowed: the planes of a layer are codes"},
      {{{"a.permutation", "I32", {128}, std::string(512, '\0')}}, "act-order"},
      {{{"a.zeros", "I8", {64, 1}, zeros}}, "tensor a.zeros: dtype I8 is not allowed: use U8"},
      {{{"a.offsets", "F16", {64, 1}, zeros + zeros}},
       "tensor a.offsets: dtype F16 is not allowed: use BF16"},
      {{{"a.bias", "F16", {64}, zeros + zeros}}, "tensor a.bias: dtype F16 is not allowed: use BF16"},
      {{{"a.bits", "U8", {2}, "\4\4"}}, "tensor a.bits: U8 [1] is needed"},
      {{{"a.bits", "U8", {1}, "\7"}}, "bits 7 is not allowed"},
  };
  for (const Case& each : cases) {
    WriteWeights(each.planes);
    EXPECT_EQ(Create({}), 2) << each.what;
    EXPECT_THAT(err_, HasSubstr(each.what));
    EXPECT_FALSE(std::filesystem::exists(Path("b")));
  }
  // Layer a.b is another layer, not a plane of a.
  WriteWeights({{"a.b.codes", "U8", {64, 128}, std::string(64 * 128, '\3')},
                {"a.b.scales", "BF16", {64, 1}, std::string(64 * 2, '\x3f')}});
  EXPECT_EQ(Create({}), 0) << err_;
}

TEST_F(QgemmctlBundle, NoOptionBesideWeightsCountsForNothing) {
  WriteWeights({});
  for (const std::vector<std::string>& options : std::vector<std::vector<std::string>>{
           {"--shape", "64x128"}, {"--activation", "silu"}, {"--zero", "int"}, {"--group-size", "64"}}) {
    EXPECT_EQ(Create(options), 2);
    EXPECT_THAT(err_, HasSubstr(options[0] + " is not allowed beside --weights"));
  }
}

TEST_F(QgemmctlBundle, AFolderOrAPipeForTheWeightsIsAUsageError) {
  std::filesystem::create_directory(Path("folder"));
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  for (const auto& [name, what] :
       {std::pair("folder", "is a directory"), std::pair("pipe", "no regular file")}) {
    EXPECT_EQ(Run({"bundle", "create", "-o", Path("b"), "--weights", Path(name), "--method", "decode=1"}), 2);
    EXPECT_THAT(err_, AllOf(HasSubstr(Path(name)), HasSubstr(what)));
  }
}

TEST_F(QgemmctlBundle, WhatCannotBeWrittenIsNotTuned) {
  int tuned = 0;
  daemon_.answers().tune = [&](const v1::TuneRequest&, auto*) {
    ++tuned;
    return grpc::Status::OK;
  };
  const auto create = [&](const std::string& path, const std::vector<std::string>& methods) {
    std::vector<std::string> line = {"bundle", "create", "-o", path, "--shape", "64x128"};
    for (const std::string& method : methods) line.insert(line.end(), {"--method", method});
    return Run(line);
  };
  EXPECT_EQ(create(Path("b"), {"a/b=1"}), 2);
  EXPECT_THAT(err_, HasSubstr("method name \"a/b\" is not allowed"));
  EXPECT_EQ(create(Path("b"), {"a=1", "a=2"}), 2);
  EXPECT_THAT(err_, HasSubstr("method a is there twice"));
  std::ofstream(Path("file")) << "mine";
  EXPECT_NE(create(Path("file/b"), {"a=1"}), 0);
  std::filesystem::create_directories(Path("mine/precious"));
  EXPECT_NE(create(Path("mine"), {"a=1"}), 0);
  EXPECT_TRUE(std::filesystem::exists(Path("mine/precious")));
  EXPECT_EQ(tuned, 0);
}

TEST_F(QgemmctlBundle, UsageErrorsNameTheOption) {
  EXPECT_EQ(Run({"bundle", "create", "-o", Path("b"), "--shape", "64x128"}), 2);
  EXPECT_THAT(err_, HasSubstr("--method is missing"));
  EXPECT_EQ(Run({"bundle", "create", "-o", Path("b"), "--shape", "64x128", "--method", "decode=zero"}), 2);
  EXPECT_THAT(err_, HasSubstr("decode=zero"));
  EXPECT_EQ(Run({"bundle", "verify", Path("nothing")}), 6);
  EXPECT_EQ(Run({"bundle"}), 2);
}

}  // namespace
}  // namespace qgemm
