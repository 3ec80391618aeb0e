// The rows of a fragment on which a worker and the head compare policies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace clusterenv {

/// min(count, number of valid rows) different rows that are valid (not 0), ascending; every such set is
/// equally likely.
///
/// A pure function of its arguments: whoever has the same `valid`, `seed`, `rank` and `fragment` gets the
/// same rows.
std::vector<std::int64_t> sample_rows(std::span<const std::uint8_t> valid, std::size_t count,
                                      std::uint64_t seed, std::uint32_t rank, std::uint64_t fragment);

}  // namespace clusterenv
