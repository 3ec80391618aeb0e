// Views of memory that someone else owns, and the one place where sizes are multiplied and compared.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <stdexcept>

namespace clusterenv {

/// std::invalid_argument with `message` unless `holds`.
inline void require(bool holds, const char* message) {
    if (!holds) {
        throw std::invalid_argument(message);
    }
}

/// `count * size`, or std::length_error where that does not fit.
constexpr std::size_t checked_product(std::size_t count, std::size_t size) {
    if (size != 0 && count > std::numeric_limits<std::size_t>::max() / size) {
        throw std::length_error("a size does not fit into a machine word");
    }
    return count * size;
}

/// A C-contiguous matrix [rows, cols] that is not owned.
template <typename T>
class MatrixView {
  public:
    /// Takes `values` as `rows` rows; std::invalid_argument where they are not rows * cols.
    constexpr MatrixView(std::span<T> values, std::size_t rows, std::size_t cols)
        : values_(values), rows_(rows), cols_(cols) {
        require(values.size() == checked_product(rows, cols), "a matrix does not have rows * cols values");
    }

    constexpr std::size_t rows() const { return rows_; }
    constexpr std::size_t cols() const { return cols_; }
    constexpr std::span<T> row(std::size_t index) const { return values_.subspan(index * cols_, cols_); }

  private:
    std::span<T> values_;
    std::size_t rows_;
    std::size_t cols_;
};

}  // namespace clusterenv
