#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "clusterenv/rows.hpp"

using clusterenv::sample_rows;

TEST_CASE("sampled rows are valid, different and ascending, and as many as there can be") {
    std::vector<std::uint8_t> valid(100, 1);
    for (std::size_t row = 0; row < valid.size(); row += 3) {
        valid[row] = 0;
    }
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{66}, std::size_t{1000}}) {
        const auto rows = sample_rows(valid, count, 1, 2, 3);
        CHECK(rows.size() == std::min(count, std::size_t{66}));
        CHECK(std::ranges::adjacent_find(rows, std::greater_equal{}) == rows.end());
        CHECK(std::ranges::all_of(
            rows, [&](std::int64_t row) { return valid[static_cast<std::size_t>(row)] == 1; }));
    }
    CHECK(sample_rows({}, 5, 1, 2, 3).empty());
}

TEST_CASE("sampled rows depend on seed, rank and fragment alone") {
    const std::vector<std::uint8_t> valid(1000, 1);
    const auto rows = sample_rows(valid, 10, 1, 2, 3);
    CHECK(sample_rows(valid, 10, 1, 2, 3) == rows);
    CHECK(sample_rows(valid, 10, 2, 2, 3) != rows);
    CHECK(sample_rows(valid, 10, 1, 3, 3) != rows);
    CHECK(sample_rows(valid, 10, 1, 2, 4) != rows);
    CHECK(sample_rows(valid, 10, 1, 2, 3 + (1ULL << 32U)) != rows);
}

TEST_CASE("each row is sampled equally often") {
    const std::vector<std::uint8_t> valid(8, 1);
    std::vector<int> taken(8);
    constexpr int fragments = 4000;
    for (std::uint64_t fragment = 0; fragment < fragments; ++fragment) {
        for (const std::int64_t row : sample_rows(valid, 3, 11, 0, fragment)) {
            ++taken[static_cast<std::size_t>(row)];
        }
    }
    for (const int count : taken) {
        CHECK(count == doctest::Approx(fragments * 3 / 8).epsilon(0.08));  // over three standard deviations
    }
}
