#include "server/grpc_status.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace qgemm {
namespace {

// gRPC refuses header blocks above 8 KiB by default, and percent-encoding may enlarge the message.
constexpr size_t kMaxMessageBytes = 4096;

// Messages quote what the client sent, and end in logs and on terminals.
std::string WithoutControlCharacters(absl::string_view text) {
  std::string clean;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      clean.push_back(c);
    } else {
      absl::StrAppend(&clean, "\\x", absl::Hex(byte, absl::kZeroPad2));
    }
  }
  return clean;
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      WithoutControlCharacters(status.message()).substr(0, kMaxMessageBytes));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace qgemm
