// From Python objects to views. Nothing is converted or copied: what does not fit exactly is an error that
// names the argument, what was seen and what is expected.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "clusterenv/views.hpp"

namespace clusterenv::bindings {

namespace py = pybind11;

/// Stands for a length that is not prescribed.
constexpr py::ssize_t kAnyLength = -1;

/// How errors speak of an object's type, of anything with `str`, and of a shape.
std::string type_name(py::handle object);
std::string text_of(py::handle object);
std::string shape_text(std::span<const py::ssize_t> shape);

/// `object` as an array of exactly `dtype`; TypeError else.
py::array checked_array(py::handle object, const char* name, const py::dtype& dtype);

/// Refuses an array that is not C-contiguous and aligned, or not of `shape`; ValueError.
void check_layout(const py::array& array, const char* name, std::initializer_list<py::ssize_t> shape);

/// Refuses an array that may not be written; ValueError.
void check_writeable(const py::array& array, const char* name);

/// A whole number from 0 to `limit`, of any Python type that has `__index__`.
std::uint64_t checked_count(py::handle object, const char* name, std::uint64_t limit);

/// Positive sizes of the parts of a row.
std::vector<std::size_t> checked_sizes(py::handle object, const char* name);

// The views below live as long as the arguments that they were made of.

template <typename T>
std::span<const T> input_vector(py::handle object, const char* name, py::ssize_t length = kAnyLength) {
    const py::array array = checked_array(object, name, py::dtype::of<T>());
    check_layout(array, name, {length});
    return {static_cast<const T*>(array.data()), static_cast<std::size_t>(array.size())};
}

template <typename T>
MatrixView<const T> input_matrix(py::handle object, const char* name, py::ssize_t rows, py::ssize_t cols) {
    const py::array array = checked_array(object, name, py::dtype::of<T>());
    check_layout(array, name, {rows, cols});
    return {{static_cast<const T*>(array.data()), static_cast<std::size_t>(array.size())},
            static_cast<std::size_t>(array.shape(0)),
            static_cast<std::size_t>(array.shape(1))};
}

template <typename T>
std::span<T> output_vector(py::handle object, const char* name, std::size_t length) {
    py::array array = checked_array(object, name, py::dtype::of<T>());
    check_layout(array, name, {static_cast<py::ssize_t>(length)});
    check_writeable(array, name);
    return {static_cast<T*>(array.mutable_data()), length};
}

template <typename T>
MatrixView<T> output_matrix(py::handle object, const char* name, std::size_t rows, std::size_t cols) {
    py::array array = checked_array(object, name, py::dtype::of<T>());
    check_layout(array, name, {static_cast<py::ssize_t>(rows), static_cast<py::ssize_t>(cols)});
    check_writeable(array, name);
    return {{static_cast<T*>(array.mutable_data()), static_cast<std::size_t>(array.size())}, rows, cols};
}

/// Whether an array is float64; if not, it is float32, or else a TypeError.
bool is_double(py::handle object, const char* name);

/// To copy this many bytes takes about as long as to compute with one value.
constexpr std::size_t kCopiedBytesPerValue = 64;

/// Gives up the GIL while it lives, where the work is worth it: getting the GIL back can take milliseconds
/// when other threads run, and most calls of ours take microseconds.
class GilRelease {
  public:
    explicit GilRelease(std::size_t values) {
        if (values >= kWorthIt) {
            release_.emplace();
        }
    }

  private:
    static constexpr std::size_t kWorthIt = 1U << 14U;
    std::optional<py::gil_scoped_release> release_;
};

}  // namespace clusterenv::bindings
