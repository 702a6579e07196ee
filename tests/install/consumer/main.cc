// Uses the installed client library: no daemon is there, and the library says so.
#include <qgemm/client.h>

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
  return absl::IsUnavailable(end) ? 0 : 1;
}
