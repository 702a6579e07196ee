// libqgemm.so as a C program uses it, as far as it goes without a GPU.
#include "client/qgemm/c_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/driver.h"
#include "tests/unit/client/sample_bundle.h"

namespace qgemm {
namespace {

using ::testing::HasSubstr;

TEST(CApi, HasAVersion) { EXPECT_EQ(qgemm_c_api_version(), QGEMM_C_API_VERSION); }

TEST(CApi, SaysWhatIsWrongWithABundle) {
  char error[256] = "";
  qgemm_runtime* runtime = nullptr;
  EXPECT_EQ(qgemm_runtime_open("/nonexistent", "decode", 0, &runtime, error, sizeof(error)), QGEMM_NOT_FOUND);
  EXPECT_THAT(std::string(error), HasSubstr("/nonexistent"));
  EXPECT_EQ(runtime, nullptr);
  char small[5] = "";
  EXPECT_EQ(qgemm_runtime_open(nullptr, "decode", 0, &runtime, small, sizeof(small)), QGEMM_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(small).size(), 4);
  EXPECT_EQ(qgemm_runtime_open("/nonexistent", "decode", 0, &runtime, nullptr, 0), QGEMM_NOT_FOUND);
}

TEST(CApi, SaysThatThereIsNoDevice) {
  if (Driver::Load().ok()) GTEST_SKIP() << "this machine has a GPU";
  const TemporaryFolder folder;
  WriteSampleBundle(folder / "b.tar");
  char error[256] = "";
  qgemm_runtime* runtime = nullptr;
  EXPECT_EQ(qgemm_runtime_open((folder / "b.tar").c_str(), "decode", 0, &runtime, error, sizeof(error)),
            QGEMM_UNAVAILABLE);
  EXPECT_THAT(std::string(error), HasSubstr("CUDA driver"));
}

TEST(CApi, RefusesNull) {
  char error[256] = "";
  qgemm_launch launch = {};
  EXPECT_EQ(qgemm_runtime_launch(nullptr, 0, &launch, error, sizeof(error)), QGEMM_INVALID_ARGUMENT);
  EXPECT_EQ(qgemm_runtime_find_layer(nullptr, "q"), -1);
  EXPECT_EQ(qgemm_runtime_layer_count(nullptr), 0);
  qgemm_runtime_close(nullptr);
}

}  // namespace
}  // namespace qgemm
