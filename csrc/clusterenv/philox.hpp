// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw (2011): no state, so that what
// is drawn depends on the counter and the key alone, never on what was drawn before or beside it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace clusterenv {

using PhiloxBlock = std::array<std::uint32_t, 4>;

/// Four random words, a pure function of `counter` and `key`.
constexpr PhiloxBlock philox(PhiloxBlock counter, std::uint64_t key) {
    auto key_low = static_cast<std::uint32_t>(key);
    auto key_high = static_cast<std::uint32_t>(key >> 32U);
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t first = std::uint64_t{0xD2511F53U} * counter[0];
        const std::uint64_t second = std::uint64_t{0xCD9E8D57U} * counter[2];
        counter = {static_cast<std::uint32_t>(second >> 32U) ^ counter[1] ^ key_low,
                   static_cast<std::uint32_t>(second),
                   static_cast<std::uint32_t>(first >> 32U) ^ counter[3] ^ key_high,
                   static_cast<std::uint32_t>(first)};
        key_low += 0x9E3779B9U;
        key_high += 0xBB67AE85U;
    }
    return counter;
}

/// What random words are drawn for: a part of the counter, so that no two uses ever share a word.
enum class Purpose : std::uint32_t { action = 0, sample_rows = 1 };

/// Blocks that one counter may use; the four bits above them hold the purpose.
constexpr std::uint32_t kMaxBlocks = 1U << 28U;

/// The counter of block `block` (below kMaxBlocks) for one purpose, a 32-bit id and a 64-bit time.
constexpr PhiloxBlock counter_of(Purpose purpose, std::uint32_t id, std::uint64_t time, std::uint32_t block) {
    return {static_cast<std::uint32_t>(time), static_cast<std::uint32_t>(time >> 32U), id,
            static_cast<std::uint32_t>(purpose) << 28U | block};
}

/// Half `half` (0 or 1) of a block as a 64-bit word.
constexpr std::uint64_t word(const PhiloxBlock& block, std::size_t half) {
    return std::uint64_t{block[2 * half]} << 32U | block[2 * half + 1];
}

/// A number from 0 to below 1, in steps of 2^-53.
constexpr double unit(std::uint64_t random) {
    return static_cast<double>(random >> 11U) * 0x1p-53;
}

}  // namespace clusterenv
