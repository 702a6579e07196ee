#include "kernels/access_report.h"

#include <algorithm>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/ptx.h"

namespace qgemm {
namespace {

constexpr int kMaxParameters = 64;  // bits of a set
constexpr int kLineBytes = 128;     // of a cache: what discard takes
// Over a kernel's instructions: as many as values pass backwards through loops, which in compilers' code are
// a few.
constexpr int kMostPasses = 200;
using ParameterSet = uint64_t;

using Parts = std::vector<absl::string_view>;

// What a register may hold, over all instructions that write it.
struct Flow {
  ParameterSet pointer = 0;  // addresses computed from these parameters' values
  ParameterSet mangled = 0;  // numbers in which these values were multiplied, shifted or cut
  ParameterSet address = 0;  // addresses of these parameters themselves: tensor maps, structs
  bool symbol = false;       // addresses of variables of the module

  Flow& operator|=(const Flow& other) {
    pointer |= other.pointer;
    mangled |= other.mangled;
    address |= other.address;
    symbol |= other.symbol;
    return *this;
  }
  Flow Mangled() const { return {0, pointer | mangled | address, 0, false}; }
  friend bool operator==(const Flow&, const Flow&) = default;
};

enum class Space { kGlobal, kGeneric, kParam, kOther };

Space SpaceOf(const Parts& parts) {
  for (const absl::string_view part : parts) {
    if (part == "global") return Space::kGlobal;
    if (part == "param" || absl::StartsWith(part, "param::")) return Space::kParam;
    if (part == "local" || part == "const" || part == "shared" || absl::StartsWith(part, "shared::")) {
      return Space::kOther;
    }
  }
  return Space::kGeneric;
}

bool Has(const Parts& parts, absl::string_view part) {
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

template <size_t kCount>
bool IsOneOf(absl::string_view word, const absl::string_view (&words)[kCount]) {
  return std::find(words, words + kCount, word) != words + kCount;
}

// Bytes of one access: ".v4.f32" are 16.
int AccessBytes(const Parts& parts) {
  int count = 1, bytes = 0;
  for (const absl::string_view part : parts) {
    int number = 0;
    // Larger numbers are no types.
    if (part.size() < 2 || part.size() > 4 || !absl::SimpleAtoi(part.substr(1), &number)) continue;
    if (part[0] == 'v') count = number;
    if (absl::StrContains("busf", part.substr(0, 1)) && number % 8 == 0) bytes = number / 8;
  }
  return count * bytes;
}

// A result is an address where an operand is one.
constexpr absl::string_view kKeepsPointers[] = {"mov", "add", "addc", "sub", "subc", "and",  "or",
                                                "xor", "not", "min",  "max", "selp", "slct", "cvta"};
// A result is a number that no longer serves as an address.
constexpr absl::string_view kMangles[] = {"mul",  "mul24", "shl", "shr",  "shf",   "bfe",  "bfi",  "neg",
                                          "abs",  "div",   "rem", "popc", "clz",   "lop3", "prmt", "sad",
                                          "brev", "bfind", "fns", "cvt",  "szext", "bmsk"};
// Results that carry no operand's value.
constexpr absl::string_view kCompares[] = {"set", "setp", "isspacep", "testp", "bra", "brx"};
// Memory operands of these are in shared or tensor memory, or nothing is transferred.
constexpr absl::string_view kNotGlobal[] = {"mbarrier", "ldmatrix",      "stmatrix",    "tcgen05",
                                            "mapa",     "applypriority", "createpolicy"};

class Walk {
 public:
  Walk(const PtxEntry& entry, ParameterSet candidates, bool told)
      : entry_(entry), candidates_(candidates), pointers_(told ? candidates : 0) {
    for (size_t i = 0; i < entry.parameters.size(); ++i) {
      parameters_[entry.parameters[i].name] = ParameterSet{1} << i;
    }
    parts_.reserve(entry.instructions.size());
    for (const PtxInstruction& instruction : entry.instructions) {
      parts_.push_back(PtxOpcodeParts(instruction.opcode));
    }
  }

  // The failure, or "".
  std::string Run() {
    int passes = 0;
    do {
      if (passes++ == kMostPasses) return "its registers depend on each other in too long a chain, backwards";
      changed_ = false;
      for (size_t i = 0; i < parts_.size(); ++i) Visit(entry_.instructions[i], parts_[i]);
    } while (changed_);
    deciding_ = true;
    for (size_t i = 0; i < parts_.size() && failure_.empty(); ++i) {
      Visit(entry_.instructions[i], parts_[i]);
    }
    // A parameter that some access goes through is a pointer, and then no part of it in an address is a mere
    // offset.
    for (const Access& access : accesses_) pointers_ |= access.pointer;
    return failure_;
  }

  ParameterAccess AccessOf(int index) const {
    ParameterAccess out;
    out.index = index;
    const ParameterSet bit = ParameterSet{1} << index;
    for (const Access& access : accesses_) {
      if (((access.pointer | (access.mangled & pointers_)) & bit) == 0) continue;
      out.read |= access.read;
      out.written |= access.written;
      out.alignment = std::max(out.alignment, access.bytes);
    }
    return out;
  }

 private:
  struct Access {
    ParameterSet pointer = 0;
    ParameterSet mangled = 0;
    bool read = false;
    bool written = false;
    int bytes = 0;
  };

  void Fail(const PtxInstruction& instruction, absl::string_view why) {
    if (!deciding_ || !failure_.empty()) return;
    failure_ = absl::StrCat(instruction.opcode, ": ", why);
  }

  Flow NameFlow(absl::string_view name) const {
    if (const auto found = parameters_.find(name); found != parameters_.end()) {
      return {0, 0, found->second & candidates_, false};
    }
    if (const auto found = registers_.find(name); found != registers_.end()) return found->second;
    Flow flow;
    flow.symbol = name[0] != '%';
    return flow;
  }

  Flow OperandFlow(absl::string_view operand) const {
    Flow flow;
    for (const absl::string_view name : PtxNames(operand)) flow |= NameFlow(name);
    return flow;
  }

  // "[%rd1+16]", or the map of "[%rd1, {%r1, %r2}]".
  Flow AddressFlow(absl::string_view operand) const {
    return OperandFlow(operand.substr(0, operand.find(',')));
  }

  void Assign(absl::string_view operand, const Flow& flow) {
    for (const absl::string_view name : PtxNames(operand)) {
      if (name == "_") continue;
      Flow& target = registers_[name];
      Flow merged = target;
      merged |= flow;
      if (merged == target) continue;
      target = merged;
      changed_ = true;
    }
  }

  void Touch(const PtxInstruction& instruction, const Flow& address, bool read, bool written, int bytes) {
    if (!deciding_) return;
    if (address.address != 0 && written) return Fail(instruction, "writes to a parameter itself");
    if (address.pointer == 0 && address.address == 0 && !address.symbol) {
      return Fail(instruction, "accesses memory at an address that comes from no parameter");
    }
    if (address.pointer != 0) accesses_.push_back({address.pointer, address.mangled, read, written, bytes});
  }

  // The tensor behind a map that is a parameter.
  void TouchTensor(const PtxInstruction& instruction, const Flow& map, bool read, bool written) {
    if (!deciding_) return;
    if (map.address == 0 || map.pointer != 0 || map.symbol) {
      return Fail(instruction, "uses a tensor map that is no parameter");
    }
    accesses_.push_back({map.address, 0, read, written, 16});
  }

  // A value that goes where the walk does not follow it.
  void Escape(const PtxInstruction& instruction, const Flow& value) {
    if (value.pointer != 0 || value.address != 0 || (value.mangled & pointers_) != 0) {
      Fail(instruction, "keeps a pointer where it is not followed");
    }
  }

  void Visit(const PtxInstruction& instruction, const Parts& parts) {
    const absl::string_view base = parts[0];
    const auto& operands = instruction.operands;
    const auto operand = [&](size_t i) { return i < operands.size() ? operands[i] : absl::string_view(); };
    if (base == "ld" || base == "ldu") return Load(instruction, parts, operand(0), operand(1));
    // st.async: to another CTA's shared memory; its mbarrier is there, too.
    if (base == "st" && parts.size() > 1 && parts[1] != "bulk") {
      const Space space = SpaceOf(parts);
      if (space == Space::kGlobal || space == Space::kGeneric) {
        Touch(instruction, AddressFlow(operand(0)), false, true, AccessBytes(parts));
      }
      return Escape(instruction, OperandFlow(operand(1)));
    }
    if (base == "atom" || (base == "red" && !Has(parts, "async"))) {
      const size_t address = base == "atom" ? 1 : 0;
      const Space space = SpaceOf(parts);
      if (space == Space::kGlobal || space == Space::kGeneric) {
        Touch(instruction, AddressFlow(operand(address)), true, true, AccessBytes(parts));
      }
      for (size_t i = address + 1; i < operands.size(); ++i) Escape(instruction, OperandFlow(operands[i]));
      return;
    }
    if (base == "cp") return Copy(instruction, parts);
    if (base == "prefetch" || base == "prefetchu") return;  // nothing depends on what is there
    if (base == "discard") {
      if (SpaceOf(parts) == Space::kOther || SpaceOf(parts) == Space::kParam) return;
      return Touch(instruction, AddressFlow(operand(0)), false, true, kLineBytes);
    }
    if (IsOneOf(base, kCompares) || IsOneOf(base, kNotGlobal)) return;
    if (base == "mad" || base == "madc" || base == "fma" || base == "mad24") {
      Flow flow = OperandFlow(operand(1));
      flow |= OperandFlow(operand(2));
      flow = flow.Mangled();
      flow |= OperandFlow(operand(3));
      return Assign(operand(0), flow);
    }
    Flow sources;
    for (size_t i = 1; i < operands.size(); ++i) sources |= OperandFlow(operands[i]);
    // A conversion between types of 64 bits changes nothing.
    const bool keeps =
        IsOneOf(base, kKeepsPointers) || (base == "cvt" && parts.size() == 3 &&
                                          absl::EndsWith(parts[1], "64") && absl::EndsWith(parts[2], "64"));
    if (keeps) return Assign(operand(0), sources);
    if (IsOneOf(base, kMangles)) return Assign(operand(0), sources.Mangled());
    Other(instruction, sources);
  }

  // Arithmetic on floating-point numbers, tensor cores, barriers, control flow: nothing a pointer takes part
  // in.
  void Other(const PtxInstruction& instruction, const Flow& sources) {
    if (instruction.opcode == "call" || absl::StartsWith(instruction.opcode, "call.")) {
      return Fail(instruction, "calls a function");
    }
    for (const absl::string_view text : instruction.operands) {
      if (absl::StrContains(text, "[")) return Fail(instruction, "accesses memory in a way not known here");
    }
    if (instruction.operands.empty()) return;
    Flow all = sources;
    all |= OperandFlow(instruction.operands[0]);
    if (all.pointer != 0 || all.address != 0) {
      return Fail(instruction, "takes a pointer in a way not known here");
    }
    Assign(instruction.operands[0], sources.Mangled());
  }

  void Load(const PtxInstruction& instruction, const Parts& parts, absl::string_view target,
            absl::string_view source) {
    const Flow address = AddressFlow(source);
    const Space space = SpaceOf(parts);
    if (space == Space::kOther) return;
    if (space == Space::kParam || address.address != 0) {
      const std::vector<absl::string_view> names = PtxNames(source);
      if (names.size() != 1 || address.symbol || (names[0][0] == '%' && address.address == 0)) {
        return Fail(instruction, "loads from a parameter that is not known to be the kernel's");
      }
      Assign(target, {address.address, 0, 0, false});
      if (address.pointer == 0) return;
    }
    if (space != Space::kParam) Touch(instruction, address, true, false, AccessBytes(parts));
  }

  void Copy(const PtxInstruction& instruction, const Parts& parts) {
    const auto& operands = instruction.operands;
    if (Has(parts, "commit_group") || Has(parts, "wait_group") || Has(parts, "wait_all") ||
        Has(parts, "mbarrier") || operands.empty()) {
      return;
    }
    const bool tensor = Has(parts, "tensor");
    const auto touch = [&](size_t i, bool read, bool written, int bytes) {
      if (i >= operands.size()) return Fail(instruction, "has too few operands");
      const Flow address = AddressFlow(operands[i]);
      if (tensor) return TouchTensor(instruction, address, read, written);
      Touch(instruction, address, read, written, bytes);
    };
    if (!Has(parts, "bulk")) {  // cp.async.cg.shared.global [to], [from], bytes
      int bytes = 16;
      if (operands.size() < 3 || !absl::SimpleAtoi(operands[2], &bytes)) bytes = 16;
      return touch(1, true, false, bytes);
    }
    if (Has(parts, "prefetch")) return;
    // The space copied to stands before the one copied from.
    const auto global = std::find(parts.begin(), parts.end(), "global");
    if (global == parts.end()) return;  // between shared memories
    const auto shared = std::find_if(parts.begin(), parts.end(),
                                     [](absl::string_view part) { return absl::StartsWith(part, "shared"); });
    if (global < shared) {
      touch(0, /*read=*/Has(parts, "reduce"), /*written=*/true, 16);
    } else {
      touch(1, true, false, 16);
    }
  }

  const PtxEntry& entry_;
  const ParameterSet candidates_;
  ParameterSet pointers_;  // known to be pointers
  absl::flat_hash_map<absl::string_view, ParameterSet> parameters_;
  std::vector<Parts> parts_;
  absl::flat_hash_map<absl::string_view, Flow> registers_;
  bool changed_ = false;
  bool deciding_ = false;  // registers are known; accesses are collected
  std::vector<Access> accesses_;
  std::string failure_;
};

AccessReport Failed(const std::vector<int>& parameters, std::string why) {
  AccessReport report;
  for (const int index : parameters) report.parameters.push_back({index, true, true, 16});
  report.failure = std::move(why);
  return report;
}

}  // namespace

const ParameterAccess* AccessReport::Find(int index) const {
  for (const ParameterAccess& access : parameters) {
    if (access.index == index) return &access;
  }
  return nullptr;
}

AccessReport AnalyzeAccess(absl::string_view ptx, absl::string_view entry,
                           std::optional<absl::Span<const int>> pointers) {
  std::vector<int> candidates;
  if (pointers.has_value()) {
    candidates.assign(pointers->begin(), pointers->end());
    std::sort(candidates.begin(), candidates.end());
  }
  const absl::StatusOr<PtxEntry> parsed = ParsePtxEntry(ptx, entry);
  if (!parsed.ok()) return Failed(candidates, std::string(parsed.status().message()));
  const int count = static_cast<int>(parsed->parameters.size());
  if (!pointers.has_value()) {
    for (int i = 0; i < count; ++i) {
      if (parsed->parameters[i].bytes >= 8) candidates.push_back(i);
    }
  }
  if (count > kMaxParameters) {
    return Failed(candidates, absl::StrCat(count, " parameters are more than the ", kMaxParameters,
                                           " that can be followed"));
  }
  ParameterSet set = 0;
  for (const int index : candidates) {
    if (index < 0 || index >= count) {
      return Failed(candidates, absl::StrCat("parameter ", index, " is not among the kernel's ", count));
    }
    set |= ParameterSet{1} << index;
  }
  Walk walk(*parsed, set, pointers.has_value());
  if (std::string failure = walk.Run(); !failure.empty()) return Failed(candidates, std::move(failure));
  AccessReport report;
  for (const int index : candidates) report.parameters.push_back(walk.AccessOf(index));
  return report;
}

}  // namespace qgemm
