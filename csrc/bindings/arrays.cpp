#include "bindings/arrays.hpp"

namespace clusterenv::bindings {
namespace {

bool has_shape(const py::array& array, std::initializer_list<py::ssize_t> shape) {
    if (array.ndim() != static_cast<py::ssize_t>(shape.size())) {
        return false;
    }
    const py::ssize_t* seen = array.shape();
    for (const py::ssize_t length : shape) {
        if (length != kAnyLength && length != *seen) {
            return false;
        }
        ++seen;
    }
    return true;
}

py::array any_array(py::handle object, const char* name) {
    if (!py::isinstance<py::array>(object)) {
        throw py::type_error(std::string(name) + " is of type " + type_name(object) +
                             "; expected a NumPy array");
    }
    return py::reinterpret_borrow<py::array>(object);
}

py::type_error wrong_dtype(const py::array& array, const char* name, const std::string& expected) {
    return py::type_error(std::string(name) + " has dtype " + text_of(array.dtype()) + "; expected " +
                          expected);
}

}  // namespace

std::string type_name(py::handle object) {
    return text_of(py::type::handle_of(object).attr("__name__"));
}

std::string text_of(py::handle object) {
    return py::str(object);
}

std::string shape_text(std::span<const py::ssize_t> shape) {
    std::string text = "(";
    for (const py::ssize_t length : shape) {
        text += text.size() == 1 ? "" : ", ";
        text += length == kAnyLength ? "any" : std::to_string(length);
    }
    return text + (shape.size() == 1 ? ",)" : ")");
}

py::array checked_array(py::handle object, const char* name, const py::dtype& dtype) {
    py::array array = any_array(object, name);
    if (!array.dtype().equal(dtype)) {
        throw wrong_dtype(array, name, text_of(dtype));
    }
    return array;
}

bool is_double(py::handle object, const char* name) {
    const py::array array = any_array(object, name);
    if (array.dtype().equal(py::dtype::of<double>())) {
        return true;
    }
    if (!array.dtype().equal(py::dtype::of<float>())) {
        throw wrong_dtype(array, name, "float32 or float64");
    }
    return false;
}

void check_layout(const py::array& array, const char* name, std::initializer_list<py::ssize_t> shape) {
    if (!has_shape(array, shape)) {
        throw py::value_error(std::string(name) + " has shape " + text_of(array.attr("shape")) +
                              "; expected " + shape_text({shape.begin(), shape.size()}));
    }
    constexpr int wanted = py::array::c_style | py::detail::npy_api::NPY_ARRAY_ALIGNED_;
    if ((array.flags() & wanted) != wanted) {
        throw py::value_error(std::string(name) +
                              " is a strided or unaligned view; expected a C-contiguous array");
    }
}

void check_writeable(const py::array& array, const char* name) {
    if (!array.writeable()) {
        throw py::value_error(std::string(name) + " is read-only; expected an array to write into");
    }
}

std::uint64_t checked_count(py::handle object, const char* name, std::uint64_t limit) {
    const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(object.ptr()));
    if (!number) {
        PyErr_Clear();
        throw py::type_error(std::string(name) + " is of type " + type_name(object) +
                             "; expected a whole number");
    }
    const std::uint64_t value = PyLong_AsUnsignedLongLong(number.ptr());
    const bool overflow = PyErr_Occurred() != nullptr;
    PyErr_Clear();
    if (overflow || value > limit) {
        throw py::value_error(std::string(name) + " is " + text_of(number) +
                              "; expected a whole number from 0 to " + std::to_string(limit));
    }
    return value;
}

std::vector<std::size_t> checked_sizes(py::handle object, const char* name) {
    std::vector<std::size_t> sizes;
    for (const py::handle size : py::iter(object)) {
        constexpr std::uint64_t limit = std::uint64_t{1} << 31U;
        sizes.push_back(static_cast<std::size_t>(checked_count(size, name, limit)));
        if (sizes.back() == 0) {
            throw py::value_error(std::string(name) + " has a 0; expected sizes from 1");
        }
    }
    return sizes;
}

}  // namespace clusterenv::bindings
