#ifndef QGEMM_TESTS_UNIT_CLIENT_QGEMMCTL_FIXTURE_H_
#define QGEMM_TESTS_UNIT_CLIENT_QGEMMCTL_FIXTURE_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "tests/unit/client/fake_daemon.h"

namespace qgemm {

// The program qgemmctl, started as scripts start it, against a daemon that answers what the test tells it.

inline std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// A running qgemmctl.
class Program {
 public:
  Program(const std::string& folder, const std::vector<std::string>& arguments)
      : stdout_path_(folder + "/stdout"), stderr_path_(folder + "/stderr") {
    std::vector<char*> argv = {const_cast<char*>(QGEMMCTL)};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    const int flags = O_WRONLY | O_CREAT | O_TRUNC;
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, stdout_path_.c_str(), flags, 0600);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, stderr_path_.c_str(), flags, 0600);
    QGEMM_CHECK(posix_spawn(&pid_, QGEMMCTL, &actions, nullptr, argv.data(), environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
  }

  void Signal(int signal) { QGEMM_CHECK(kill(pid_, signal) == 0); }

  // Waits for its end; returns the exit code, or -1 when a signal ended it.
  int Wait() {
    int status = 0;
    QGEMM_CHECK(waitpid(pid_, &status, 0) == pid_);
    out = ReadFile(stdout_path_);
    err = ReadFile(stderr_path_);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::string out;
  std::string err;

 private:
  const std::string stdout_path_;
  const std::string stderr_path_;
  pid_t pid_ = -1;
};

class Qgemmctl : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "qgemmctl.XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  int Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--server", daemon_.address()});
    Program program(folder_, arguments);
    const int code = program.Wait();
    out_ = program.out;
    err_ = program.err;
    return code;
  }

  // A pick of the request's problem, and a summary.
  void AnswerEveryTune() {
    daemon_.answers().tune = [this](const v1::TuneRequest& request, auto* writer) {
      request_ = request;
      // Last bucket first: the order of arrival is not the order of the request.
      for (int i = request.m_size() - 1; i >= 0; --i) {
        for (int problem = 0; problem < request.problems_size(); ++problem) {
          v1::TuneEvent event;
          *event.mutable_result() = MakeResult(request, problem, i);
          writer->Write(event);
        }
      }
      v1::TuneEvent last;
      last.mutable_summary()->set_compiles(44);
      last.mutable_summary()->set_cache_hits(2);
      last.mutable_summary()->set_wall_s(1.5);
      last.mutable_summary()->set_compile_cpu_s(9.5);
      last.mutable_summary()->set_gpu_busy_s(0.25);
      writer->Write(last);
      return grpc::Status::OK;
    };
  }

  static v1::TuneResult MakeResult(const v1::TuneRequest& request, int problem, int m) {
    v1::TuneResult result;
    result.set_problem_index(problem);
    const int bucket = static_cast<int>(request.m(m));
    result.set_m_bucket(bucket);
    *result.mutable_pick() = MakePick(request.problems(problem), bucket);
    return result;
  }

  static v1::Pick MakePick(const v1::Problem& problem, int bucket) {
    v1::Pick pick;
    *pick.mutable_problem() = problem;
    pick.set_m_bucket(bucket);
    pick.set_target("h200");
    pick.set_source(v1::PICK_SOURCE_MODEL);
    pick.set_config("mma_t1_r2_w4x2_s4_b2_slice_post");
    pick.set_split_k(1);
    pick.set_reduction(v1::REDUCTION_NONE);
    pick.set_predicted_us(8.5);
    pick.mutable_kernel()->set_sha256(std::string(64, 'a'));
    pick.mutable_launch()->set_entry("qgemm_mma");
    return pick;
  }

  FakeDaemon daemon_;
  v1::TuneRequest request_;
  std::string folder_;
  std::string out_;
  std::string err_;
};

}  // namespace qgemm

#endif  // QGEMM_TESTS_UNIT_CLIENT_QGEMMCTL_FIXTURE_H_
