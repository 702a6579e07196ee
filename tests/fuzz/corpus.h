#ifndef QGEMM_TESTS_FUZZ_CORPUS_H_
#define QGEMM_TESTS_FUZZ_CORPUS_H_

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace qgemm {

// The inputs in tests/fuzz/corpus/`subject`, by name.
inline std::vector<std::vector<uint8_t>> Corpus(const std::string& subject) {
  std::vector<std::filesystem::path> files;
  for (const auto& file : std::filesystem::directory_iterator(QGEMM_FUZZ_CORPUS "/" + subject)) {
    files.push_back(file.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::vector<uint8_t>> inputs;
  for (const std::filesystem::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return inputs;
}

// `base` with some bytes changed, cut off or repeated; the same for the same generator.
inline std::vector<uint8_t> Mutated(std::vector<uint8_t> base, std::mt19937_64& random) {
  for (uint64_t changes = random() % 8; changes > 0 && !base.empty(); --changes) {
    const size_t at = random() % base.size();
    switch (random() % 4) {
      case 0:
        base.resize(at);
        break;
      case 1:
        base.insert(base.begin() + static_cast<std::ptrdiff_t>(at), static_cast<uint8_t>(random()));
        break;
      default:
        base[at] = static_cast<uint8_t>(random());
    }
  }
  return base;
}

}  // namespace qgemm

#endif  // QGEMM_TESTS_FUZZ_CORPUS_H_
