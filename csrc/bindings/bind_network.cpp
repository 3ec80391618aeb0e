#include <array>
#include <string>
#include <utility>

#include "bindings/arrays.hpp"
#include "bindings/module.hpp"
#include "clusterenv/network.hpp"

namespace clusterenv::bindings {
namespace {

constexpr std::array<std::pair<const char*, Pointwise>, 14> kFunctions = {{
    {"tanh", Pointwise::tanh},
    {"relu", Pointwise::relu},
    {"sigmoid", Pointwise::sigmoid},
    {"gelu", Pointwise::gelu},
    {"gelu_tanh", Pointwise::gelu_tanh},
    {"silu", Pointwise::silu},
    {"elu", Pointwise::elu},
    {"leaky_relu", Pointwise::leaky_relu},
    {"add", Pointwise::add},
    {"subtract", Pointwise::subtract},
    {"multiply", Pointwise::multiply},
    {"divide", Pointwise::divide},
    {"maximum", Pointwise::maximum},
    {"minimum", Pointwise::minimum},
}};

Pointwise function_named(const std::string& name) {
    std::string known;
    for (const auto& [other, function] : kFunctions) {
        if (name == other) {
            return function;
        }
        known += (known.empty() ? "" : ", ") + std::string(other);
    }
    throw py::value_error("function is " + name + "; expected one of " + known);
}

std::span<const float> vector_or_nothing(const py::object& object, const char* name) {
    return object.is_none() ? std::span<const float>{} : input_vector<float>(object, name);
}

void run(const Network& network, const py::object& in, const py::object& out) {
    const auto rows = input_matrix<float>(in, "rows", kAnyLength, static_cast<py::ssize_t>(network.inputs()));
    const auto results = output_matrix<float>(out, "out", rows.rows(), network.outputs());
    const GilRelease release(rows.rows() * (network.inputs() + network.outputs()));
    network.run(rows, results);
}

}  // namespace

void bind_network(py::module_& m) {
    py::class_<Network>(m, "Network", "A small feed-forward network; a row's numbers depend on it alone.")
        .def(py::init([](const py::object& inputs) {
                 return Network(static_cast<std::size_t>(checked_count(inputs, "inputs", 1U << 24U)));
             }),
             py::arg("inputs"), "The identity of rows [n, inputs].")
        .def(
            "add_linear",
            [](Network& network, const py::object& weight, const py::object& bias) {
                const auto width = static_cast<py::ssize_t>(network.outputs());
                network.add_linear(input_matrix<float>(weight, "weight", width, kAnyLength),
                                   vector_or_nothing(bias, "bias"));
            },
            py::arg("weight"), py::arg("bias") = py::none(), "Then `x @ weight + bias`.")
        .def(
            "add_pointwise",
            [](Network& network, const std::string& function, const py::object& constants) {
                network.add_pointwise(function_named(function), vector_or_nothing(constants, "constants"));
            },
            py::arg("function"), py::arg("constants") = py::none(),
            "Then a function of every number, some with a constant [1] or [width].")
        .def(
            "add_layer_norm",
            [](Network& network, const py::object& weight, const py::object& bias, double epsilon) {
                network.add_layer_norm(vector_or_nothing(weight, "weight"), vector_or_nothing(bias, "bias"),
                                       epsilon);
            },
            py::arg("weight") = py::none(), py::arg("bias") = py::none(), py::arg("epsilon") = 1e-5,
            "Then mean 0 and variance 1 of each row, times weight [width], plus bias [width].")
        .def("keep", &Network::keep, "Keep the numbers of now for an `add_kept` later.")
        .def("add_kept", &Network::add_kept, "Then the sum with what was kept last.")
        .def_property_readonly("inputs", &Network::inputs, "Numbers of a row.")
        .def_property_readonly("outputs", &Network::outputs, "Numbers that come out for a row.")
        .def("run", &run, py::arg("rows"), py::arg("out"), "From rows [n, inputs] into `out` [n, outputs].");
}

}  // namespace clusterenv::bindings
