#include <limits>

#include "bindings/arrays.hpp"
#include "bindings/module.hpp"
#include "clusterenv/sample.hpp"

namespace clusterenv::bindings {
namespace {

NoiseKeys checked_keys(py::handle seed, py::handle env_ids, py::handle steps, std::size_t rows) {
    const auto length = static_cast<py::ssize_t>(rows);
    return {checked_count(seed, "seed", std::numeric_limits<std::uint64_t>::max()),
            input_vector<std::int64_t>(env_ids, "env_ids", length),
            input_vector<std::int64_t>(steps, "steps", length)};
}

MatrixView<const float> checked_params(py::handle params) {
    return input_matrix<float>(params, "params", kAnyLength, kAnyLength);
}

py::ssize_t rows_of(const MatrixView<const float>& params) {
    return static_cast<py::ssize_t>(params.rows());
}

void categorical(const py::object& params, const py::object& sizes, const py::object& seed,
                 const py::object& env_ids, const py::object& steps, const py::object& actions,
                 const py::object& log_probs) {
    const auto parts = checked_sizes(sizes, "sizes");
    const auto rows = checked_params(params);
    const NoiseKeys keys = checked_keys(seed, env_ids, steps, rows.rows());
    const auto chosen = output_matrix<std::int64_t>(actions, "actions_out", rows.rows(), parts.size());
    const auto logs = output_vector<float>(log_probs, "log_probs_out", rows.rows());
    const GilRelease release(rows.rows() * rows.cols());
    sample_categorical(rows, parts, keys, chosen, logs);
}

void bernoulli(const py::object& params, const py::object& seed, const py::object& env_ids,
               const py::object& steps, const py::object& actions, const py::object& log_probs) {
    const auto rows = checked_params(params);
    const NoiseKeys keys = checked_keys(seed, env_ids, steps, rows.rows());
    const auto chosen = output_matrix<std::int8_t>(actions, "actions_out", rows.rows(), rows.cols());
    const auto logs = output_vector<float>(log_probs, "log_probs_out", rows.rows());
    const GilRelease release(rows.rows() * rows.cols());
    sample_bernoulli(rows, keys, chosen, logs);
}

void diag_gaussian(const py::object& params, const py::object& seed, const py::object& env_ids,
                   const py::object& steps, const py::object& actions, const py::object& log_probs) {
    const auto rows = checked_params(params);
    const NoiseKeys keys = checked_keys(seed, env_ids, steps, rows.rows());
    const auto chosen = output_matrix<float>(actions, "actions_out", rows.rows(), rows.cols() / 2);
    const auto logs = output_vector<float>(log_probs, "log_probs_out", rows.rows());
    const GilRelease release(rows.rows() * rows.cols());
    sample_diag_gaussian(rows, keys, chosen, logs);
}

void categorical_log_prob(const py::object& params, const py::object& sizes, const py::object& actions,
                          const py::object& log_probs) {
    const auto parts = checked_sizes(sizes, "sizes");
    const auto rows = checked_params(params);
    const auto taken =
        input_matrix<std::int64_t>(actions, "actions", rows_of(rows), static_cast<py::ssize_t>(parts.size()));
    const auto logs = output_vector<float>(log_probs, "log_probs_out", rows.rows());
    const GilRelease release(rows.rows() * rows.cols());
    log_prob_categorical(rows, parts, taken, logs);
}

void bernoulli_log_prob(const py::object& params, const py::object& actions, const py::object& log_probs) {
    const auto rows = checked_params(params);
    const auto taken =
        input_matrix<std::int8_t>(actions, "actions", rows_of(rows), static_cast<py::ssize_t>(rows.cols()));
    const auto logs = output_vector<float>(log_probs, "log_probs_out", rows.rows());
    const GilRelease release(rows.rows() * rows.cols());
    log_prob_bernoulli(rows, taken, logs);
}

void diag_gaussian_log_prob(const py::object& params, const py::object& actions,
                            const py::object& log_probs) {
    const auto rows = checked_params(params);
    const auto taken =
        input_matrix<float>(actions, "actions", rows_of(rows), static_cast<py::ssize_t>(rows.cols() / 2));
    const auto logs = output_vector<float>(log_probs, "log_probs_out", rows.rows());
    const GilRelease release(rows.rows() * rows.cols());
    log_prob_diag_gaussian(rows, taken, logs);
}

}  // namespace

void bind_sample(py::module_& m) {
    m.def(
        "sample_categorical", &categorical, py::arg("params"), py::arg("sizes"), py::arg("seed"),
        py::arg("env_ids"), py::arg("steps"), py::arg("actions_out"), py::arg("log_probs_out"),
        "Indices into actions_out [n, len(sizes)] and their log-probabilities, from logits [n, sum(sizes)].");
    m.def("sample_bernoulli", &bernoulli, py::arg("params"), py::arg("seed"), py::arg("env_ids"),
          py::arg("steps"), py::arg("actions_out"), py::arg("log_probs_out"),
          "Zeros and ones into actions_out [n, K] and their log-probabilities, from logits [n, K].");
    m.def(
        "sample_diag_gaussian", &diag_gaussian, py::arg("params"), py::arg("seed"), py::arg("env_ids"),
        py::arg("steps"), py::arg("actions_out"), py::arg("log_probs_out"),
        "Reals into actions_out [n, D] and their log-densities, from means and log standard deviations [n, 2 "
        "D].");
    m.def("log_prob_categorical", &categorical_log_prob, py::arg("params"), py::arg("sizes"),
          py::arg("actions"), py::arg("log_probs_out"),
          "Log-probabilities of indices [n, len(sizes)] into log_probs_out [n].");
    m.def("log_prob_bernoulli", &bernoulli_log_prob, py::arg("params"), py::arg("actions"),
          py::arg("log_probs_out"), "Log-probabilities of zeros and ones [n, K] into log_probs_out [n].");
    m.def("log_prob_diag_gaussian", &diag_gaussian_log_prob, py::arg("params"), py::arg("actions"),
          py::arg("log_probs_out"), "Log-densities of reals [n, D] into log_probs_out [n].");
}

}  // namespace clusterenv::bindings
