#include "clusterenv/network.hpp"

#include <algorithm>
#include <array>
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
constexpr double kSaturated = 40.0;              // tanh(20) is 1 in single precision
constexpr double kTiny = 0x1p-9;                 // below, x - x^3 / 3 is closer than the quotient
/// Coefficients of e^r up to r^8, the highest first: enough for |r| <= ln(2) / 2 in single precision.
constexpr std::array<double, 9> kTaylor = {1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24,
                                           1.0 / 6,     1.0 / 2,    1.0,       1.0};

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
};

Kernels kernels_of(Instructions instructions) {
#if defined(__x86_64__)
    if (instructions == Instructions::avx512) {
        return {avx512::linear, avx512::hyperbolic_tangent};
    }
    if (instructions == Instructions::avx2) {
        return {avx2::linear, avx2::hyperbolic_tangent};
    }
#endif
    require(instructions == Instructions::portable,
            "this processor does not have the instructions asked for");
    return {portable::linear, portable::hyperbolic_tangent};
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
    Layer layer = {.linear = true,
                   .function = Pointwise::tanh,
                   .inputs = width_,
                   .padded_width = width,
                   .weight = std::vector<float>(checked_product(width_, width)),
                   .constants = std::vector<float>(width)};
    for (std::size_t row = 0; row < width_; ++row) {
        std::ranges::copy(weight.row(row), &layer.weight[row * width]);
    }
    std::ranges::copy(bias, layer.constants.begin());
    width_ = weight.cols();
    widest_ = std::max(widest_, width);
    layers_.push_back(std::move(layer));
}

void Network::add_pointwise(Pointwise function, std::span<const float> constants) {
    const bool takes_none = function < Pointwise::add;
    require(takes_none ? constants.empty() : constants.size() == 1 || constants.size() == width_,
            "a function of every number has another number of constants than it takes");
    Layer layer = {.linear = false,
                   .function = function,
                   .inputs = width_,
                   .padded_width = padded(width_),
                   .weight = {},
                   .constants = std::vector<float>(padded(width_), 1.0F)};
    if (constants.size() == 1) {
        std::ranges::fill(layer.constants, constants.front());
    }
    std::ranges::copy(constants, layer.constants.begin());
    layers_.push_back(std::move(layer));
}

void Network::run(MatrixView<const float> in, MatrixView<float> out, Instructions instructions) const {
    require(in.cols() == inputs_ && out.cols() == width_ && in.rows() == out.rows(),
            "the rows of a network do not have its inputs and outputs");
    const Kernels kernels = kernels_of(instructions);
    const std::size_t block = std::min(kRowsOfBlock, in.rows());
    const std::size_t block_rows = (block + kRowsAtOnce - 1) / kRowsAtOnce * kRowsAtOnce;
    std::vector<float> memory(2 * checked_product(block_rows, widest_));
    std::span<float> now = std::span(memory).first(block_rows * widest_);
    std::span<float> next = std::span(memory).last(block_rows * widest_);
    for (std::size_t first = 0; first < in.rows(); first += block) {
        const std::size_t rows = std::min(block, in.rows() - first);
        for (std::size_t row = 0; row < rows; ++row) {
            std::ranges::copy(in.row(first + row), &now[row * widest_]);
        }
        for (const Layer& layer : layers_) {
            if (layer.linear) {
                kernels.linear(now.data(), block_rows, widest_, layer.inputs, layer.weight.data(),
                               layer.constants.data(), layer.padded_width, next.data());
                std::swap(now, next);
                continue;
            }
            for (std::size_t row = 0; row < rows; ++row) {
                apply(layer.function, now.subspan(row * widest_, layer.padded_width), layer.constants,
                      kernels);
            }
        }
        for (std::size_t row = 0; row < rows; ++row) {
            std::ranges::copy(now.subspan(row * widest_, width_), out.row(first + row).begin());
        }
    }
}

}  // namespace clusterenv
