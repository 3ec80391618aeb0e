#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "clusterenv/pack.hpp"

using namespace clusterenv;

namespace {

template <typename T>
const std::byte* bytes_of(const T& value) {
    return reinterpret_cast<const std::byte*>(&value);
}

}  // namespace

TEST_CASE("contiguous rows land side by side") {
    const std::array<float, 3> first{1, 2, 3};
    const std::array<float, 3> second{4, 5, 6};
    const std::array<StridedRow, 2> rows{StridedRow{bytes_of(first), nullptr},
                                         StridedRow{bytes_of(second), nullptr}};
    const std::array<std::ptrdiff_t, 1> shape{3};
    std::vector<float> out(6);
    pack_rows(rows, {shape, sizeof(float)}, reinterpret_cast<std::byte*>(out.data()), 3 * sizeof(float));
    CHECK(out == std::vector<float>{1, 2, 3, 4, 5, 6});
}

TEST_CASE("strides of any kind are followed") {
    const std::array<std::int16_t, 6> grid{0, 1, 2, 3, 4, 5};  // [2, 3]
    const std::array<std::ptrdiff_t, 2> transposed{2, 6};
    const std::array<std::ptrdiff_t, 2> backwards{-6, -2};
    const std::array<std::ptrdiff_t, 2> repeated{0, 2};
    const std::array<StridedRow, 1> by_columns{StridedRow{bytes_of(grid), transposed.data()}};
    const std::array<StridedRow, 1> from_the_end{StridedRow{bytes_of(grid[5]), backwards.data()}};
    const std::array<StridedRow, 1> broadcast{StridedRow{bytes_of(grid[3]), repeated.data()}};
    const std::array<std::ptrdiff_t, 2> tall{3, 2};
    const std::array<std::ptrdiff_t, 2> wide{2, 3};
    std::vector<std::int16_t> out(6);
    auto* target = reinterpret_cast<std::byte*>(out.data());
    pack_rows(by_columns, {tall, 2}, target, 12);
    CHECK(out == std::vector<std::int16_t>{0, 3, 1, 4, 2, 5});
    pack_rows(from_the_end, {wide, 2}, target, 12);
    CHECK(out == std::vector<std::int16_t>{5, 4, 3, 2, 1, 0});
    pack_rows(broadcast, {wide, 2}, target, 12);
    CHECK(out == std::vector<std::int16_t>{3, 4, 5, 3, 4, 5});
}

TEST_CASE("rows may be apart in the output, and may already be in their place") {
    std::vector<std::uint8_t> out{9, 9, 9, 9};
    const std::array<std::uint8_t, 1> two{2};
    const std::array<StridedRow, 2> rows{StridedRow{bytes_of(out[0]), nullptr},
                                         StridedRow{bytes_of(two), nullptr}};
    pack_rows(rows, {{}, 1}, reinterpret_cast<std::byte*>(out.data()), 3);
    CHECK(out == std::vector<std::uint8_t>{9, 9, 9, 2});
}

TEST_CASE("rows without bytes are neither read nor written") {
    const std::array<std::ptrdiff_t, 2> shape{4, 0};
    const std::array<StridedRow, 2> rows{StridedRow{nullptr, nullptr}, StridedRow{nullptr, nullptr}};
    pack_rows(rows, {shape, 8}, nullptr, 0);
    pack_rows({}, {{}, 8}, nullptr, 8);
}

TEST_CASE("a row whose bytes do not fit a word is refused") {
    const std::array<std::ptrdiff_t, 2> large{std::numeric_limits<std::ptrdiff_t>::max(), 3};
    const std::array<std::ptrdiff_t, 1> negative{-1};
    CHECK_THROWS_AS(static_cast<void>(RowShape({large, 8}).bytes()), std::length_error);
    CHECK_THROWS_AS(static_cast<void>(RowShape({negative, 8}).bytes()), std::invalid_argument);
}
