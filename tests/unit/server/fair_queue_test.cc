#include "server/fair_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace qgemm {
namespace {

using ::testing::ElementsAre;
using Queue = FairQueue<std::string>;

std::vector<std::string> TakeAll(Queue& queue) {
  std::vector<std::string> order;
  while (auto taken = queue.Take()) order.push_back(taken->item);
  return order;
}

TEST(FairQueue, ClientsTakeTurns) {
  Queue queue;
  for (const char* item : {"a1", "a2", "a3", "a4"}) queue.Push({"a"}, item);
  for (const char* item : {"b1", "b2"}) queue.Push({"b"}, item);
  EXPECT_THAT(TakeAll(queue), ElementsAre("a1", "b1", "a2", "b2", "a3", "a4"));
}

TEST(FairQueue, PriorityOrdersOnlyAClientsOwn) {
  Queue queue;
  queue.Push({"a", WorkClass::kInteractive, 0}, "a-low");
  queue.Push({"a", WorkClass::kInteractive, 9}, "a-high");
  queue.Push({"b", WorkClass::kInteractive, -9}, "b");
  EXPECT_THAT(TakeAll(queue), ElementsAre("a-high", "b", "a-low"));
}

TEST(FairQueue, BatchGetsEveryThirdTurn) {
  Queue queue;
  for (const char* item : {"i1", "i2", "i3", "i4", "i5"}) queue.Push({"a", WorkClass::kInteractive}, item);
  for (const char* item : {"b1", "b2", "b3"}) queue.Push({"a", WorkClass::kBatch}, item);
  EXPECT_THAT(TakeAll(queue), ElementsAre("i1", "i2", "b1", "i3", "i4", "b2", "i5", "b3"));
}

TEST(FairQueue, BackgroundWaitsForAllOthers) {
  Queue queue;
  queue.Push({"daemon", WorkClass::kBackground, 100}, "background");
  queue.Push({"a", WorkClass::kBatch}, "b1");
  queue.Push({"a", WorkClass::kBatch}, "b2");
  EXPECT_THAT(TakeAll(queue), ElementsAre("b1", "b2", "background"));
}

TEST(FairQueue, ClientWithOneItemAtATimeDoesNotStarveTheOthers) {
  Queue queue;
  for (const char* item : {"a1", "a2", "a3"}) queue.Push({"a"}, item);
  std::vector<std::string> order;
  for (int i = 0; i < 3; ++i) {
    queue.Push({"b"}, "b");  // asks again as soon as it was served
    order.push_back(queue.Take()->item);
    order.push_back(queue.Take()->item);
  }
  EXPECT_THAT(order, ElementsAre("a1", "b", "a2", "b", "a3", "b"));
}

TEST(FairQueue, ItemInSeveralFlowsIsTakenOnceInTheFirstTurn) {
  Queue queue;
  for (const char* item : {"a1", "a2", "shared"}) queue.Push({"a"}, item);
  queue.Push({"b"}, "shared");
  EXPECT_THAT(TakeAll(queue), ElementsAre("a1", "shared", "a2"));
  EXPECT_TRUE(queue.empty());
}

TEST(FairQueue, RemovedItemsAreNotTaken) {
  Queue queue;
  for (const char* item : {"one", "two"}) {
    queue.Push({"a"}, item);
    queue.Push({"b"}, item);
  }
  EXPECT_TRUE(queue.Remove("one"));
  EXPECT_FALSE(queue.Remove("one"));
  queue.RemoveFrom({"a"}, "two");
  EXPECT_EQ(queue.size(), 1u);
  const auto taken = queue.Take();
  EXPECT_EQ(taken->client, "b");
  EXPECT_EQ(taken->item, "two");
}

TEST(FairQueue, UnsuitableClientsAndItemsLoseNoTurn) {
  Queue queue;
  for (const char* item : {"a1", "a2"}) queue.Push({"a"}, item);
  queue.Push({"b"}, "b1");
  const auto not_a1 = [](const std::string& item) { return item != "a1"; };
  const auto only_b = [](const std::string& client) { return client == "b"; };
  EXPECT_EQ(queue.Take(only_b, not_a1)->item, "b1");
  EXPECT_FALSE(queue.Take(only_b, not_a1).has_value());
  EXPECT_TRUE(queue.Any(not_a1));
  EXPECT_EQ(queue.Take([](const std::string&) { return true; }, not_a1)->item, "a2");
  EXPECT_FALSE(queue.Any(not_a1));
}

}  // namespace
}  // namespace qgemm
