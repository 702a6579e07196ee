#ifndef QGEMM_TESTS_FAKES_FAKE_CUDA_DRIVER_H_
#define QGEMM_TESTS_FAKES_FAKE_CUDA_DRIVER_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace qgemm::fake_cuda {

// What a program that is linked with fake_cuda_driver.cc (a libcuda.so.1) did with it. One GPU, whose kernels
// do nothing: an entry "name_84" has two parameters, of 8 and 4 bytes. It keeps to the rules of the driver's
// manual that only show when they are broken: what refers to something that is gone is a violation.
struct State {
  // What ran: "name_84(7, 1) 1x2x3 threads 128 smem 0 cluster 1", "record" with the event's number.
  std::vector<std::string> ran;
  std::vector<std::string> violations;
  int modules = 0;  // loaded now
  int graphs = 0;   // not destroyed
  int execs = 0;
  bool refuse_object_create = false,
       refuse_object_retain = false;            // cuUserObjectCreate, cuGraphRetainUserObject
  size_t most_bytes = 1 << 30;                  // of one allocation
  std::map<unsigned long long, size_t> blocks;  // bytes of what is allocated, by address
};
State& Current();

}  // namespace qgemm::fake_cuda

#endif  // QGEMM_TESTS_FAKES_FAKE_CUDA_DRIVER_H_
