#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>

#include "bindings/arrays.hpp"
#include "bindings/module.hpp"
#include "clusterenv/pack.hpp"

namespace clusterenv::bindings {
namespace {

/// What every row must be, taken from the output [n, *shape], and how an error speaks of one that is not.
class RowContract {
  public:
    RowContract(const py::array& out, const std::string& name)
        : name_(name),
          dtype_(out.dtype()),
          scalar_type_(dtype_.attr("type")),
          shape_(out.shape() + 1, static_cast<std::size_t>(out.ndim() - 1)) {}

    bool scalar() const { return shape_.empty(); }
    const py::dtype& dtype() const { return dtype_; }
    PyTypeObject* scalar_type() const { return reinterpret_cast<PyTypeObject*>(scalar_type_.ptr()); }
    RowShape shape() const { return {shape_, static_cast<std::size_t>(dtype_.itemsize())}; }

    /// The array `row` as a strided view; TypeError or ValueError where its dtype or shape is another.
    StridedRow checked(py::handle object, std::size_t index) const {
        if (!py::isinstance<py::array>(object)) {
            throw py::type_error(label(index) + " is of type " + type_name(object) + "; expected " +
                                 expected());
        }
        const auto row = py::reinterpret_borrow<py::array>(object);
        // Nearly always the very same object; to compare two by value takes longer than to copy a small row.
        const py::dtype seen = row.dtype();
        if (!seen.is(dtype_) && !seen.equal(dtype_)) {
            throw py::type_error(label(index) + " has dtype " + text_of(seen) + "; expected " + expected());
        }
        if (static_cast<std::size_t>(row.ndim()) != shape_.size() ||
            !std::equal(shape_.begin(), shape_.end(), row.shape())) {
            throw py::value_error(label(index) + " has shape " + text_of(row.attr("shape")) + "; expected " +
                                  expected());
        }
        const bool contiguous = (row.flags() & py::array::c_style) != 0;
        return {static_cast<const std::byte*>(row.data()), contiguous ? nullptr : row.strides()};
    }

    [[noreturn]] void refuse_value(py::handle object, std::size_t index) const {
        throw py::value_error(label(index) + " is " + std::string(py::repr(object)) + "; expected " +
                              expected() + " that holds it exactly");
    }

  private:
    std::string label(std::size_t index) const { return name_ + "[" + std::to_string(index) + "]"; }

    std::string expected() const {
        const std::string dtype = text_of(dtype_);
        return scalar() ? "a scalar of " + dtype
                        : "an array of " + dtype + " and shape " + shape_text(shape_);
    }

    const std::string& name_;
    py::dtype dtype_;
    py::object scalar_type_;
    std::span<const py::ssize_t> shape_;
};

/// Writes `value` as a T; false where T does not hold it exactly.
template <typename T, typename Value>
bool store(Value value, std::byte* out) {
    if constexpr (std::is_integral_v<T>) {
        if (!std::in_range<T>(value)) {
            return false;
        }
    } else if (value == value && static_cast<Value>(static_cast<T>(value)) != value) {
        return false;
    }
    const T exact = static_cast<T>(value);
    std::memcpy(out, &exact, sizeof(T));
    return true;
}

template <typename Value>
bool store_integer(Value value, bool is_signed, std::size_t item_bytes, std::byte* out) {
    switch (item_bytes) {
        case sizeof(std::int8_t):
            return is_signed ? store<std::int8_t>(value, out) : store<std::uint8_t>(value, out);
        case sizeof(std::int16_t):
            return is_signed ? store<std::int16_t>(value, out) : store<std::uint16_t>(value, out);
        case sizeof(std::int32_t):
            return is_signed ? store<std::int32_t>(value, out) : store<std::uint32_t>(value, out);
        default:
            return is_signed ? store<std::int64_t>(value, out) : store<std::uint64_t>(value, out);
    }
}

bool store_real(double value, std::size_t item_bytes, std::byte* out) {
    switch (item_bytes) {
        case sizeof(float):
            return store<float>(value, out);
        case sizeof(double):
            return store<double>(value, out);
        default:
            return false;  // half and extended precision only as NumPy scalars
    }
}

bool store_int(py::handle number, char kind, std::size_t item_bytes, std::byte* out) {
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
    if (overflow == 0 && kind == 'f') {
        constexpr long long limit = 1LL << 53U;  // up to here each whole number is a double
        return -limit <= value && value <= limit && store_real(static_cast<double>(value), item_bytes, out);
    }
    if (overflow == 0) {
        return store_integer(value, kind == 'i', item_bytes, out);
    }
    if (overflow < 0 || kind != 'u') {
        return false;
    }
    const unsigned long long large = PyLong_AsUnsignedLongLong(number.ptr());
    if (PyErr_Occurred() != nullptr) {
        PyErr_Clear();
        return false;
    }
    return store_integer(large, false, item_bytes, out);
}

/// Copies the bytes of a NumPy scalar.
void store_bytes(py::handle scalar, std::size_t item_bytes, std::byte* out) {
    Py_buffer view;
    if (PyObject_GetBuffer(scalar.ptr(), &view, PyBUF_SIMPLE) != 0) {
        throw py::error_already_set();
    }
    std::memcpy(out, view.buf, item_bytes);
    PyBuffer_Release(&view);
}

/// Writes one scalar row: a NumPy scalar or 0-d array of the dtype, or a Python number that it holds exactly.
void store_scalar(py::handle row, const RowContract& contract, std::size_t index, std::byte* out) {
    const std::size_t item_bytes = contract.shape().item_bytes;
    const char kind = contract.dtype().kind();
    if (Py_TYPE(row.ptr()) == contract.scalar_type()) {
        store_bytes(row, item_bytes, out);
        return;
    }
    bool exact = true;
    if (PyLong_CheckExact(row.ptr()) != 0 && (kind == 'i' || kind == 'u' || kind == 'f')) {
        exact = store_int(row, kind, item_bytes, out);
    } else if (PyFloat_CheckExact(row.ptr()) != 0 && kind == 'f') {
        exact = store_real(PyFloat_AS_DOUBLE(row.ptr()), item_bytes, out);
    } else if (PyBool_Check(row.ptr()) != 0 && kind == 'b') {
        *out = std::byte{row.ptr() == Py_True};
    } else {
        std::memcpy(out, contract.checked(row, index).data, item_bytes);
    }
    if (!exact) {
        contract.refuse_value(row, index);
    }
}

/// The output's first axis may have any stride; the rest must be contiguous, and no two rows may share bytes.
bool rows_are_contiguous(const py::array& out, std::size_t row_bytes) {
    if (out.size() == 0) {
        return true;  // NumPy does not say what the strides are then
    }
    py::ssize_t expected = out.itemsize();
    for (py::ssize_t axis = out.ndim() - 1; axis > 0; --axis) {
        if (out.shape(axis) > 1 && out.strides(axis) != expected) {
            return false;
        }
        expected *= out.shape(axis);
    }
    return out.shape(0) < 2 || static_cast<std::size_t>(std::abs(out.strides(0))) >= row_bytes;
}

py::array checked_out(py::handle object) {
    if (!py::isinstance<py::array>(object)) {
        throw py::type_error("out is of type " + type_name(object) + "; expected a NumPy array");
    }
    auto out = py::reinterpret_borrow<py::array>(object);
    const py::dtype dtype = out.dtype();
    const bool native = dtype.byteorder() == '=' || dtype.byteorder() == '|';
    if (!native || std::string_view("biufc").find(dtype.kind()) == std::string_view::npos) {
        throw py::type_error("out has dtype " + text_of(dtype) +
                             "; expected numbers or booleans of this machine");
    }
    if (out.ndim() < 1) {
        throw py::value_error("out has shape (); expected [n, *shape of a row]");
    }
    check_writeable(out, "out");
    return out;
}

void pack(const py::object& rows, const py::object& out_array, const std::string& name) {
    py::array out = checked_out(out_array);
    const RowContract contract(out, name);
    const RowShape shape = contract.shape();
    const std::size_t row_bytes = shape.bytes();
    if (!rows_are_contiguous(out, row_bytes)) {
        throw py::value_error("out has strides " + text_of(out.attr("strides")) +
                              "; expected rows that are contiguous and apart");
    }
    if (PySequence_Check(rows.ptr()) == 0) {
        throw py::type_error(name + " is of type " + type_name(rows) + "; expected a sequence of rows");
    }
    // A tuple of our own keeps the rows alive, whatever other threads do to the caller's list.
    const auto held = py::reinterpret_steal<py::tuple>(PySequence_Tuple(rows.ptr()));
    if (!held) {
        throw py::error_already_set();
    }
    if (static_cast<py::ssize_t>(held.size()) != out.shape(0)) {
        throw py::value_error(name + " has " + std::to_string(held.size()) + " rows; expected " +
                              std::to_string(out.shape(0)));
    }

    std::vector<StridedRow> sources(held.size());
    std::vector<std::byte> scalars(contract.scalar() ? checked_product(held.size(), row_bytes) : 0);
    for (std::size_t i = 0; i < held.size(); ++i) {
        const py::handle row = PyTuple_GET_ITEM(held.ptr(), static_cast<py::ssize_t>(i));
        if (contract.scalar()) {
            store_scalar(row, contract, i, &scalars[i * row_bytes]);
            sources[i] = {&scalars[i * row_bytes], nullptr};
        } else {
            sources[i] = contract.checked(row, i);
        }
    }
    auto* target = static_cast<std::byte*>(out.mutable_data());
    const GilRelease release(held.size() * row_bytes / kCopiedBytesPerValue);
    pack_rows(sources, shape, target, out.strides(0));
}

}  // namespace

void bind_pack(py::module_& m) {
    m.def("pack_rows", &pack, py::arg("rows"), py::arg("out"), py::arg("name") = "rows",
          "Copies n rows, each exactly of the dtype and shape of a row of `out` [n, *shape], into `out`.");
}

}  // namespace clusterenv::bindings
