#include "base/executor.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <future>
#include <vector>

namespace qgemm {
namespace {

TEST(ThreadPoolExecutor, DestructorRunsEverythingScheduled) {
  std::atomic<int> ran = 0;
  {
    ThreadPoolExecutor executor("test", 3);
    for (int i = 0; i < 100; ++i) executor.Schedule([&ran] { ++ran; });
  }
  EXPECT_EQ(ran, 100);
}

TEST(ThreadPoolExecutor, OneThreadKeepsTheOrder) {
  std::vector<int> order;
  {
    ThreadPoolExecutor executor("test", 1);
    for (int i = 0; i < 5; ++i) executor.Schedule([&order, i] { order.push_back(i); });
  }
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(ThreadPoolExecutor, FunctionsRunAtOnceOnDifferentThreads) {
  std::promise<void> first;
  std::promise<void> second;
  std::promise<void> done;
  ThreadPoolExecutor executor("test", 2);
  // Each ends only when the other runs.
  executor.Schedule([&] {
    first.set_value();
    second.get_future().wait();
  });
  executor.Schedule([&] {
    first.get_future().wait();
    second.set_value();
    done.set_value();
  });
  EXPECT_EQ(done.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
}

TEST(ThreadPoolExecutor, FunctionMayScheduleAnother) {
  std::promise<void> done;
  ThreadPoolExecutor executor("test", 1);
  executor.Schedule([&] { executor.Schedule([&] { done.set_value(); }); });
  EXPECT_EQ(done.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
}

TEST(ThreadPoolExecutor, NamesItsThreadsAndCutsLongNames) {
  std::promise<std::string> name;
  ThreadPoolExecutor executor("a-name-longer-than-fifteen", 1);
  executor.Schedule([&] {
    char buffer[64];
    pthread_getname_np(pthread_self(), buffer, sizeof(buffer));
    name.set_value(buffer);
  });
  EXPECT_EQ(name.get_future().get(), "a-name-longer-t");
}

TEST(ManualExecutor, RunsOnlyWhenAsked) {
  ManualExecutor executor;
  int ran = 0;
  executor.Schedule([&] { ++ran; });
  executor.Schedule([&] { ++ran; });
  EXPECT_EQ(ran, 0);
  EXPECT_EQ(executor.pending(), 2);
  EXPECT_TRUE(executor.RunOne());
  EXPECT_EQ(ran, 1);
  EXPECT_TRUE(executor.RunOne());
  EXPECT_FALSE(executor.RunOne());
}

TEST(ManualExecutor, RunAllIncludesWhatIsScheduledMeanwhile) {
  ManualExecutor executor;
  bool ran = false;
  executor.Schedule([&] { executor.Schedule([&] { ran = true; }); });
  EXPECT_EQ(executor.RunAll(), 2);
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace qgemm
