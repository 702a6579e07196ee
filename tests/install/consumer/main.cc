// Uses the installed libraries: neither a daemon nor a bundle is there, and they say so.
#include <qgemm/client.h>
#include <qgemm/runtime.h>

#include <cstdio>

int main() {
  qgemm::ClientOptions options;
  options.server = "unix:/nonexistent/qgemm.sock";
  const auto client = qgemm::Client::Connect(options);
  if (!client.ok()) {
    std::fprintf(stderr, "%s\n", client.status().ToString().c_str());
    return 1;
  }
  absl::Status end;
  (*client)->LookupAsync({}, [&end](const auto& response) { end = response.status(); })->Wait();
  std::printf("client %s: %s\n", std::string(qgemm::ClientVersion()).c_str(), end.ToString().c_str());
  const absl::Status loaded = qgemm::Runtime::Load("/nonexistent/bundle", "decode", 0).status();
  std::printf("runtime: %s\n", loaded.ToString().c_str());
  return absl::IsUnavailable(end) && absl::IsNotFound(loaded) ? 0 : 1;
}
