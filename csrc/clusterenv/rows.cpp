#include "clusterenv/rows.hpp"

#include <algorithm>

#include "clusterenv/philox.hpp"
#include "clusterenv/views.hpp"

namespace clusterenv {
namespace {

/// Draw number `index` of one fragment: a whole number from 0 to `last`. The bias is below last / 2^53.
std::size_t draw(std::size_t index, std::size_t last, std::uint64_t seed, std::uint32_t rank,
                 std::uint64_t fragment) {
    const auto block = static_cast<std::uint32_t>(index / 2);
    const std::uint64_t random =
        word(philox(counter_of(Purpose::sample_rows, rank, fragment, block), seed), index % 2);
    return static_cast<std::size_t>(unit(random) * static_cast<double>(last + 1));
}

}  // namespace

std::vector<std::int64_t> sample_rows(std::span<const std::uint8_t> valid, std::size_t count,
                                      std::uint64_t seed, std::uint32_t rank, std::uint64_t fragment) {
    std::vector<std::int64_t> candidates;
    candidates.reserve(valid.size());
    for (std::size_t row = 0; row < valid.size(); ++row) {
        if (valid[row] != 0) {
            candidates.push_back(static_cast<std::int64_t>(row));
        }
    }
    const std::size_t taken = std::min(count, candidates.size());
    require(taken / 2 < kMaxBlocks, "count asks for more rows than the generator has numbers for");

    // Floyd's algorithm: one draw for each row taken. `last` is above all that were drawn before it.
    std::vector<bool> chosen(candidates.size());
    for (std::size_t index = 0; index < taken; ++index) {
        const std::size_t last = candidates.size() - taken + index;
        const std::size_t pick = draw(index, last, seed, rank, fragment);
        chosen[chosen[pick] ? last : pick] = true;
    }
    std::vector<std::int64_t> rows;
    rows.reserve(taken);
    for (std::size_t i = 0; i < candidates.size(); ++i) {
        if (chosen[i]) {
            rows.push_back(candidates[i]);
        }
    }
    return rows;
}

}  // namespace clusterenv
