#include "clusterenv/network.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace clusterenv {
namespace {

constexpr std::size_t kLanes = 16;
constexpr std::size_t kDoubles = 8;
constexpr std::size_t kRowsAtOnce = 4;
/// Rows that go through all layers before the next do, so that they stay in the first cache.
constexpr std::size_t kRowsOfBlock = 32;

using Lanes [[gnu::vector_size(kLanes * sizeof(float))]] = float;
using Floats [[gnu::vector_size(kDoubles * sizeof(float))]] = float;
using Doubles [[gnu::vector_size(kDoubles * sizeof(double))]] = double;
using Words [[gnu::vector_size(kDoubles * sizeof(std::uint64_t))]] = std::uint64_t;

constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2 = 0.6931471805599453;
constexpr double kRounder = 6755399441055744.0;  // 1.5 * 2^52
constexpr double kLargest = 700.0;               // e^700 is finite in double precision
constexpr double kTiny = 0x1p-9;                 // below, x - x^3 / 3 is closer than the quotient
/// Coefficients of e^r up to r^8, the highest first: enough for |r| <= ln(2) / 2 in single precision.
constexpr std::array<double, 9> kTaylor = {1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24,
                                           1.0 / 6,     1.0 / 2,    1.0,       1.0};

/// kTail(t) = ln(erfc(z) / t) + z^2 with t = 1 / (1 + z / 2), the highest power first; from Press et al.,
/// Numerical Recipes, 3rd ed., 6.2.2, fitted anew in 4,000 Chebyshev nodes for z from 0 to 6.5: erfc to 9e-10
/// of itself.
constexpr std::array<double, 11> kTail = {-0.17289539215610988, 1.1630406480747744,  -3.3063934400845945,
                                          5.052935454116758,    -4.372039798932546,  2.2179852360426677,
                                          -0.9610161501686645,  0.30049330891538495, 0.34030763555218124,
                                          1.0032274808214774,   -1.265644983024818};
constexpr double kHalfRoot = 0.70710678118654752;  // 1 / sqrt(2)
/// sqrt(8 / pi), and times 0.044715: the approximation by tanh in Hendrycks and Gimpel (2016), as a logistic
/// function.
constexpr double kGeluLinear = 1.5957691216057308;
constexpr double kGeluCubic = 0.07135481627260025;

namespace portable {
#define CLUSTERENV_TARGET
#include "clusterenv/network_kernels.inc"
#undef CLUSTERENV_TARGET
}  // namespace portable

#if defined(__x86_64__)
namespace avx2 {
#define CLUSTERENV_TARGET [[gnu::target("avx2,fma")]]
#include "clusterenv/network_kernels.inc"
#undef CLUSTERENV_TARGET
}  // namespace avx2

namespace avx512 {
#define CLUSTERENV_TARGET [[gnu::target("avx512f,avx512dq")]]
#include "clusterenv/network_kernels.inc"
#undef CLUSTERENV_TARGET
}  // namespace avx512
#endif

struct Kernels {
    decltype(&portable::linear) linear;
    decltype(&portable::hyperbolic_tangent) hyperbolic_tangent;
    decltype(&portable::gate) gate;
    decltype(&portable::normal_gate) normal_gate;
    decltype(&portable::exponential_below) exponential_below;
    decltype(&portable::normalize) normalize;
};

Kernels kernels_of(Instructions instructions) {
#if defined(__x86_64__)
    if (instructions == Instructions::avx512) {
        return {avx512::linear,      avx512::hyperbolic_tangent, avx512::gate,
                avx512::normal_gate, avx512::exponential_below,  avx512::normalize};
    }
    if (instructions == Instructions::avx2) {
        return {avx2::linear,      avx2::hyperbolic_tangent, avx2::gate,
                avx2::normal_gate, avx2::exponential_below,  avx2::normalize};
    }
#endif
    require(instructions == Instructions::portable,
            "this processor does not have the instructions asked for");
    return {portable::linear,      portable::hyperbolic_tangent, portable::gate,
            portable::normal_gate, portable::exponential_below,  portable::normalize};
}

std::size_t padded(std::size_t width) {
    return (width + kLanes - 1) / kLanes * kLanes;
}

/// `function(x, constant)` for each number of each row of `width`, in place.
template <typename Function>
void each(std::span<float> values, std::span<const float> constants, Function function) {
    for (std::size_t start = 0; start < values.size(); start += constants.size()) {
        for (std::size_t i = 0; i < constants.size(); ++i) {
            values[start + i] = function(values[start + i], constants[i]);
        }
    }
}

/// The functions are such that NaN gives NaN.
void apply(Pointwise function, std::span<float> values, std::span<const float> constants,
           const Kernels& kernels) {
    switch (function) {
        case Pointwise::tanh:
            kernels.hyperbolic_tangent(values.data(), values.size());
            return;
        case Pointwise::relu:
            return each(values, constants, [](float x, float) { return x < 0.0F ? 0.0F : x; });
        case Pointwise::sigmoid:  // (1 + tanh(x / 2)) / 2
            each(values, constants, [](float x, float) { return x * 0.5F; });
            kernels.hyperbolic_tangent(values.data(), values.size());
            return each(values, constants, [](float x, float) { return (x + 1.0F) * 0.5F; });
        case Pointwise::gelu:
            return kernels.normal_gate(values.data(), values.size());
        case Pointwise::gelu_tanh:
            return kernels.gate(values.data(), values.size(), kGeluLinear, kGeluCubic);
        case Pointwise::silu:
            return kernels.gate(values.data(), values.size(), 1.0, 0.0);
        case Pointwise::elu:
            return kernels.exponential_below(values.data(), values.size(), constants.data());
        case Pointwise::leaky_relu:
            return each(values, constants, [](float x, float c) { return x < 0.0F ? x * c : x; });
        case Pointwise::add:
            return each(values, constants, [](float x, float c) { return x + c; });
        case Pointwise::subtract:
            return each(values, constants, [](float x, float c) { return x - c; });
        case Pointwise::multiply:
            return each(values, constants, [](float x, float c) { return x * c; });
        case Pointwise::divide:
            return each(values, constants, [](float x, float c) { return x / c; });
        case Pointwise::maximum:
            return each(values, constants, [](float x, float c) { return x < c || c != c ? c : x; });
        case Pointwise::minimum:
            return each(values, constants, [](float x, float c) { return x > c || c != c ? c : x; });
    }
}

}  // namespace

std::span<const Instructions> available_instructions() {
    static const std::vector<Instructions> available = [] {
        std::vector<Instructions> found = {Instructions::portable};
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
            found.push_back(Instructions::avx2);
        }
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) {
            found.push_back(Instructions::avx512);
        }
#endif
        return found;
    }();
    return available;
}

Network::Network(std::size_t inputs) : inputs_(inputs), width_(inputs), widest_(padded(inputs)) {
    require(inputs > 0, "a network has 0 inputs; expected 1 at least");
}

void Network::add_linear(MatrixView<const float> weight, std::span<const float> bias) {
    require(weight.rows() == width_, "a weight does not have a row for each of the numbers before it");
    require(weight.cols() > 0 && (bias.empty() || bias.size() == weight.cols()),
            "a bias does not have a number for each column of its weight");
    const std::size_t width = padded(weight.cols());
    Layer layer = layer_of(Layer::Kind::linear);
    layer.padded_width = width;
    layer.weight.resize(checked_product(width_, width));
    layer.constants.resize(width);
    for (std::size_t row = 0; row < width_; ++row) {
        std::ranges::copy(weight.row(row), &layer.weight[row * width]);
    }
    std::ranges::copy(bias, layer.constants.begin());
    width_ = weight.cols();
    widest_ = std::max(widest_, width);
    layers_.push_back(std::move(layer));
}

void Network::add_pointwise(Pointwise function, std::span<const float> constants) {
    const bool takes_none = function < Pointwise::elu;
    require(takes_none ? constants.empty() : constants.size() == 1 || constants.size() == width_,
            "a function of every number has another number of constants than it takes");
    Layer layer = layer_of(Layer::Kind::pointwise);
    layer.function = function;
    layer.constants.assign(padded(width_), 1.0F);
    if (constants.size() == 1) {
        std::ranges::fill(layer.constants, constants.front());
    }
    std::ranges::copy(constants, layer.constants.begin());
    layers_.push_back(std::move(layer));
}

void Network::add_layer_norm(std::span<const float> weight, std::span<const float> bias, double epsilon) {
    require((weight.empty() || weight.size() == width_) && (bias.empty() || bias.size() == width_),
            "a normalization does not have a weight and a bias for each number of a row");
    require(epsilon > 0.0 && std::isfinite(epsilon), "a normalization's epsilon is not a number above 0");
    Layer layer = layer_of(Layer::Kind::layer_norm);
    layer.epsilon = epsilon;
    layer.weight.assign(width_, 1.0F);
    layer.constants.assign(width_, 0.0F);
    std::ranges::copy(weight, layer.weight.begin());
    std::ranges::copy(bias, layer.constants.begin());
    layers_.push_back(std::move(layer));
}

void Network::keep() {
    kept_.push_back(width_);
    most_kept_ = std::max(most_kept_, kept_.size());
    layers_.push_back(layer_of(Layer::Kind::keep));
}

void Network::add_kept() {
    require(!kept_.empty() && kept_.back() == width_,
            "what was kept last does not have as many numbers as a row has now");
    kept_.pop_back();
    layers_.push_back(layer_of(Layer::Kind::add_kept));
}

Network::Layer Network::layer_of(Layer::Kind kind) const {
    return {.kind = kind,
            .function = Pointwise::tanh,
            .inputs = width_,
            .padded_width = padded(width_),
            .weight = {},
            .constants = {},
            .epsilon = 0.0};
}

void Network::run(MatrixView<const float> in, MatrixView<float> out, Instructions instructions) const {
    require(in.cols() == inputs_ && out.cols() == width_ && in.rows() == out.rows(),
            "the rows of a network do not have its inputs and outputs");
    const Kernels kernels = kernels_of(instructions);
    const std::size_t block = std::min(kRowsOfBlock, in.rows());
    const std::size_t block_rows = (block + kRowsAtOnce - 1) / kRowsAtOnce * kRowsAtOnce;
    const std::size_t size = checked_product(block_rows, widest_);
    std::vector<float> memory(checked_product(2 + most_kept_, size));
    std::span<float> now = std::span(memory).first(size);
    std::span<float> next = std::span(memory).subspan(size, size);
    for (std::size_t first = 0; first < in.rows(); first += block) {
        const std::size_t rows = std::min(block, in.rows() - first);
        for (std::size_t row = 0; row < rows; ++row) {
            std::ranges::copy(in.row(first + row), &now[row * widest_]);
        }
        std::size_t kept = 0;
        for (const Layer& layer : layers_) {
            switch (layer.kind) {
                case Layer::Kind::linear:
                    kernels.linear(now.data(), block_rows, widest_, layer.inputs, layer.weight.data(),
                                   layer.constants.data(), layer.padded_width, next.data());
                    std::swap(now, next);
                    break;
                case Layer::Kind::pointwise:
                    for (std::size_t row = 0; row < rows; ++row) {
                        apply(layer.function, now.subspan(row * widest_, layer.padded_width), layer.constants,
                              kernels);
                    }
                    break;
                case Layer::Kind::layer_norm:
                    for (std::size_t row = 0; row < rows; ++row) {
                        kernels.normalize(&now[row * widest_], layer.inputs, layer.epsilon,
                                          layer.weight.data(), layer.constants.data());
                    }
                    break;
                case Layer::Kind::keep:
                    std::ranges::copy(now, &memory[(2 + kept++) * size]);
                    break;
                case Layer::Kind::add_kept:
                    each(now, std::span(memory).subspan((2 + --kept) * size, size),
                         [](float x, float other) { return x + other; });
                    break;
            }
        }
        for (std::size_t row = 0; row < rows; ++row) {
            std::ranges::copy(now.subspan(row * widest_, width_), out.row(first + row).begin());
        }
    }
}

}  // namespace clusterenv
