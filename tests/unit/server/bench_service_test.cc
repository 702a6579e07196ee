#include "server/bench_service.h"

#include <gtest/gtest.h>

namespace qgemm {
namespace {

TEST(IsLocalPeer, KnowsThisMachine) {
  for (const char* peer : {"unix:", "unix:/run/qgemm/qgemm.sock", "ipv4:127.0.0.1:4711", "ipv4:127.8.9.1:1",
                           "ipv6:[::1]:4711", "ipv6:%5B::1%5D:4711", "ipv6:[::ffff:127.0.0.1]:4711"}) {
    EXPECT_TRUE(IsLocalPeer(peer)) << peer;
  }
}

TEST(IsLocalPeer, TrustsNobodyElse) {
  for (const char* peer : {"", "ipv4:10.0.0.7:4711", "ipv4:12.7.0.0:1", "ipv4:128.0.0.1:1", "ipv6:[::2]:4711",
                           "ipv6:%5Bfe80::1%5D:4711", "ipv6:[::1:2]:4711", "ipv6:[::ffff:10.0.0.7]:1",
                           "127.0.0.1:4711", "dns:localhost", "inproc"}) {
    EXPECT_FALSE(IsLocalPeer(peer)) << peer;
  }
}

}  // namespace
}  // namespace qgemm
