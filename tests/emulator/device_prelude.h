// What a device source finds when it is compiled for the CPU (device_translator.h): CUDA's words, and the
// calls into the machine that runs it (machine.h), which are resolved in the program that loads it. No
// library headers, as with NVRTC.
#define __device__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __grid_constant__
#define __launch_bounds__(...)

extern "C" {
struct SimtDim3 {
  unsigned x, y, z;
};
// An operand of a PTX instruction: `bits` of an input, zero-extended; `place` of an output, which "+"
// operands are read from.
struct SimtOperand {
  unsigned long long bits;
  void* place;
  char constraint;
};
const SimtDim3* SimtThreadIndex();
const SimtDim3* SimtBlockIndex();
const SimtDim3* SimtGridSize();
const SimtDim3* SimtBlockSize();
void* SimtDynamicShared(unsigned alignment);
void* SimtStaticShared(unsigned index, unsigned bytes);
unsigned long SimtSharedAddress(const void* p);
int SimtParse(const char* text);
void SimtExecute(int instruction, const SimtOperand* operands);
void SimtSyncThreads();
void SimtSyncWarp();
unsigned SimtShuffleXor(unsigned value, int lanes);
}

#define threadIdx (*SimtThreadIndex())
#define blockIdx (*SimtBlockIndex())
#define gridDim (*SimtGridSize())
#define blockDim (*SimtBlockSize())

inline void __syncthreads() { SimtSyncThreads(); }
inline void __syncwarp() { SimtSyncWarp(); }
inline void __threadfence() {}
inline unsigned long __cvta_generic_to_shared(const void* p) { return SimtSharedAddress(p); }

extern "C" {
double exp(double);
double tanh(double);
float fmaf(float, float, float);
float fabsf(float);
float rintf(float);
}
template <typename T>
inline T min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
inline T max(T a, T b) {
  return a < b ? b : a;
}

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

// CTAs that are not one cluster run one after the other, so that nothing comes between.
template <typename T>
inline T atomicAdd(T* p, T value) {
  const T before = *p;
  *p = before + value;
  return before;
}

template <typename T>
inline T atomicMax(T* p, T value) {
  const T before = *p;
  *p = max(before, value);
  return before;
}

inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

inline float __uint_as_float(unsigned bits) {
  float f;
  __builtin_memcpy(&f, &bits, 4);
  return f;
}
inline unsigned __float_as_uint(float f) {
  unsigned bits;
  __builtin_memcpy(&bits, &f, 4);
  return bits;
}
// CUDA math API, __byte_perm: four selectors of 4 bits, of which bit 3 replicates the sign.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long long bytes = x | (unsigned long long)y << 32;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned s = selector >> 4 * i & 15;
    unsigned byte = bytes >> 8 * (s & 7) & 255;
    if (s & 8) byte = byte & 128 ? 255 : 0;
    out |= byte << 8 * i;
  }
  return out;
}
// To nearest even; 0 of a NaN.
inline int __float2int_rn(float f) { return f != f ? 0 : static_cast<int>(__builtin_rintf(f)); }
inline int __shfl_sync(unsigned, int value, int from) {
  return static_cast<int>(SimtShuffleXor(value, (threadIdx.x & 31) ^ from));
}
inline int __shfl_xor_sync(unsigned, int value, int lanes) {
  return static_cast<int>(SimtShuffleXor(value, lanes));
}
inline unsigned __shfl_xor_sync(unsigned, unsigned value, int lanes) { return SimtShuffleXor(value, lanes); }
inline float __shfl_xor_sync(unsigned, float value, int lanes) {
  return __uint_as_float(SimtShuffleXor(__float_as_uint(value), lanes));
}

inline SimtOperand simt_in(char constraint, float value) {
  return {__float_as_uint(value), nullptr, constraint};
}
template <typename T>
inline SimtOperand simt_in(char constraint, T* value) {
  return {reinterpret_cast<unsigned long long>(value), nullptr, constraint};
}
template <typename T>
inline SimtOperand simt_in(char constraint, T value) {
  unsigned long long bits = static_cast<unsigned long long>(value);
  if (sizeof(T) < 8) bits &= (1ull << 8 * (sizeof(T) % 8)) - 1;
  return {bits, nullptr, constraint};
}
template <typename T>
inline SimtOperand simt_out(char constraint, T& place) {
  return {0, &place, constraint};
}

// CUDA's parameter space: each parameter at its natural alignment.
template <typename... P>
struct simt_caller {
  template <typename T>
  static const T& next(const unsigned char* block, unsigned long& offset) {
    offset = (offset + alignof(T) - 1) / alignof(T) * alignof(T);
    const T& value = *reinterpret_cast<const T*>(block + offset);
    offset += sizeof(T);
    return value;
  }
  static void call(void (*entry)(P...), const unsigned char* block) {
    unsigned long offset = 0;
    struct bound {
      void (*entry)(P...);
      // Braces order the evaluation of what stands in them.
      bound(void (*f)(P...), P... values) { f(values...); }
    };
    bound{entry, next<P>(block, offset)...};
  }
};
template <typename... P>
inline void simt_call(void (*entry)(P...), const unsigned char* block) {
  simt_caller<P...>::call(entry, block);
}
