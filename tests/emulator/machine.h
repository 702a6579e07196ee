#ifndef QGEMM_TESTS_EMULATOR_MACHINE_H_
#define QGEMM_TESTS_EMULATOR_MACHINE_H_

#include <ucontext.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/launch_spec.h"
#include "tests/emulator/global_memory.h"
#include "tests/emulator/ptx_instruction.h"
#include "tests/emulator/shared_memory.h"
#include "tests/emulator/vector_clock.h"

struct SimtDim3 {
  unsigned x, y, z;
};
struct SimtOperand {
  unsigned long long bits;
  void* place;
  char constraint;
};

namespace qgemm {

// A launch as a GPU runs it, one thread at a time: each thread of a cluster's CTAs is a fiber that runs until
// it must wait for others. Which warp goes on next, and when a copy arrives, `seed` decides: what no barrier
// orders comes in any order. Asynchronous work is done as late as it may be. Found are: accesses outside of
// buffers and of shared memory, races in shared memory, reads of what has not arrived, lanes of a warp at
// different instructions, barriers that nobody completes, work before griddepcontrol.wait that must come
// after it.
//
// CTAs (or clusters) run one after the other in an order of the seed's, or all slices of a tile (CTAs along
// z) side by side.
struct MachineLaunch {
  Dim3 grid;
  int threads = 32;
  int cluster_z = 1;
  bool slices_side_by_side = false;
  uint32_t sm_count = 0;  // what %nsmid says
  uint32_t dynamic_bytes = 0;
  int static_count = 0;  // static shared variables, each in a slot of its own
  uint32_t static_slot_bytes = 16;
  void (*run)(const unsigned char* parameters) = nullptr;
  const unsigned char* parameters = nullptr;
  const GlobalMemory* memory = nullptr;
  bool dependent = false;  // check that operands wait for the kernel before
  uint64_t seed = 0;
};

struct MachineReport {
  std::vector<std::string> problems;  // the first few
  int64_t problem_count = 0;
  int64_t matrix_instructions = 0;  // of warps: mma and wgmma
};

class Machine {
 public:
  explicit Machine(const MachineLaunch& launch) : launch_(launch), random_(launch.seed) {}
  MachineReport Run();

  // What translated code calls, by the running thread (device_prelude.h).
  static Machine& Current();
  const SimtDim3& thread_index() const { return thread_->index; }
  const SimtDim3& block_index() const { return cta().index; }
  const SimtDim3& grid_size() const { return grid_; }
  const SimtDim3& block_size() const { return block_; }
  void* DynamicShared(uint32_t alignment);
  void* StaticShared(uint32_t index, uint32_t bytes);
  uint32_t SharedAddress(const void* p);
  void Execute(int statement, const SimtOperand* operands);
  void SyncThreads() { Barrier(0, launch_.threads); }
  void SyncWarp();
  uint32_t ShuffleXor(uint32_t value, int lanes);
  // A plain load or store.
  void Access(void* p, uint32_t bytes, bool write);

 private:
  struct Thread;
  struct Cta;
  struct SharedCopy {  // cp.async
    uint32_t to;
    const void* from;
    uint32_t bytes;  // of `from`; the rest of 16 are zeros
  };
  struct TensorCopy {
    Cta* cta;
    size_t thread;
    VectorClock issued;
    uint32_t to, barrier;
    std::vector<uint8_t> bytes;
    uint32_t box_bytes;
  };
  struct MatrixBatch {  // a warp's share of a wgmma, by lane
    int columns;
    bool bf16;
    uint64_t b;
    bool accumulate;
    std::vector<float*> d[32];
    uint32_t a[32][4];
  };
  struct Warp {
    std::vector<Thread*> lanes;
    const void* at = nullptr;  // what the arrived lanes execute
    int arrived = 0;
    uint64_t turn = 0;
    const void* operands[32] = {};
    VectorClock clock;
    std::vector<MatrixBatch> open;
    std::deque<std::vector<MatrixBatch>> groups;
  };
  struct NamedBarrier {
    int arrived = 0;
    int expected = 0;
    uint64_t turn = 0;
    VectorClock clock;
    bool after_kernel_before = false;
  };
  struct TransactionBarrier {
    uint32_t count = 0, pending = 0, phase = 0;
    int64_t bytes = 0;
    VectorClock clock, completed;
    bool after_kernel_before = false;
  };
  struct Cta {
    SimtDim3 index;
    std::unique_ptr<SharedMemory> shared;
    std::vector<Warp> warps;
    NamedBarrier barriers[16];
    std::map<uint32_t, TransactionBarrier> transactions;
    int running = 0;

    // PTX ISA, mbarrier.inval: the memory of one that was initialised has no other use.
    bool HasBarrierIn(uint32_t address, uint32_t bytes) const {
      const auto next = transactions.upper_bound(address > 8 ? address - 8 : 0);
      return next != transactions.end() && next->first < address + bytes;
    }
  };
  struct Thread {
    ucontext_t context;
    size_t number;  // in the cluster
    int cta, lane, warp;
    SimtDim3 index;
    VectorClock clock;
    bool done = false;
    std::function<bool()> ready;  // null: it can run
    std::string waits_for;
    bool polls = false;  // it goes on at some time whatever others do
    std::vector<SharedCopy> open;
    std::deque<std::vector<SharedCopy>> groups;
    bool after_kernel_before = false;
  };
  // Lanes' operands of an instruction that a warp executes together; operands[lane].
  using WarpFunction = std::function<void(Warp& warp)>;

  Cta& cta() const { return *ctas_[thread_->cta]; }
  Warp& warp() const { return cta().warps[thread_->warp]; }
  void RunCluster(const std::vector<SimtDim3>& blocks);
  static void Begin(Thread& thread);
  void Resume(Thread& thread);
  // Returns when `ready` says so.
  void Wait(std::string what, std::function<bool()> ready);
  void Problem(const std::string& text);
  [[noreturn]] void Stop(const std::string& text);
  static void ThreadMain(unsigned low, unsigned high);

  void Barrier(int id, int count);
  void ClusterBarrier();
  void CompleteClusterBarrier();
  // Once all lanes are at the same instruction, one of them does `function` for all.
  void Together(const void* at, const void* operands, const WarpFunction& function, const char* what);
  static void JoinLanes(Warp& warp);
  bool DeliverCopy();

  const void* GlobalRead(const void* p, uint32_t bytes);
  bool CheckGlobal(const void* p, uint64_t bytes, bool write);
  void ReadShared(uint32_t address, uint32_t bytes);
  void WriteShared(uint32_t address, uint32_t bytes);
  void ExecuteOne(const PtxInstruction& i, const SimtOperand* operands,
                  std::map<std::string, bool>& predicates);
  // With the lane that names the row as the thread.
  using MatrixRowFunction = std::function<void(const Warp& warp, int matrix, int row, uint32_t address)>;
  void EveryMatrixRow(const PtxInstruction& i, const SimtOperand* operands, const PtxValue& address,
                      const char* what, const MatrixRowFunction& function);
  void LoadMatrix(const PtxInstruction& i, const SimtOperand* operands);
  void StoreMatrix(const PtxInstruction& i, const SimtOperand* operands);
  void Mma(const PtxInstruction& i, const SimtOperand* operands);
  void WaitForCopies(size_t pending);
  void IssueWgmma(const PtxInstruction& i, const SimtOperand* operands, bool accumulate);
  void WaitForWgmma(size_t pending);
  void RunWgmma(Warp& warp, const MatrixBatch& batch);
  void TransactionArrive(uint32_t address, int64_t expect);
  void CompletePhase(TransactionBarrier& barrier);
  void TransactionWait(uint32_t address, uint32_t parity);
  void IssueTensorCopy(uint32_t to, const void* map, int32_t column, int32_t row, uint32_t barrier);
  // Under way from now on, until it arrives at its mbarrier.
  void IssueCopy(TensorCopy copy);

  MachineLaunch launch_;
  std::mt19937_64 random_;
  MachineReport report_;
  SimtDim3 grid_ = {}, block_ = {};
  std::vector<std::unique_ptr<Cta>> ctas_;  // of the running cluster
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<TensorCopy> copies_;  // under way
  NamedBarrier cluster_barrier_;
  Thread* thread_ = nullptr;  // running, or null
  ucontext_t scheduler_;
  bool stopped_ = false;
};

// The statement's number, for Execute.
int RegisterPtxStatement(const char* text);
const std::vector<PtxInstruction>& PtxStatement(int number);

}  // namespace qgemm

#endif  // QGEMM_TESTS_EMULATOR_MACHINE_H_
