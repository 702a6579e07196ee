#ifndef QGEMM_KERNELS_IMPORT_BIT_UNPACK_H_
#define QGEMM_KERNELS_IMPORT_BIT_UNPACK_H_

#include <cstdint>

namespace qgemm {

// The 8 nibbles of a word as 8 bytes, lowest nibble in the lowest byte.
inline uint64_t NibblesToBytes(uint32_t word) {
  uint64_t x = word;
  x = (x | x << 16) & 0x0000ffff0000ffffull;
  x = (x | x << 8) & 0x00ff00ff00ff00ffull;
  x = (x | x << 4) & 0x0f0f0f0f0f0f0f0full;
  return x;
}

}  // namespace qgemm

#endif  // QGEMM_KERNELS_IMPORT_BIT_UNPACK_H_
