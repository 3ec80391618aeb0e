#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>

#include "bindings/arrays.hpp"
#include "bindings/module.hpp"
#include "clusterenv/doorbell.hpp"
#include "clusterenv/slab.hpp"

namespace clusterenv::bindings {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

constexpr double kLongestSeconds = 1e6;

std::size_t checked_bytes(py::handle object, const char* name) {
    return static_cast<std::size_t>(checked_count(object, name, std::numeric_limits<std::size_t>::max()));
}

/// Seconds of any real type; ValueError where they are NaN or negative.
nanoseconds checked_seconds(double seconds, const char* name) {
    if (!(seconds >= 0)) {
        throw py::value_error(std::string(name) + " is " + std::to_string(seconds) +
                              "; expected seconds from 0");
    }
    const std::chrono::duration<double> exact(std::min(seconds, kLongestSeconds));
    return std::chrono::duration_cast<nanoseconds>(exact);
}

/// OSError, whose errno says why.
template <typename Make>
Slab made(Make make) {
    try {
        return make();
    } catch (const std::system_error& error) {
        PyErr_SetObject(PyExc_OSError, py::make_tuple(error.code().value(), error.what()).ptr());
        throw py::error_already_set();
    }
}

/// A doorbell, with the slab that it is in.
class SlabDoorbell {
  public:
    SlabDoorbell(py::object slab, const py::object& offset)
        : slab_(std::move(slab)), bell_(words(py::cast<Slab&>(slab_), checked_bytes(offset, "offset"))) {}

    std::uint32_t count() const { return bell_.count(); }
    void ring() { bell_.ring(); }

    bool wait(const py::object& seen, double timeout_s, double spin_s) {
        const auto last = static_cast<std::uint32_t>(
            checked_count(seen, "seen", std::numeric_limits<std::uint32_t>::max()));
        const auto end = steady_clock::now() + checked_seconds(timeout_s, "timeout_s");
        nanoseconds spin = checked_seconds(spin_s, "spin_s");
        while (true) {
            Rung rung = Rung::interrupted;
            {
                const py::gil_scoped_release release;
                rung = bell_.wait(last, end - steady_clock::now(), spin);
            }
            if (rung != Rung::interrupted) {
                return rung == Rung::yes;
            }
            if (PyErr_CheckSignals() != 0) {
                throw py::error_already_set();
            }
            spin = nanoseconds(0);
        }
    }

  private:
    static std::span<std::byte> words(const Slab& slab, std::size_t offset) {
        const std::span<std::byte> all = slab.bytes();
        if (offset > all.size() || all.size() - offset < Doorbell::kBytes) {
            throw py::value_error("offset is " + std::to_string(offset) + "; expected room for " +
                                  std::to_string(Doorbell::kBytes) + " bytes in a slab of " +
                                  std::to_string(all.size()));
        }
        return all.subspan(offset, Doorbell::kBytes);
    }

    py::object slab_;
    Doorbell bell_;
};

}  // namespace

void bind_shared(py::module_& m) {
    py::class_<Slab>(m, "Slab", py::buffer_protocol(),
                     "Memory that processes share; arrays over it keep it mapped.")
        .def_static(
            "create",
            [](const py::object& nbytes) {
                return made([&] { return Slab::create(checked_bytes(nbytes, "nbytes")); });
            },
            py::arg("nbytes"), "New zeros; OSError where there is no room.")
        .def_static(
            "attach",
            [](int descriptor, const py::object& nbytes) {
                return made([&] { return Slab::attach(descriptor, checked_bytes(nbytes, "nbytes")); });
            },
            py::arg("descriptor"), py::arg("nbytes"),
            "That of another process, by a descriptor that stays the caller's.")
        .def_property_readonly("descriptor", &Slab::descriptor, "For `attach`; -1 once it is closed.")
        .def_property_readonly(
            "nbytes", [](const Slab& slab) { return slab.bytes().size(); }, "Its size.")
        .def_property_readonly(
            "memory",
            [](const py::object& slab) {
                return py::reinterpret_steal<py::memoryview>(PyMemoryView_FromObject(slab.ptr()));
            },
            "Its bytes, which keep it mapped.")
        .def("close_descriptor", &Slab::close_descriptor, "Nobody else can attach; the memory stays.")
        .def_buffer([](Slab& slab) {
            return py::buffer_info(reinterpret_cast<std::uint8_t*>(slab.bytes().data()),
                                   static_cast<py::ssize_t>(slab.bytes().size()));
        });
    py::class_<SlabDoorbell>(m, "Doorbell", "A counter in a slab that processes ring and one waits for.")
        .def(py::init<py::object, py::object>(), py::arg("slab"), py::arg("offset"))
        .def_readonly_static("nbytes", &Doorbell::kBytes, "Bytes of the slab that it takes.")
        .def_property_readonly("count", &SlabDoorbell::count, "How often it was rung, modulo 2**32.")
        .def("ring", &SlabDoorbell::ring, "The waiter goes on.")
        .def("wait", &SlabDoorbell::wait, py::arg("seen"), py::arg("timeout_s"), py::arg("spin_s") = 0.0,
             "Whether the count became another than `seen` in time; by one process only. Signals are "
             "handled.");
}

}  // namespace clusterenv::bindings
