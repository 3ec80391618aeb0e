#include <algorithm>
#include <limits>

#include "bindings/arrays.hpp"
#include "bindings/module.hpp"
#include "clusterenv/rows.hpp"

namespace clusterenv::bindings {
namespace {

py::array_t<std::int64_t> sampled_rows(const py::object& valid, const py::object& count,
                                       const py::object& seed, const py::object& rank,
                                       const py::object& fragment) {
    constexpr std::uint64_t any = std::numeric_limits<std::uint64_t>::max();
    const std::span<const bool> flags = input_vector<bool>(valid, "valid");
    const std::uint64_t limit = checked_count(count, "count", any);
    const std::uint64_t key = checked_count(seed, "seed", any);
    const auto worker =
        static_cast<std::uint32_t>(checked_count(rank, "rank", std::numeric_limits<std::uint32_t>::max()));
    const std::uint64_t number = checked_count(fragment, "fragment", any);
    std::vector<std::int64_t> rows;
    {
        const GilRelease release(flags.size());
        rows = sample_rows({reinterpret_cast<const std::uint8_t*>(flags.data()), flags.size()},
                           static_cast<std::size_t>(limit), key, worker, number);
    }
    py::array_t<std::int64_t> out(static_cast<py::ssize_t>(rows.size()));
    std::copy(rows.begin(), rows.end(), out.mutable_data());
    return out;
}

}  // namespace

void bind_rows(py::module_& m) {
    m.def("sample_rows", &sampled_rows, py::arg("valid"), py::arg("count"), py::kw_only(), py::arg("seed"),
          py::arg("rank"), py::arg("fragment"),
          "min(count, valid.sum()) rows of `valid` [m], different and ascending, keyed by the other three.");
}

}  // namespace clusterenv::bindings
