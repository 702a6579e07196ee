#include "server/client_identity.h"

#include <algorithm>
#include <vector>

namespace qgemm {
namespace {

constexpr char kClientIdKey[] = "client_id";
constexpr size_t kMaxCharacters = 128;

std::string Clean(std::string name) {
  name.resize(std::min(name.size(), kMaxCharacters));
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  return name;
}

}  // namespace

std::string ClientIdentity(const grpc::ServerContext& context) {
  const auto auth = context.auth_context();
  if (auth != nullptr && auth->IsPeerAuthenticated()) {
    const std::vector<grpc::string_ref> names = auth->GetPeerIdentity();
    if (!names.empty()) return Clean(std::string(names[0].data(), names[0].size()));
  }
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(kClientIdKey);
  if (found != metadata.end() && !found->second.empty()) {
    return Clean(std::string(found->second.data(), found->second.size()));
  }
  return "anonymous";
}

}  // namespace qgemm
