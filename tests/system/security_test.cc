// Who may call a real qgemmd, and do what: TLS, certificates, tokens, owners of jobs, and their reload.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "qgemm/v1/bench.pb.h"
#include "qgemm/v1/cache.grpc.pb.h"
#include "qgemm/v1/device.grpc.pb.h"
#include "tests/fakes/test_certificates.h"
#include "tests/system/daemon_fixture.h"

namespace qgemm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class SecurityDaemonTest : public DaemonTest {
 protected:
  SecurityDaemonTest() {
    authority_.WriteTo(folder_, "ca");
    MakeCertificate({"qgemmd"}, authority_).WriteTo(folder_, "server");
    WriteTokens({{"alice", "token-a"}, {"bob", "token-b"}, {"operator", "token-o"}});
  }

  void WriteTokens(const std::vector<std::pair<std::string, std::string>>& holders) {
    std::string text;
    for (const auto& [name, token] : holders) {
      absl::StrAppend(&text, name, ":", Sha256Hex(token), name == "operator" ? ":admin\n" : "\n");
    }
    std::ofstream(TokensFile()) << text;
    chmod(TokensFile().c_str(), 0600);
  }
  std::string TokensFile() const { return folder_ + "/tokens"; }
  std::vector<std::string> TlsFlags() const {
    return {"--tls-cert", folder_ + "/server.pem", "--tls-key", folder_ + "/server.key"};
  }

  // Also on a TCP port, which is `port_` then.
  void StartOnTcp(bool gpu, std::vector<std::string> more) {
    more.insert(more.end(), {"--listen", "127.0.0.1:0"});
    Start(gpu, more);
    const std::optional<std::string> ready = daemon_->AwaitLine("ready: listening on");
    ASSERT_TRUE(ready.has_value()) << daemon_->Output();
    const std::string host = "127.0.0.1:";
    port_ = ready->substr(ready->find(host) + host.size());
    port_ = port_.substr(0, port_.find(','));
  }

  std::shared_ptr<grpc::Channel> Tcp(const std::shared_ptr<grpc::ChannelCredentials>& credentials) const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel("127.0.0.1:" + port_, credentials, arguments);
  }
  std::shared_ptr<grpc::Channel> Tls(const TestCertificate& authority,
                                     const TestCertificate* own = nullptr) const {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = authority.cert;
    if (own != nullptr) {
      options.pem_cert_chain = own->cert;
      options.pem_private_key = own->key;
    }
    return Tcp(grpc::SslCredentials(options));
  }

  static void Prepare(grpc::ClientContext& context, const std::string& token) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
  }
  static grpc::Status Describe(const std::shared_ptr<grpc::Channel>& channel, const std::string& token = "") {
    grpc::ClientContext context;
    Prepare(context, token);
    v1::DescribeResponse response;
    return v1::Device::NewStub(channel)->Describe(&context, {}, &response);
  }
  // Any method, with an empty request.
  static grpc::Status CallByName(const std::shared_ptr<grpc::Channel>& channel, const std::string& path) {
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    Prepare(context, "");
    grpc::CompletionQueue queue;
    const grpc::Slice nothing;
    const grpc::ByteBuffer request(&nothing, 1);
    grpc::ByteBuffer response;
    grpc::Status status;
    const auto call = stub.PrepareUnaryCall(&context, path, request, &queue);
    call->StartCall();
    call->Finish(&response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    EXPECT_TRUE(queue.Next(&tag, &ok));
    return status;
  }

  std::string Detach(const std::shared_ptr<grpc::Channel>& channel, const std::string& token) {
    v1::TuneRequest request = RequestFor(Int4Problem(1024, 4096), {1, 16, 64, 256}, v1::EFFORT_EXHAUSTIVE);
    request.set_detach(true);
    grpc::ClientContext context;
    Prepare(context, token);
    const auto reader = v1::Tuner::NewStub(channel)->Tune(&context, request);
    std::string job_id;
    for (v1::TuneEvent event; reader->Read(&event);) {
      if (event.has_accepted()) job_id = event.accepted().job_id();
    }
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return job_id;
  }
  static grpc::Status Cancel(const std::shared_ptr<grpc::Channel>& channel, const std::string& token,
                             const std::string& job_id) {
    grpc::ClientContext context;
    Prepare(context, token);
    v1::CancelJobRequest request;
    request.set_job_id(job_id);
    v1::CancelJobResponse response;
    return v1::Tuner::NewStub(channel)->CancelJob(&context, request, &response);
  }
  static std::string OwnerOf(const std::shared_ptr<grpc::Channel>& channel, const std::string& job_id) {
    grpc::ClientContext context;
    Prepare(context, "");
    v1::ListJobsResponse response;
    EXPECT_TRUE(v1::Tuner::NewStub(channel)->ListJobs(&context, {}, &response).ok());
    for (const v1::Job& job : response.jobs()) {
      if (job.job_id() == job_id) return job.client();
    }
    return "no such job";
  }

  // What qgemmctl says over TCP, and its exit code.
  std::pair<int, std::string> Ctl(std::vector<std::string> words) const {
    words.insert(words.begin(), {"--server", "127.0.0.1:" + port_});
    DaemonProcess process(QGEMMCTL, words);
    const std::optional<int> code = process.AwaitExit();
    return {code.value_or(-1), process.Output()};
  }

  const TestCertificate authority_ = MakeAuthority("test ca");
  std::string port_;
};

TEST_F(SecurityDaemonTest, EveryMethodAsksForATokenAndHealthDoesNot) {
  StartOnTcp(/*gpu=*/false, {"--tokens-file", TokensFile()});
  const auto channel = Tcp(grpc::InsecureChannelCredentials());
  int methods = 0;
  for (const auto* message : {v1::TuneRequest::descriptor(), v1::CacheStatsRequest::descriptor(),
                              v1::DescribeRequest::descriptor(), v1::CompareSourceRequest::descriptor()}) {
    const google::protobuf::FileDescriptor& file = *message->file();
    for (int i = 0; i < file.service_count(); ++i) {
      for (int j = 0; j < file.service(i)->method_count(); ++j) {
        const std::string path =
            absl::StrCat("/", file.service(i)->full_name(), "/", file.service(i)->method(j)->name());
        EXPECT_EQ(CallByName(channel, path).error_code(), grpc::UNAUTHENTICATED) << path;
        ++methods;
      }
    }
  }
  EXPECT_GE(methods, 20);
  const grpc::Status health = CallByName(channel, "/grpc.health.v1.Health/Check");
  EXPECT_TRUE(health.ok()) << health.error_message();
  // The daemon's own user on the unix socket is nobody to be kept out.
  EXPECT_TRUE(Describe(channel_).ok());
}

TEST_F(SecurityDaemonTest, TokensAreCheckedAndReadAgain) {
  StartOnTcp(/*gpu=*/false, {"--tokens-file", TokensFile()});
  const auto channel = Tcp(grpc::InsecureChannelCredentials());
  const grpc::Status missing = Describe(channel);
  EXPECT_EQ(missing.error_code(), grpc::UNAUTHENTICATED);
  EXPECT_THAT(missing.error_message(), HasSubstr("--token-file"));
  const grpc::Status wrong = Describe(channel, "token-x");
  EXPECT_EQ(wrong.error_code(), grpc::UNAUTHENTICATED);
  EXPECT_THAT(wrong.error_message(), HasSubstr("mistyped or has been withdrawn"));
  EXPECT_TRUE(Describe(channel, "token-a").ok());

  WriteTokens({{"alice", "token-a2"}});
  daemon_->Signal(SIGHUP);
  ASSERT_TRUE(daemon_->AwaitLine("SIGHUP: in use: 1 tokens").has_value()) << daemon_->Output();
  EXPECT_EQ(Describe(channel, "token-a").error_code(), grpc::UNAUTHENTICATED);
  EXPECT_TRUE(Describe(channel, "token-a2").ok());

  std::ofstream(TokensFile()) << "alice token-a3\n";
  daemon_->Signal(SIGHUP);
  ASSERT_TRUE(daemon_->AwaitLine("what was read before stays in use: tokens_file").has_value());
  EXPECT_TRUE(Describe(channel, "token-a2").ok());

  EXPECT_EQ(Ctl({"device"}).first, 4);
  std::ofstream(folder_ + "/token") << "token-a2\n";
  EXPECT_EQ(Ctl({"--token-file", folder_ + "/token", "device"}).first, 0);
}

TEST_F(SecurityDaemonTest, TlsIsSpokenWithTheRightAuthorityOnly) {
  StartOnTcp(/*gpu=*/false, TlsFlags());
  EXPECT_TRUE(Describe(Tls(authority_)).ok());
  EXPECT_EQ(Describe(Tls(MakeAuthority("other ca"))).error_code(), grpc::UNAVAILABLE);
  EXPECT_EQ(Describe(Tcp(grpc::InsecureChannelCredentials())).error_code(), grpc::UNAVAILABLE);
  EXPECT_TRUE(Describe(channel_).ok());

  EXPECT_EQ(Ctl({"--tls-ca", folder_ + "/ca.pem", "device"}).first, 0);
  MakeAuthority("other ca").WriteTo(folder_, "other");
  const auto [wrong, why] = Ctl({"--tls-ca", folder_ + "/other.pem", "device"});
  EXPECT_EQ(wrong, 3);
  EXPECT_THAT(why, HasSubstr("is not signed by " + folder_ + "/other.pem"));
  const auto [plain, hint] = Ctl({"device"});
  EXPECT_EQ(plain, 3);
  EXPECT_THAT(hint, HasSubstr("--tls-ca"));
}

TEST_F(SecurityDaemonTest, AnExpiredCertificateIsRefusedAtTheStart) {
  MakeCertificate({"qgemmd", -7200, 3600}, authority_).WriteTo(folder_, "server");
  std::vector<std::string> flags = Flags(/*gpu=*/false);
  const std::vector<std::string> tls = TlsFlags();
  flags.insert(flags.end(), tls.begin(), tls.end());
  for (const bool check_only : {false, true}) {
    if (check_only) flags.emplace_back("--check-config");
    const auto [code, output] = RunToTheEnd(flags);
    EXPECT_EQ(code, 2) << check_only;
    EXPECT_THAT(output, AllOf(HasSubstr("server.pem"), HasSubstr("expired on")));
  }
}

TEST_F(SecurityDaemonTest, APortForOthersNeedsTls) {
  std::vector<std::string> flags = Flags(/*gpu=*/false);
  flags.insert(flags.end(), {"--listen", "0.0.0.0:0"});
  const auto [code, output] = RunToTheEnd(flags);
  EXPECT_EQ(code, 2);
  EXPECT_THAT(output, AllOf(HasSubstr("0.0.0.0:0"), HasSubstr("--tls-cert")));
}

TEST_F(SecurityDaemonTest, AnEmptyFileNameDoesNotOpenTheDaemon) {
  for (const char* flag : {"--tokens-file", "--tls-client-ca", "--tls-cert"}) {
    std::vector<std::string> flags = Flags(/*gpu=*/false);
    flags.insert(flags.end(), {flag, ""});
    const auto [code, output] = RunToTheEnd(flags);
    EXPECT_EQ(code, 2) << flag;
    EXPECT_THAT(output, HasSubstr(std::string(flag) + " is empty; allowed: a file"));
  }
}

TEST_F(SecurityDaemonTest, ClientCertificatesSayWhoCalls) {
  std::vector<std::string> flags = TlsFlags();
  flags.insert(flags.end(), {"--tls-client-ca", folder_ + "/ca.pem", "--admin", "root@ci"});
  StartOnTcp(/*gpu=*/true, flags);
  const TestCertificate alice = MakeCertificate({"alice"}, authority_);
  const TestCertificate bob = MakeCertificate({"bob"}, authority_);
  const TestCertificate admin = MakeCertificate({"root@ci"}, authority_);
  const TestCertificate expired = MakeCertificate({"alice", -7200, 3600}, authority_);
  const TestCertificate stranger = MakeCertificate({"alice"}, MakeAuthority("other ca"));
  EXPECT_TRUE(Describe(Tls(authority_, &alice)).ok());
  EXPECT_EQ(Describe(Tls(authority_)).error_code(), grpc::UNAVAILABLE);
  EXPECT_EQ(Describe(Tls(authority_, &expired)).error_code(), grpc::UNAVAILABLE);
  EXPECT_EQ(Describe(Tls(authority_, &stranger)).error_code(), grpc::UNAVAILABLE);

  const auto [code, hint] = Ctl({"--tls-ca", folder_ + "/ca.pem", "device"});
  EXPECT_EQ(code, 3);
  EXPECT_THAT(hint, HasSubstr("it may ask for a client certificate: --tls-cert"));
  alice.WriteTo(folder_, "alice");
  EXPECT_EQ(Ctl({"--tls-ca", folder_ + "/ca.pem", "--tls-cert", folder_ + "/alice.pem", "--tls-key",
                 folder_ + "/alice.key", "device"})
                .first,
            0);

  SKIP_WITHOUT_NVRTC();
  const std::string job_id = Detach(Tls(authority_, &alice), "");
  EXPECT_EQ(OwnerOf(channel_, job_id), "alice");
  EXPECT_EQ(Cancel(Tls(authority_, &bob), "", job_id).error_code(), grpc::PERMISSION_DENIED);
  EXPECT_TRUE(Cancel(Tls(authority_, &admin), "", job_id).ok());
}

TEST_F(SecurityDaemonTest, AReaderLooksUpAndHasNothingTuned) {
  std::ofstream(TokensFile()) << "dashboard:" << Sha256Hex("token-d") << ":reader\n";
  StartOnTcp(/*gpu=*/false, {"--tokens-file", TokensFile()});
  const auto channel = Tcp(grpc::InsecureChannelCredentials());
  EXPECT_TRUE(Describe(channel, "token-d").ok());
  grpc::ClientContext looking;
  Prepare(looking, "token-d");
  v1::LookupRequest lookup;
  *lookup.add_keys()->mutable_problem() = Int4Problem(512, 1024);
  lookup.mutable_keys(0)->set_m(1);
  v1::LookupResponse answers;
  EXPECT_TRUE(v1::Tuner::NewStub(channel)->Lookup(&looking, lookup, &answers).ok());
  grpc::ClientContext tuning;
  Prepare(tuning, "token-d");
  const auto reader = v1::Tuner::NewStub(channel)->Tune(
      &tuning, RequestFor(Int4Problem(512, 1024), {1}, v1::EFFORT_MODEL_ONLY));
  v1::TuneEvent event;
  EXPECT_FALSE(reader->Read(&event));
  const grpc::Status denied = reader->Finish();
  EXPECT_EQ(denied.error_code(), grpc::PERMISSION_DENIED);
  EXPECT_THAT(denied.error_message(), HasSubstr("whose token is for reading"));
}

TEST_F(SecurityDaemonTest, StrangersNeitherCancelJobsNorChangeTheDaemon) {
  StartOnTcp(/*gpu=*/true, {"--tokens-file", TokensFile()});
  SKIP_WITHOUT_NVRTC();
  const auto channel = Tcp(grpc::InsecureChannelCredentials());
  const std::string job_id = Detach(channel, "token-a");
  EXPECT_EQ(OwnerOf(channel_, job_id), "alice");
  const grpc::Status denied = Cancel(channel, "token-b", job_id);
  EXPECT_EQ(denied.error_code(), grpc::PERMISSION_DENIED);
  EXPECT_EQ(denied.error_message(), absl::StrCat("job ", job_id,
                                                 " belongs to alice, and you are bob: only its owner or an "
                                                 "admin may cancel it"));
  EXPECT_TRUE(Cancel(channel, "token-a", job_id).ok());
  EXPECT_TRUE(Cancel(channel, "token-o", Detach(channel, "token-a")).ok());
  // The daemon's own user is an admin.
  EXPECT_TRUE(Cancel(channel_, "", Detach(channel, "token-a")).ok());

  const auto pause = [&](const std::string& token) {
    grpc::ClientContext context;
    Prepare(context, token);
    v1::PauseResponse response;
    return v1::Device::NewStub(channel)->Pause(&context, {}, &response);
  };
  EXPECT_EQ(pause("token-b").error_code(), grpc::PERMISSION_DENIED);
  EXPECT_TRUE(pause("token-o").ok());
  const auto unpin = [&](const std::string& token) {
    grpc::ClientContext context;
    Prepare(context, token);
    v1::CachePinRequest request;
    request.mutable_selection()->set_arch("sm_90a");
    request.set_unpin(true);
    v1::CachePinResponse response;
    return v1::Cache::NewStub(channel)->Pin(&context, request, &response);
  };
  EXPECT_EQ(unpin("token-b").error_code(), grpc::PERMISSION_DENIED);
  EXPECT_TRUE(unpin("token-o").ok()) << unpin("token-o").error_message();
}

TEST_F(SecurityDaemonTest, ANewCertificateIsTakenWithoutDroppingConnections) {
  StartOnTcp(/*gpu=*/false, TlsFlags());
  const auto standing = Tls(authority_);
  ASSERT_TRUE(Describe(standing).ok());

  const TestCertificate next_authority = MakeAuthority("next ca");
  MakeCertificate({"renewed"}, next_authority).WriteTo(folder_, "server");
  daemon_->Signal(SIGHUP);
  ASSERT_TRUE(daemon_->AwaitLine("SIGHUP: in use: TLS with CN=renewed").has_value()) << daemon_->Output();
  // The connection that stands would not find its authority again: it is the old one.
  EXPECT_TRUE(Describe(standing).ok());
  EXPECT_EQ(Describe(Tls(authority_)).error_code(), grpc::UNAVAILABLE);
  EXPECT_TRUE(Describe(Tls(next_authority)).ok());

  // One that is no good changes nothing, and the log says why.
  MakeCertificate({"late", -7200, 3600}, next_authority).WriteTo(folder_, "server");
  daemon_->Signal(SIGHUP);
  const auto refused = daemon_->AwaitLine("what was read before stays in use: tls_cert");
  ASSERT_TRUE(refused.has_value()) << daemon_->Output();
  EXPECT_THAT(*refused, HasSubstr("expired on"));
  EXPECT_TRUE(Describe(standing).ok());
  EXPECT_TRUE(Describe(Tls(next_authority)).ok());
}

}  // namespace
}  // namespace qgemm
