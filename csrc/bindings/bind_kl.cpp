#include "bindings/arrays.hpp"
#include "bindings/module.hpp"
#include "clusterenv/kl.hpp"

namespace clusterenv::bindings {
namespace {

/// Checked views of two rows of parameters and the output.
template <typename T>
struct Pair {
    MatrixView<const T> p;
    MatrixView<const T> q;
    std::span<double> out;

    Pair(py::handle p_array, py::handle q_array, py::handle out_array)
        : p(input_matrix<T>(p_array, "p", kAnyLength, kAnyLength)),
          q(input_matrix<T>(q_array, "q", static_cast<py::ssize_t>(p.rows()),
                            static_cast<py::ssize_t>(p.cols()))),
          out(output_vector<double>(out_array, "out", p.rows())) {}

    std::size_t values() const { return p.rows() * p.cols(); }
};

template <typename T>
void categorical(py::handle p, py::handle q, py::handle sizes, py::handle out) {
    const std::vector<std::size_t> parts = checked_sizes(sizes, "sizes");
    const Pair<T> pair(p, q, out);
    const GilRelease release(pair.values());
    kl_categorical<T>(pair.p, pair.q, parts, pair.out);
}

template <typename T>
void bernoulli(py::handle p, py::handle q, py::handle out) {
    const Pair<T> pair(p, q, out);
    const GilRelease release(pair.values());
    kl_bernoulli<T>(pair.p, pair.q, pair.out);
}

template <typename T>
void diag_gaussian(py::handle p, py::handle q, py::handle out) {
    const Pair<T> pair(p, q, out);
    const GilRelease release(pair.values());
    kl_diag_gaussian<T>(pair.p, pair.q, pair.out);
}

template <typename T>
void sampled(py::handle behaviour, py::handle target, py::handle out) {
    const auto first = input_vector<T>(behaviour, "behaviour_log_probs");
    const auto second = input_vector<T>(target, "target_log_probs", static_cast<py::ssize_t>(first.size()));
    const auto result = output_vector<double>(out, "out", first.size());
    const GilRelease release(first.size());
    k3<T>(first, second, result);
}

}  // namespace

void bind_kl(py::module_& m) {
    m.def(
        "kl_categorical",
        [](const py::object& p, const py::object& q, const py::object& sizes, const py::object& out) {
            is_double(p, "p") ? categorical<double>(p, q, sizes, out) : categorical<float>(p, q, sizes, out);
        },
        py::arg("p"), py::arg("q"), py::arg("sizes"), py::arg("out"),
        "KL(p || q) of each row of logits into out [n]; independent categoricals of `sizes` side by side.");
    m.def(
        "kl_bernoulli",
        [](const py::object& p, const py::object& q, const py::object& out) {
            is_double(p, "p") ? bernoulli<double>(p, q, out) : bernoulli<float>(p, q, out);
        },
        py::arg("p"), py::arg("q"), py::arg("out"), "KL(p || q) of each row of logits into out [n].");
    m.def(
        "kl_diag_gaussian",
        [](const py::object& p, const py::object& q, const py::object& out) {
            is_double(p, "p") ? diag_gaussian<double>(p, q, out) : diag_gaussian<float>(p, q, out);
        },
        py::arg("p"), py::arg("q"), py::arg("out"),
        "KL(p || q) of each row (means, then log standard deviations) into out [n].");
    m.def(
        "k3",
        [](const py::object& behaviour, const py::object& target, const py::object& out) {
            is_double(behaviour, "behaviour_log_probs") ? sampled<double>(behaviour, target, out)
                                                        : sampled<float>(behaviour, target, out);
        },
        py::arg("behaviour_log_probs"), py::arg("target_log_probs"), py::arg("out"),
        "(r - 1) - log r with r = target / behaviour, into out [n].");
}

}  // namespace clusterenv::bindings
