#include <doctest/doctest.h>

#include <array>
#include <limits>

#include "clusterenv/views.hpp"

using clusterenv::checked_product;
using clusterenv::MatrixView;

TEST_CASE("a product that does not fit a word is refused") {
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    CHECK(checked_product(most, 1) == most);
    CHECK(checked_product(most, 0) == 0);
    CHECK(checked_product(0, most) == 0);
    CHECK_THROWS_AS(checked_product(most / 2 + 1, 2), std::length_error);
}

TEST_CASE("a matrix view gives its rows and refuses a size that is not rows * cols") {
    std::array<int, 6> values{0, 1, 2, 3, 4, 5};
    const MatrixView<int> view(values, 2, 3);
    CHECK(view.row(1).front() == 3);
    CHECK(view.row(1).size() == 3);
    CHECK_THROWS_AS(MatrixView<int>(values, 2, 2), std::invalid_argument);
    CHECK_THROWS_AS(MatrixView<int>(values, std::numeric_limits<std::size_t>::max(), 2), std::length_error);
    CHECK(MatrixView<int>({}, 0, 7).rows() == 0);
}
