// The rows of a fragment on which a worker and the head compare policies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace clusterenv {

/// min(count, number of valid rows) different rows whose `valid` is not 0, ascending; any set is as likely.
///
/// A pure function of its arguments, so that two machines that know them agree without a message.
std::vector<std::int64_t> sample_rows(std::span<const std::uint8_t> valid, std::size_t count,
                                      std::uint64_t seed, std::uint32_t rank, std::uint64_t fragment);

}  // namespace clusterenv
