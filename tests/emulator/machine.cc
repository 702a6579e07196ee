#include "tests/emulator/machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace qgemm {
namespace {

constexpr size_t kStackBytes = 256 * 1024;
constexpr size_t kToldOf = 8;

Machine* current = nullptr;

// Fibers' stacks, kept from cluster to cluster.
uint8_t* Stack(size_t i) {
  static std::vector<uint8_t*> stacks;
  while (stacks.size() <= i) {
    void* p = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    QGEMM_CHECK(p != MAP_FAILED);
    stacks.push_back(static_cast<uint8_t*>(p));
  }
  return stacks[i];
}

std::vector<std::vector<PtxInstruction>>& Statements() {
  static auto* statements = new std::vector<std::vector<PtxInstruction>>;
  return *statements;
}

}  // namespace

int RegisterPtxStatement(const char* text) {
  Statements().push_back(ParsePtxStatement(text));
  return static_cast<int>(Statements().size()) - 1;
}

const std::vector<PtxInstruction>& PtxStatement(int number) { return Statements()[number]; }

Machine& Machine::Current() {
  QGEMM_CHECK(current != nullptr);
  return *current;
}

MachineReport Machine::Run() {
  QGEMM_CHECK(current == nullptr);
  current = this;
  grid_ = {static_cast<unsigned>(launch_.grid.x), static_cast<unsigned>(launch_.grid.y),
           static_cast<unsigned>(launch_.grid.z)};
  block_ = {static_cast<unsigned>(launch_.threads), 1, 1};
  std::vector<std::vector<SimtDim3>> clusters;
  for (unsigned x = 0; x < grid_.x; ++x) {
    for (unsigned y = 0; y < grid_.y; ++y) {
      const unsigned side_by_side = launch_.slices_side_by_side ? grid_.z : launch_.cluster_z;
      for (unsigned z = 0; z < grid_.z; z += side_by_side) {
        clusters.emplace_back();
        for (unsigned i = 0; i < side_by_side; ++i) clusters.back().push_back({x, y, z + i});
      }
    }
  }
  std::shuffle(clusters.begin(), clusters.end(), random_);
  for (const std::vector<SimtDim3>& blocks : clusters) {
    if (!stopped_) RunCluster(blocks);
  }
  current = nullptr;
  return report_;
}

void Machine::RunCluster(const std::vector<SimtDim3>& blocks) {
  ctas_.clear();
  threads_.clear();
  copies_.clear();
  cluster_barrier_ = {};
  const size_t count = blocks.size() * launch_.threads;
  const uint32_t statics = launch_.static_count * launch_.static_slot_bytes;
  for (const SimtDim3& index : blocks) {
    auto cta = std::make_unique<Cta>();
    cta->index = index;
    // Dynamic shared memory may be aligned to 1 KiB after the static one.
    cta->shared = std::make_unique<SharedMemory>((statics + 1023) / 1024 * 1024 + launch_.dynamic_bytes);
    cta->warps.resize(launch_.threads / 32);
    cta->running = launch_.threads;
    for (int i = 0; i < launch_.threads; ++i) {
      auto thread = std::make_unique<Thread>();
      thread->number = threads_.size();
      thread->cta = static_cast<int>(ctas_.size());
      thread->lane = i % 32;
      thread->warp = i / 32;
      thread->index = {static_cast<unsigned>(i), 0, 0};
      thread->clock = VectorClock(count);
      thread->clock.Tick(thread->number);
      cta->warps[i / 32].lanes.push_back(thread.get());
      Begin(*thread);
      threads_.push_back(std::move(thread));
    }
    ctas_.push_back(std::move(cta));
  }
  const auto runnable = [](const Thread& thread) {
    return !thread.done && (!thread.ready || thread.ready());
  };
  std::vector<std::pair<int, int>> warps;
  while (!stopped_) {
    if (!copies_.empty() && random_() % 4 == 0) DeliverCopy();
    warps.clear();
    bool alive = false;
    for (size_t c = 0; c < ctas_.size(); ++c) {
      for (size_t w = 0; w < ctas_[c]->warps.size(); ++w) {
        bool any = false;
        for (const Thread* thread : ctas_[c]->warps[w].lanes) {
          alive |= !thread->done;
          any = any || runnable(*thread);
        }
        if (any) warps.emplace_back(c, w);
      }
    }
    if (!alive) break;
    if (warps.empty()) {
      if (DeliverCopy()) continue;
      if (std::any_of(threads_.begin(), threads_.end(), [](const auto& thread) { return thread->polls; })) {
        continue;
      }
      for (const auto& thread : threads_) {
        if (thread->done) continue;
        Problem(absl::StrCat("CTA (", ctas_[thread->cta]->index.x, ", ", ctas_[thread->cta]->index.y, ", ",
                             ctas_[thread->cta]->index.z, ") thread ", thread->index.x,
                             " waits for ever: ", thread->waits_for));
      }
      stopped_ = true;
      break;
    }
    const auto [c, w] = warps[random_() % warps.size()];
    const bool backwards = random_() % 2 == 0;
    for (int i = 0; i < 32 && !stopped_; ++i) {
      Thread& thread = *ctas_[c]->warps[w].lanes[backwards ? 31 - i : i];
      if (runnable(thread)) Resume(thread);
    }
  }
  if (!stopped_ && !copies_.empty()) Problem("a tensor copy is still under way when its CTA has ended");
}

void Machine::Begin(Thread& thread) {
  getcontext(&thread.context);
  thread.context.uc_stack.ss_sp = Stack(thread.number);
  thread.context.uc_stack.ss_size = kStackBytes;
  thread.context.uc_link = nullptr;
  const auto self = reinterpret_cast<uintptr_t>(&thread);
  makecontext(&thread.context, reinterpret_cast<void (*)()>(&Machine::ThreadMain), 2,
              static_cast<unsigned>(self), static_cast<unsigned>(self >> 32));
}

void Machine::Resume(Thread& thread) {
  thread.ready = nullptr;
  thread_ = &thread;
  swapcontext(&scheduler_, &thread.context);
  thread_ = nullptr;
}

void Machine::ThreadMain(unsigned low, unsigned high) {
  auto* thread = reinterpret_cast<Thread*>(static_cast<uintptr_t>(low) | static_cast<uintptr_t>(high) << 32);
  Machine& machine = Current();
  machine.launch_.run(machine.launch_.parameters);
  machine.WaitForCopies(0);
  thread->done = true;
  --machine.cta().running;
  machine.CompleteClusterBarrier();
  setcontext(&machine.scheduler_);
}

void Machine::Wait(std::string what, std::function<bool()> ready) {
  if (ready()) return;
  Thread& self = *thread_;
  self.waits_for = std::move(what);
  self.ready = std::move(ready);
  swapcontext(&self.context, &scheduler_);
}

void Machine::Problem(const std::string& text) {
  if (report_.problem_count++ < static_cast<int64_t>(kToldOf)) {
    std::string where;
    if (thread_ != nullptr) {
      where = absl::StrCat("CTA (", cta().index.x, ", ", cta().index.y, ", ", cta().index.z, ") thread ",
                           thread_->index.x, " ");
    }
    report_.problems.push_back(where + text);
  }
}

void Machine::Stop(const std::string& text) {
  Problem(text);
  stopped_ = true;
  // The fibers are left where they are: translated code owns nothing.
  setcontext(&scheduler_);
  std::abort();
}

void* Machine::DynamicShared(uint32_t alignment) {
  const uint32_t statics = SharedMemory::kFirst + launch_.static_count * launch_.static_slot_bytes;
  const uint32_t begin = (statics + alignment - 1) / alignment * alignment;
  cta().shared->set_end(begin + launch_.dynamic_bytes);
  return cta().shared->At(begin);
}

void* Machine::StaticShared(uint32_t index, uint32_t bytes) {
  QGEMM_CHECK(bytes <= launch_.static_slot_bytes);
  return cta().shared->At(SharedMemory::kFirst + index * launch_.static_slot_bytes);
}

uint32_t Machine::SharedAddress(const void* p) {
  if (!cta().shared->Contains(p)) {
    Stop("takes the shared address of something that is not in its shared memory");
  }
  return cta().shared->AddressOf(p);
}

void Machine::Barrier(int id, int count) {
  NamedBarrier& barrier = cta().barriers[id];
  Thread& self = *thread_;
  if (id < 0 || id > 15 || count % 32 != 0 || (barrier.arrived > 0 && barrier.expected != count)) {
    Stop(absl::StrCat("is at barrier ", id, " of ", count, " threads, where others wait for ",
                      barrier.expected));
  }
  barrier.expected = count;
  barrier.clock.Join(self.clock);
  barrier.after_kernel_before |= self.after_kernel_before;
  self.clock.Tick(self.number);
  if (++barrier.arrived == count) {
    // What the waiting threads take is theirs alone: the next round begins with nothing.
    auto clock = std::make_shared<VectorClock>(std::move(barrier.clock));
    for (Warp& warp : cta().warps) {
      for (Thread* thread : warp.lanes) {
        if (thread->waits_for == absl::StrCat("barrier ", id) && thread->ready) {
          thread->clock.Join(*clock);
          thread->after_kernel_before |= barrier.after_kernel_before;
        }
      }
    }
    self.clock.Join(*clock);
    self.after_kernel_before |= barrier.after_kernel_before;
    const uint64_t turn = barrier.turn + 1;
    barrier = {};
    barrier.turn = turn;
    return;
  }
  const uint64_t turn = barrier.turn;
  Wait(absl::StrCat("barrier ", id), [&barrier, turn] { return barrier.turn != turn; });
}

void Machine::ClusterBarrier() {
  cluster_barrier_.clock.Join(thread_->clock);
  thread_->clock.Tick(thread_->number);
  ++cluster_barrier_.arrived;
  const uint64_t turn = cluster_barrier_.turn;
  CompleteClusterBarrier();
  Wait("the cluster's barrier", [this, turn] { return cluster_barrier_.turn != turn; });
}

// Complete once all threads that have not exited are there (PTX ISA, barrier.cluster).
void Machine::CompleteClusterBarrier() {
  int running = 0;
  for (const auto& cta : ctas_) running += cta->running;
  if (cluster_barrier_.arrived == 0 || cluster_barrier_.arrived < running) return;
  for (const auto& thread : threads_) thread->clock.Join(cluster_barrier_.clock);
  const uint64_t turn = cluster_barrier_.turn + 1;
  cluster_barrier_ = {};
  cluster_barrier_.turn = turn;
}

void Machine::Together(const void* at, const void* operands, const WarpFunction& function, const char* what) {
  Warp& warp = this->warp();
  if (warp.arrived > 0 && warp.at != at) {
    Stop(absl::StrCat("is at ", what, " where other lanes of its warp are not"));
  }
  warp.at = at;
  warp.operands[thread_->lane] = operands;
  if (++warp.arrived == 32) {
    function(warp);
    warp.arrived = 0;
    ++warp.turn;
    return;
  }
  const uint64_t turn = warp.turn;
  Wait(absl::StrCat("the other lanes at ", what), [&warp, turn] { return warp.turn != turn; });
}

void Machine::JoinLanes(Warp& warp) {
  VectorClock clock;
  bool after = false;
  for (const Thread* lane : warp.lanes) {
    clock.Join(lane->clock);
    after |= lane->after_kernel_before;
  }
  for (Thread* lane : warp.lanes) {
    lane->clock.Join(clock);
    lane->clock.Tick(lane->number);
    lane->after_kernel_before = after;
  }
}

void Machine::SyncWarp() {
  static const char at = 0;
  Together(
      &at, nullptr, [](Warp& warp) { JoinLanes(warp); }, "__syncwarp");
}

uint32_t Machine::ShuffleXor(uint32_t value, int lanes) {
  static const char at = 0;
  struct Exchange {
    uint32_t value;
    int lanes;
    uint32_t result;
  } exchange = {value, lanes, 0};
  Together(
      &at, &exchange,
      [](Warp& warp) {
        for (int lane = 0; lane < 32; ++lane) {
          auto* mine = const_cast<Exchange*>(static_cast<const Exchange*>(warp.operands[lane]));
          mine->result = static_cast<const Exchange*>(warp.operands[lane ^ mine->lanes])->value;
        }
      },
      "shfl");
  return exchange.result;
}

bool Machine::CheckGlobal(const void* p, uint64_t bytes, bool write) {
  std::string wrong;
  const GlobalMemory::Buffer* buffer = launch_.memory->Find(p, bytes, write, &wrong);
  if (buffer == nullptr) {
    Problem(wrong);
    return false;
  }
  if (launch_.dependent && buffer->of_kernel_before && !thread_->after_kernel_before) {
    Problem(absl::StrCat("touches ", buffer->name, " before griddepcontrol.wait"));
  }
  return true;
}

const void* Machine::GlobalRead(const void* p, uint32_t bytes) {
  static const uint8_t nothing[16] = {};
  if (reinterpret_cast<uintptr_t>(p) % bytes != 0) {
    Problem(absl::StrCat("reads ", bytes, " bytes at an address that is not aligned so"));
  }
  return CheckGlobal(p, bytes, false) ? p : nothing;
}

void Machine::ReadShared(uint32_t address, uint32_t bytes) {
  const std::string wrong = cta().shared->Read(address, bytes, thread_->number, thread_->clock);
  if (!wrong.empty()) Problem(wrong);
}

void Machine::WriteShared(uint32_t address, uint32_t bytes) {
  const std::string wrong = cta().shared->Write(address, bytes, thread_->number, thread_->clock);
  if (!wrong.empty()) Problem(wrong);
  if (cta().HasBarrierIn(address, bytes)) Problem("writes over an mbarrier");
}

void Machine::Access(void* p, uint32_t bytes, bool write) {
  if (thread_ == nullptr) return;
  if (cta().shared->Contains(p)) {
    if (reinterpret_cast<uintptr_t>(p) % std::min(bytes, 16u) != 0) {
      Problem(
          absl::StrCat("touches ", bytes, " bytes of shared memory at an address that is not aligned so"));
    }
    const uint32_t address = cta().shared->AddressOf(p);
    if (write) {
      WriteShared(address, bytes);
    } else {
      ReadShared(address, bytes);
    }
    return;
  }
  if (launch_.memory->Contains(p)) CheckGlobal(p, bytes, write);
}

}  // namespace qgemm

extern "C" {
// What device_prelude.h declares.
const SimtDim3* SimtThreadIndex() { return &qgemm::Machine::Current().thread_index(); }
const SimtDim3* SimtBlockIndex() { return &qgemm::Machine::Current().block_index(); }
const SimtDim3* SimtGridSize() { return &qgemm::Machine::Current().grid_size(); }
const SimtDim3* SimtBlockSize() { return &qgemm::Machine::Current().block_size(); }
void* SimtDynamicShared(unsigned alignment) { return qgemm::Machine::Current().DynamicShared(alignment); }
void* SimtStaticShared(unsigned index, unsigned bytes) {
  return qgemm::Machine::Current().StaticShared(index, bytes);
}
unsigned long SimtSharedAddress(const void* p) { return qgemm::Machine::Current().SharedAddress(p); }
int SimtParse(const char* text) { return qgemm::RegisterPtxStatement(text); }
void SimtExecute(int instruction, const SimtOperand* operands) {
  qgemm::Machine::Current().Execute(instruction, operands);
}
void SimtSyncThreads() { qgemm::Machine::Current().SyncThreads(); }
void SimtSyncWarp() { qgemm::Machine::Current().SyncWarp(); }
unsigned SimtShuffleXor(unsigned value, int lanes) {
  return qgemm::Machine::Current().ShuffleXor(value, lanes);
}

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
// Translated code is compiled with -fsanitize=thread for its calls at every load and store; these stand in
// place of the sanitizer's own.
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
#define QGEMM_ACCESS(bytes)                                                                         \
  void __tsan_read##bytes(void* p) { qgemm::Machine::Current().Access(p, bytes, false); }           \
  void __tsan_write##bytes(void* p) { qgemm::Machine::Current().Access(p, bytes, true); }           \
  void __tsan_unaligned_read##bytes(void* p) { qgemm::Machine::Current().Access(p, bytes, false); } \
  void __tsan_unaligned_write##bytes(void* p) { qgemm::Machine::Current().Access(p, bytes, true); } \
  void __tsan_volatile_read##bytes(void* p) { qgemm::Machine::Current().Access(p, bytes, false); }  \
  void __tsan_volatile_write##bytes(void* p) { qgemm::Machine::Current().Access(p, bytes, true); }
QGEMM_ACCESS(1)
QGEMM_ACCESS(2)
QGEMM_ACCESS(4)
QGEMM_ACCESS(8)
QGEMM_ACCESS(16)
#undef QGEMM_ACCESS
void __tsan_read_range(void* p, unsigned long bytes) { qgemm::Machine::Current().Access(p, bytes, false); }
void __tsan_write_range(void* p, unsigned long bytes) { qgemm::Machine::Current().Access(p, bytes, true); }
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
}
