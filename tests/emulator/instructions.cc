// PTX instructions, as the PTX ISA describes them. Warp-wide ones are done by the lane that comes last, for
// all.
#include <cmath>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "kernels/cuda/driver.h"
#include "kernels/reference_gemm.h"
#include "tests/emulator/machine.h"

namespace qgemm {
namespace {

// The registers that a statement declares. No fiber gives way between a statement's writing and reading them.
std::array<uint64_t, 4> local_registers;

// The largest vector of operands: the accumulators of a wgmma of 256 columns, its A, its descriptor and more.
uint64_t Bits(const PtxValue& value, const SimtOperand* operands) {
  if (value.kind == PtxValue::Kind::kNumber) return value.number;
  if (value.kind == PtxValue::Kind::kLocal) return local_registers.at(value.number);
  QGEMM_CHECK(value.kind == PtxValue::Kind::kOperand);
  const SimtOperand& operand = operands[value.number];
  if (operand.place == nullptr) return operand.bits;
  uint64_t bits = 0;
  std::memcpy(&bits, operand.place, operand.constraint == 'l' ? 8 : operand.constraint == 'h' ? 2 : 4);
  return bits;
}
uint32_t Word(const PtxValue& value, const SimtOperand* operands) {
  return static_cast<uint32_t>(Bits(value, operands));
}
const void* Pointer(const PtxValue& value, const SimtOperand* operands) {
  return reinterpret_cast<const void*>(Bits(value, operands));
}
float FloatOf(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
uint32_t BitsOf(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return bits;
}
void* Place(const PtxValue& value, const SimtOperand* operands) {
  QGEMM_CHECK(value.kind == PtxValue::Kind::kOperand && operands[value.number].place != nullptr);
  return operands[value.number].place;
}
void Set(const PtxValue& value, const SimtOperand* operands, uint64_t bits) {
  if (value.kind == PtxValue::Kind::kLocal) {
    local_registers.at(value.number) = bits;
    return;
  }
  const char constraint = operands[value.number].constraint;
  std::memcpy(Place(value, operands), &bits, constraint == 'l' ? 8 : constraint == 'h' ? 2 : 4);
}

// The four floats of a store, which follow its address.
void StoreFloat4(void* to, const std::vector<PtxValue>& values, const SimtOperand* operands) {
  for (int j = 0; j < 4; ++j) {
    const uint32_t bits = Word(values[1 + j], operands);
    std::memcpy(static_cast<uint8_t*>(to) + j * 4, &bits, 4);
  }
}

// All products and sums of 16-bit types fit a double but for their last rounding.
template <typename F>
uint32_t OnPairs(ScalarType type, const F& f) {
  const uint32_t low = ScalarFromDouble(f(0), type), high = ScalarFromDouble(f(16), type);
  return low | high << 16;
}
double Half(uint32_t pair, int shift, ScalarType type) {
  return ScalarToDouble(static_cast<uint16_t>(pair >> shift), type);
}

// As tensor cores round their sums: towards zero (Fasi et al., Numerical behavior of NVIDIA tensor cores,
// 2021).
float Truncated(double sum) {
  const auto nearest = static_cast<float>(sum);
  if (std::isinf(nearest) || !(std::fabs(nearest) > std::fabs(sum))) return nearest;
  return std::nextafter(nearest, 0.f);
}

// What createpolicy makes here.
constexpr uint64_t kPolicy = 0x9e3779b97f4a7c15u;

// Addresses of a cluster's shared memory: the CTA's rank above the address in it.
constexpr int kRankShift = 24;
constexpr uint32_t kAddressInCta = (1u << kRankShift) - 1;

// The 128-byte swizzle: bits 4..6 of an address are turned by its bits 7..9.
uint32_t Swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

}  // namespace

void Machine::Execute(int statement, const SimtOperand* operands) {
  std::map<std::string, bool> predicates;
  for (const PtxInstruction& i : PtxStatement(statement)) ExecuteOne(i, operands, predicates);
}

void Machine::ExecuteOne(const PtxInstruction& i, const SimtOperand* o,
                         std::map<std::string, bool>& predicates) {
  const auto& v = i.values;
  if (!i.guard.empty() && !predicates.at(i.guard)) return;
  if (i.Is("mma.sync")) return Mma(i, o);
  if (i.Is("ldmatrix")) return LoadMatrix(i, o);
  if (i.Is("stmatrix")) return StoreMatrix(i, o);
  if (i.Is("createpolicy")) return Set(v[0], o, kPolicy);
  if (i.Is("cp.async.cg.shared.global")) {
    const bool hint = absl::StrContains(i.name, "cache_hint");
    if (hint && Bits(v.back(), o) != kPolicy) {
      Problem("cp.async with a policy that createpolicy did not make");
    }
    const size_t operands = v.size() - (hint ? 1 : 0);
    const SharedCopy copy = {Word(v[0], o), Pointer(v[1], o), operands > 3 ? Word(v[3], o) : 16};
    if (copy.to % 16 != 0) Problem("cp.async to a shared address that is not a multiple of 16");
    if (copy.bytes > 0) GlobalRead(copy.from, 16);
    const std::string wrong = cta().shared->BeginCopy(copy.to, 16, thread_->number, thread_->clock);
    if (!wrong.empty()) Problem(wrong);
    thread_->open.push_back(copy);
    return;
  }
  if (i.Is("cp.async.commit_group")) {
    thread_->groups.push_back(std::move(thread_->open));
    thread_->open.clear();
    return;
  }
  if (i.Is("cp.async.wait_group")) return WaitForCopies(Word(v[0], o));
  if (i.Is("fma.rn.bf16x2") || i.Is("fma.rn.f16x2")) {
    const ScalarType type = i.Is("fma.rn.bf16x2") ? ScalarType::kBf16 : ScalarType::kFp16;
    const uint32_t a = Word(v[1], o), b = Word(v[2], o), c = Word(v[3], o);
    return Set(v[0], o,
               OnPairs(type, [&](int s) { return Half(a, s, type) * Half(b, s, type) + Half(c, s, type); }));
  }
  if (i.Is("cvt.rn.bf16x2.f32") || i.Is("cvt.rn.f16x2.f32")) {
    const ScalarType type = i.Is("cvt.rn.bf16x2.f32") ? ScalarType::kBf16 : ScalarType::kFp16;
    const float high = FloatOf(Word(v[1], o)), low = FloatOf(Word(v[2], o));
    return Set(v[0], o, OnPairs(type, [&](int s) { return s == 0 ? low : high; }));
  }
  if (i.Is("cvt.f32.f16")) {
    const auto value =
        static_cast<float>(ScalarToDouble(static_cast<uint16_t>(Bits(v[1], o)), ScalarType::kFp16));
    return Set(v[0], o, BitsOf(value));
  }
  if (i.Is("max.NaN.f32")) {
    const float a = FloatOf(Word(v[1], o)), b = FloatOf(Word(v[2], o));
    return Set(v[0], o, BitsOf(std::isnan(a) || a > b ? a : b));
  }
  if (i.Is("cvt.rn.f16.f32")) {
    return Set(v[0], o, ScalarFromDouble(FloatOf(Word(v[1], o)), ScalarType::kFp16));
  }
  if (i.Is("xor.b32")) return Set(v[0], o, Word(v[1], o) ^ Word(v[2], o));
  if (i.Is("lop3.b32")) {
    const uint32_t a = Word(v[1], o), b = Word(v[2], o), c = Word(v[3], o), table = Word(v[4], o);
    uint32_t result = 0;
    for (int bit = 0; bit < 32; ++bit) {
      const int row = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1);
      result |= (table >> row & 1) << bit;
    }
    return Set(v[0], o, result);
  }
  if (i.Is("ex2.approx")) return Set(v[0], o, BitsOf(std::exp2(FloatOf(Word(v[1], o)))));
  if (i.Is("rcp.approx")) return Set(v[0], o, BitsOf(1.f / FloatOf(Word(v[1], o))));
  if (i.Is("ld.global.nc.u16")) {
    uint16_t value;
    std::memcpy(&value, GlobalRead(Pointer(v[1], o), 2), 2);
    return Set(v[0], o, value);
  }
  if (i.Is("ld.relaxed.gpu.v4.f32")) {
    const void* p = GlobalRead(Pointer(v[4], o), 16);
    for (int j = 0; j < 4; ++j) std::memcpy(Place(v[j], o), static_cast<const uint8_t*>(p) + j * 4, 4);
    return;
  }
  if (i.Is("atom.acq_rel.gpu.global.add.u32") || i.Is("atom.relaxed.gpu.global.add.u32")) {
    auto* p = static_cast<uint32_t*>(const_cast<void*>(Pointer(v[1], o)));
    if (!CheckGlobal(p, 4, true)) return;
    const uint32_t before = *p;
    *p = before + Word(v[2], o);
    return Set(v[0], o, before);
  }
  // What others are waited for with. Of CTAs that run side by side, the others go on meanwhile, mostly for
  // longer than the reader has patience for.
  if (i.Is("ld.acquire.gpu.global.u32")) {
    const auto* p = static_cast<const uint32_t*>(GlobalRead(Pointer(v[1], o), 4));
    Set(v[0], o, *p);
    const uint32_t seen = *p;
    bool asked = false;
    thread_->polls = true;
    const int odds = launch_.slices_side_by_side ? 256 : 4;
    Wait("another CTA's ticket", [this, p, seen, asked, odds]() mutable {
      const bool first = !asked;
      asked = true;
      return !first && (*p != seen || random_() % odds == 0);
    });
    thread_->polls = false;
    return;
  }
  if (i.Is("st.shared.v4.f32")) {
    if (Word(v[0], o) % 16 != 0) Problem("st.v4.f32 to an address that is not a multiple of 16");
    auto* p = static_cast<uint8_t*>(cta().shared->At(Word(v[0], o)));
    Access(p, 16, true);
    StoreFloat4(p, v, o);
    return;
  }
  if (i.Is("st.global.cg.v4.f32")) {
    auto* p = static_cast<uint8_t*>(const_cast<void*>(Pointer(v[0], o)));
    if (reinterpret_cast<uintptr_t>(p) % 16 != 0) {
      Problem("st.v4.f32 to an address that is not a multiple of 16");
    }
    if (!CheckGlobal(p, 16, true)) return;
    StoreFloat4(p, v, o);
    return;
  }
  // A prefetch reads nothing, but has no business beyond the buffers either.
  if (i.Is("prefetch.global.L2")) {
    std::string wrong;
    if (launch_.memory->Find(Pointer(v[0], o), 1, false, &wrong) == nullptr) Problem("prefetch " + wrong);
    return;
  }
  if (i.Is("discard.global.L2")) {
    auto* p = static_cast<uint8_t*>(const_cast<void*>(Pointer(v[0], o)));
    if (Word(v[1], o) != 128 || reinterpret_cast<uintptr_t>(p) % 128 != 0) {
      Problem("discard of what is no line of 128 bytes");
    }
    if (CheckGlobal(p, 128, true)) std::memset(p, 0xff, 128);
    return;
  }
  if (i.Is("bar.sync")) return Barrier(static_cast<int>(Word(v[0], o)), static_cast<int>(Word(v[1], o)));
  if (i.Is("griddepcontrol.wait")) {
    thread_->after_kernel_before = true;
    return;
  }
  if (i.Is("barrier.cluster.arrive")) return;  // with its wait, which follows
  if (i.Is("barrier.cluster.wait")) return ClusterBarrier();
  if (i.Is("mov.u32") && v[1].name == "%%cluster_nctaid.z") return Set(v[0], o, launch_.cluster_z);
  if (i.Is("mov.u32") && v[1].name == "%%nsmid") return Set(v[0], o, launch_.sm_count);
  if (i.Is("mapa.shared::cluster.u32")) {
    if (Word(v[2], o) >= ctas_.size()) Stop("mapa of a CTA that is not in the cluster");
    return Set(v[0], o, Word(v[1], o) | Word(v[2], o) << kRankShift);
  }
  if (i.Is("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32")) {
    TensorCopy copy;
    const uint32_t rank = Word(v[0], o) >> kRankShift;
    if (Word(v[5], o) >> kRankShift != rank) Stop("st.async to one CTA, and its mbarrier is in another");
    copy.cta = ctas_[rank].get();
    copy.thread = thread_->number;
    copy.issued = thread_->clock;
    copy.to = Word(v[0], o) & kAddressInCta;
    copy.barrier = Word(v[5], o) & kAddressInCta;
    copy.bytes.resize(16);
    copy.box_bytes = 16;
    StoreFloat4(copy.bytes.data(), v, o);
    if (copy.to % 16 != 0) Problem("st.async.v4.f32 to an address that is not a multiple of 16");
    if (copy.cta->running == 0) Stop("pushes to a CTA that has ended");
    return IssueCopy(std::move(copy));
  }
  if (i.Is("mbarrier.init")) {
    TransactionBarrier& barrier = cta().transactions[Word(v[0], o)];
    barrier = {};
    barrier.count = barrier.pending = Word(v[1], o);
    return;
  }
  if (i.Is("mbarrier.arrive.expect_tx")) return TransactionArrive(Word(v[1], o), Word(v[2], o));
  if (i.Is("mbarrier.arrive")) return TransactionArrive(Word(v[1], o), 0);
  if (i.Is("mbarrier.try_wait.parity")) return TransactionWait(Word(v[1], o), Word(v[2], o));
  if (i.Is("cp.async.bulk.tensor.2d")) {
    return IssueTensorCopy(Word(v[0], o), Pointer(v[1], o), static_cast<int32_t>(Word(v[2], o)),
                           static_cast<int32_t>(Word(v[3], o)), Word(v[4], o));
  }
  if (i.Is("setp.ne.b32") || i.Is("setp.lt.s32")) {
    const auto a = static_cast<int32_t>(Word(v[1], o)), b = static_cast<int32_t>(Word(v[2], o));
    predicates[v[0].name] = i.Is("setp.lt") ? a < b : a != b;
    return;
  }
  if (i.Is("mad.wide.u32")) {
    return Set(v[0], o, uint64_t{Word(v[1], o)} * Word(v[2], o) + Bits(v[3], o));
  }
  if (i.Is("mov.b32")) return Set(v[0], o, Word(v[1], o));
  if (i.Is("wgmma.mma_async")) return IssueWgmma(i, o, predicates.at(v[v.size() - 4].name));
  if (i.Is("wgmma.commit_group")) {
    return Together(
        &i, nullptr,
        [](Warp& warp) {
          warp.groups.push_back(std::move(warp.open));
          warp.open.clear();
        },
        "wgmma.commit_group");
  }
  if (i.Is("wgmma.wait_group")) {
    const uint64_t pending = Bits(v[0], o);
    return Together(
        &i, nullptr,
        [this, pending](Warp& warp) {
          WaitForWgmma(pending);
          // Of all lanes what they loaded before is in registers here, so that one of them can say that a
          // stage is free.
          JoinLanes(warp);
        },
        "wgmma.wait_group");
  }
  // These order or announce; what they order is checked, or done late, whatever they say.
  for (const char* known : {"griddepcontrol.launch_dependents", "wgmma.fence", "fence.mbarrier_init",
                            "fence.proxy.async", "setmaxnreg"}) {
    if (i.Is(known)) return;
  }
  Stop(absl::StrCat("executes ", i.name, ", which this machine does not know"));
}

void Machine::WaitForCopies(size_t pending) {
  Thread& self = *thread_;
  while (self.groups.size() > pending) {
    for (const SharedCopy& copy : self.groups.front()) {
      uint8_t bytes[16] = {};
      std::string wrong;
      if (copy.bytes > 0 && launch_.memory->Find(copy.from, 16, false, &wrong) != nullptr) {
        std::memcpy(bytes, copy.from, copy.bytes);
      }
      std::memcpy(cta().shared->At(copy.to), bytes, 16);
      cta().shared->EndCopy(copy.to, 16, self.number, self.clock);
    }
    self.groups.pop_front();
  }
}

// ldmatrix and stmatrix: lane 8 m + r names the 16 bytes of row r of matrix m.
void Machine::EveryMatrixRow(const PtxInstruction& i, const SimtOperand* operands, const PtxValue& address,
                             const char* what, const MatrixRowFunction& function) {
  const int matrices = absl::StrContains(i.name, ".x4") ? 4 : 2;
  Together(
      &i, operands,
      [&](Warp& warp) {
        Thread* const last = thread_;
        for (int m = 0; m < matrices; ++m) {
          for (int row = 0; row < 8; ++row) {
            const int giver = m * 8 + row;
            thread_ = warp.lanes[giver];
            const uint32_t at = Word(address, static_cast<const SimtOperand*>(warp.operands[giver]));
            if (at % 16 != 0) Problem(absl::StrCat(what, " of a row that is not aligned to 16 bytes"));
            function(warp, m, row, at);
          }
        }
        thread_ = last;
      },
      what);
}

void Machine::LoadMatrix(const PtxInstruction& i, const SimtOperand* operands) {
  EveryMatrixRow(i, operands, i.values.back(), "ldmatrix",
                 [&](const Warp& warp, int m, int row, uint32_t address) {
                   ReadShared(address, 16);
                   if (address + 16 > cta().shared->end()) return;
                   for (int part = 0; part < 4; ++part) {
                     const auto* taker = static_cast<const SimtOperand*>(warp.operands[row * 4 + part]);
                     std::memcpy(Place(i.values[m], taker), cta().shared->At(address + part * 4), 4);
                   }
                 });
}

void Machine::StoreMatrix(const PtxInstruction& i, const SimtOperand* operands) {
  QGEMM_CHECK(absl::StrContains(i.name, ".m8n8.") && absl::StrContains(i.name, ".trans."));
  EveryMatrixRow(
      i, operands, i.values[0], "stmatrix", [&](const Warp& warp, int m, int row, uint32_t address) {
        if (address + 16 > cta().shared->end()) return Problem("stmatrix beyond shared memory");
        auto* p = static_cast<uint8_t*>(cta().shared->At(address));
        // Written by the lanes that have the values, whoever says where.
        for (int column = 0; column < 8; ++column) {
          const int holder = column * 4 + row / 2;
          thread_ = warp.lanes[holder];
          Access(p + column * 2, 2, true);
          const uint32_t pair = Word(i.values[1 + m], static_cast<const SimtOperand*>(warp.operands[holder]));
          const auto value = static_cast<uint16_t>(pair >> row % 2 * 16);
          std::memcpy(p + column * 2, &value, 2);
        }
      });
}

// m16n8k16 with 16-bit operands and fp32 sums, m16n8k32 with signed bytes and int32 sums.
void Machine::Mma(const PtxInstruction& i, const SimtOperand* operands) {
  const bool bytes = absl::StrContains(i.name, "m16n8k32");
  QGEMM_CHECK(bytes ? absl::StrContains(i.name, ".s32.s8.s8.s32")
                    : absl::StrContains(i.name, "m16n8k16.row.col.f32.bf16.bf16.f32") ||
                          absl::StrContains(i.name, "m16n8k16.row.col.f32.f16.f16.f32"));
  QGEMM_CHECK(i.values.size() == 14);
  const ScalarType type = absl::StrContains(i.name, "bf16") ? ScalarType::kBf16 : ScalarType::kFp16;
  const int depth = bytes ? 32 : 16, per_word = bytes ? 4 : 2;
  Together(
      &i, operands,
      [&](Warp& warp) {
        double a[16][32], b[8][32];
        const auto element = [&](uint32_t word, int j) {
          return bytes ? static_cast<double>(static_cast<int8_t>(word >> 8 * j)) : Half(word, 16 * j, type);
        };
        for (int lane = 0; lane < 32; ++lane) {
          const auto* o = static_cast<const SimtOperand*>(warp.operands[lane]);
          const int g = lane / 4, t = lane % 4;
          for (int j = 0; j < per_word; ++j) {
            for (int r = 0; r < 4; ++r) {
              a[g + r % 2 * 8][t * per_word + j + r / 2 * depth / 2] = element(Word(i.values[4 + r], o), j);
            }
            for (int r = 0; r < 2; ++r) {
              b[g][t * per_word + j + r * depth / 2] = element(Word(i.values[8 + r], o), j);
            }
          }
        }
        for (int lane = 0; lane < 32; ++lane) {
          const auto* o = static_cast<const SimtOperand*>(warp.operands[lane]);
          uint32_t d[4];
          for (int r = 0; r < 4; ++r) {
            const int row = lane / 4 + r / 2 * 8, column = lane % 4 * 2 + r % 2;
            const uint32_t c = Word(i.values[10 + r], o);
            double sum = bytes ? static_cast<int32_t>(c) : FloatOf(c);
            for (int k = 0; k < depth; ++k) sum += a[row][k] * b[column][k];
            d[r] = bytes ? static_cast<uint32_t>(static_cast<int32_t>(sum)) : BitsOf(Truncated(sum));
          }
          for (int r = 0; r < 4; ++r) Set(i.values[r], o, d[r]);
        }
        ++report_.matrix_instructions;
      },
      "mma");
}

void Machine::IssueWgmma(const PtxInstruction& i, const SimtOperand* operands, bool accumulate) {
  // wgmma.mma_async.sync.aligned.m64nNk16.f32.T.T {d}, {a0..a3}, descriptor, p, scale a, scale b, transpose b
  int columns = 0;
  const size_t at = i.name.find("m64n") + 4;
  QGEMM_CHECK(absl::SimpleAtoi(i.name.substr(at, i.name.find("k16", at) - at), &columns));
  const size_t d = columns / 2;
  QGEMM_CHECK(i.values.size() == d + 9);
  struct Issue {
    const SimtOperand* operands;
    bool accumulate;
  } const issue = {operands, accumulate};
  Together(
      &i, &issue,
      [&](Warp& warp) {
        MatrixBatch batch;
        batch.columns = columns;
        batch.bf16 = absl::StrContains(i.name, "bf16");
        batch.accumulate = accumulate;
        for (int lane = 0; lane < 32; ++lane) {
          const auto& given = *static_cast<const Issue*>(warp.operands[lane]);
          const uint64_t b = Bits(i.values[d + 4], given.operands);
          if (lane > 0 && (b != batch.b || given.accumulate != accumulate)) {
            Stop("wgmma: lanes differ in B or scale-d");
          }
          batch.b = b;
          for (size_t j = 0; j < d; ++j) {
            batch.d[lane].push_back(static_cast<float*>(Place(i.values[j], given.operands)));
          }
          for (int j = 0; j < 4; ++j) batch.a[lane][j] = Word(i.values[d + j], given.operands);
        }
        warp.open.push_back(std::move(batch));
        ++report_.matrix_instructions;
      },
      "wgmma");
}

void Machine::WaitForWgmma(size_t pending) {
  Warp& warp = this->warp();
  if (!warp.open.empty()) Problem("waits for a wgmma that no group was committed for");
  while (warp.groups.size() > pending) {
    for (const MatrixBatch& batch : warp.groups.front()) RunWgmma(warp, batch);
    warp.groups.pop_front();
  }
}

// B: K-major in 128-byte swizzled rows; the descriptor's start, and the bytes between 8 rows (PTX ISA, matrix
// descriptor).
void Machine::RunWgmma(Warp& warp, const MatrixBatch& batch) {
  const ScalarType type = batch.bf16 ? ScalarType::kBf16 : ScalarType::kFp16;
  const uint32_t start = (batch.b & 0x3fff) << 4, stride = (batch.b >> 32 & 0x3fff) << 4;
  if (batch.b >> 62 != 1) Stop("wgmma: this machine knows the 128-byte swizzle alone");
  std::vector<double> b(batch.columns * 16);
  for (int n = 0; n < batch.columns; ++n) {
    for (int half = 0; half < 2; ++half) {
      const uint32_t address = Swizzled(start + n / 8 * stride + n % 8 * 128 + half * 16);
      ReadShared(address, 16);
      if (address + 16 > cta().shared->end()) continue;
      uint16_t bits[8];
      std::memcpy(bits, cta().shared->At(address), 16);
      for (int j = 0; j < 8; ++j) b[n * 16 + half * 8 + j] = ScalarToDouble(bits[j], type);
    }
  }
  double a[16][16];
  for (int lane = 0; lane < 32; ++lane) {
    for (int r = 0; r < 4; ++r) {
      for (int j = 0; j < 2; ++j) {
        a[lane / 4 + r % 2 * 8][lane % 4 * 2 + j + r / 2 * 8] = Half(batch.a[lane][r], 16 * j, type);
      }
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int j = 0; j < batch.columns / 2; ++j) {
      const int row = lane / 4 + j % 4 / 2 * 8, column = j / 4 * 8 + lane % 4 * 2 + j % 2;
      float& d = *batch.d[lane][j];
      double sum = batch.accumulate ? d : 0;
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[column * 16 + k];
      d = Truncated(sum);
    }
  }
}

void Machine::CompletePhase(TransactionBarrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  barrier.pending = barrier.count;
  barrier.phase ^= 1;
  barrier.completed = barrier.clock;
}

void Machine::TransactionArrive(uint32_t address, int64_t expect) {
  const auto found = cta().transactions.find(address);
  if (found == cta().transactions.end()) Stop("arrives at an mbarrier that was not initialised");
  TransactionBarrier& barrier = found->second;
  if (barrier.pending == 0) Stop("arrives at an mbarrier more often than its count");
  barrier.bytes += expect;
  --barrier.pending;
  barrier.clock.Join(thread_->clock);
  barrier.after_kernel_before |= thread_->after_kernel_before;
  thread_->clock.Tick(thread_->number);
  CompletePhase(barrier);
}

void Machine::TransactionWait(uint32_t address, uint32_t parity) {
  const auto found = cta().transactions.find(address);
  if (found == cta().transactions.end()) Stop("waits for an mbarrier that was not initialised");
  TransactionBarrier& barrier = found->second;
  Wait(absl::StrCat("mbarrier ", address, " parity ", parity),
       [&barrier, parity] { return barrier.phase != parity; });
  thread_->clock.Join(barrier.completed);
  thread_->after_kernel_before |= barrier.after_kernel_before;
}

void Machine::IssueTensorCopy(uint32_t to, const void* map, int32_t column, int32_t row, uint32_t barrier) {
  TensorMapShape shape;
  std::memcpy(&shape, map, sizeof(shape));  // EncodeForMachine (emulated_kernel.cc)
  const int element = TensorElementBytes(shape.element);
  const int row_bytes = shape.box_columns * element;
  TensorCopy copy;
  copy.cta = &cta();
  copy.thread = thread_->number;
  copy.issued = thread_->clock;
  copy.to = to;
  copy.barrier = barrier;
  copy.bytes.resize(static_cast<size_t>(row_bytes) * shape.box_rows);
  copy.box_bytes = static_cast<uint32_t>(copy.bytes.size());
  if (to % (shape.swizzle_bytes != 0 ? 1024 : 128) != 0) {
    Problem("a tensor copy to a shared address that is not aligned for it");
  }
  if (row_bytes % 16 != 0 || shape.row_pitch_bytes % 16 != 0 ||
      (shape.swizzle_bytes == 128 && row_bytes > 128) || shape.box_rows > 256 || shape.box_columns > 256) {
    Problem("a tensor map whose box or pitch is not allowed");
  }
  for (int r = 0; r < shape.box_rows; ++r) {
    const int64_t from_row = int64_t{row} + r;
    if (from_row < 0 || from_row >= shape.rows) continue;
    const int64_t end = std::min<int64_t>(shape.columns, int64_t{column} + shape.box_columns);
    if (column < 0 || column >= end) continue;
    const auto* from = reinterpret_cast<const uint8_t*>(shape.address) + from_row * shape.row_pitch_bytes +
                       int64_t{column} * element;
    const auto bytes = static_cast<size_t>((end - column) * element);
    if (CheckGlobal(from, bytes, false)) {
      std::memcpy(copy.bytes.data() + static_cast<size_t>(r) * row_bytes, from, bytes);
    }
  }
  if (shape.swizzle_bytes == 128) {
    std::vector<uint8_t> swizzled(copy.bytes.size());
    for (uint32_t i = 0; i < copy.box_bytes; i += 16) std::memcpy(&swizzled[Swizzled(i)], &copy.bytes[i], 16);
    copy.bytes = std::move(swizzled);
  }
  IssueCopy(std::move(copy));
}

void Machine::IssueCopy(TensorCopy copy) {
  const std::string wrong =
      copy.cta->shared->BeginCopy(copy.to, copy.box_bytes, thread_->number, thread_->clock);
  if (!wrong.empty()) Stop(wrong);
  if (copy.cta->HasBarrierIn(copy.to, copy.box_bytes)) Stop("copies over an mbarrier");
  const auto found = copy.cta->transactions.find(copy.barrier);
  if (found == copy.cta->transactions.end()) {
    Stop("a copy that completes at an mbarrier that was not initialised");
  }
  found->second.clock.Join(thread_->clock);
  copies_.push_back(std::move(copy));
}

// One of those under way, any of them, arrives.
bool Machine::DeliverCopy() {
  if (copies_.empty()) return false;
  std::swap(copies_[random_() % copies_.size()], copies_.back());
  const TensorCopy copy = std::move(copies_.back());
  copies_.pop_back();
  std::memcpy(copy.cta->shared->At(copy.to), copy.bytes.data(), copy.box_bytes);
  copy.cta->shared->EndCopy(copy.to, copy.box_bytes, copy.thread, copy.issued);
  TransactionBarrier& barrier = copy.cta->transactions[copy.barrier];
  barrier.bytes -= copy.box_bytes;
  CompletePhase(barrier);
  return true;
}

}  // namespace qgemm
