#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "clusterenv/network.hpp"

using clusterenv::available_instructions;
using clusterenv::Instructions;
using clusterenv::MatrixView;
using clusterenv::Network;
using clusterenv::Pointwise;

namespace {

MatrixView<const float> rows_of(const std::vector<float>& values, std::size_t cols) {
    return {values, values.size() / cols, cols};
}

std::vector<float> run(const Network& network, const std::vector<float>& in, Instructions instructions) {
    const std::size_t rows = in.size() / network.inputs();
    std::vector<float> out(rows * network.outputs());
    network.run(rows_of(in, network.inputs()), {out, rows, network.outputs()}, instructions);
    return out;
}

/// Numbers from -2 to 2 without a pattern that matters.
std::vector<float> some(std::size_t count) {
    std::vector<float> values(count);
    std::uint32_t state = 7;
    for (float& value : values) {
        state = state * 1664525U + 1013904223U;
        value = static_cast<float>(state >> 8U) / static_cast<float>(1U << 22U) - 2.0F;
    }
    return values;
}

}  // namespace

TEST_CASE("a linear layer is the sum of products and the bias, whatever its width") {
    for (const Instructions instructions : available_instructions()) {
        for (const std::size_t outputs : {std::size_t{1}, std::size_t{3}, std::size_t{16}, std::size_t{37}}) {
            constexpr std::size_t inputs = 5;
            const auto weight = some(inputs * outputs);
            const auto bias = some(outputs);
            Network network(inputs);
            network.add_linear(rows_of(weight, outputs), bias);
            const auto in = some(inputs * 70);
            const auto out = run(network, in, instructions);
            REQUIRE(out.size() == 70 * outputs);
            for (std::size_t i = 0; i < out.size(); ++i) {
                double sum = static_cast<double>(bias[i % outputs]);
                for (std::size_t k = 0; k < inputs; ++k) {
                    sum += static_cast<double>(in[i / outputs * inputs + k]) *
                           static_cast<double>(weight[k * outputs + i % outputs]);
                }
                CHECK(static_cast<double>(out[i]) == doctest::Approx(sum).epsilon(1e-5));
            }
        }
    }
}

TEST_CASE("a row's numbers do not depend on the rows around it") {
    const auto weight = some(std::size_t{6} * 20);
    Network network(6);
    network.add_linear(rows_of(weight, 20), {});
    network.add_pointwise(Pointwise::tanh, {});
    const auto in = some(std::size_t{6} * 40);
    for (const Instructions instructions : available_instructions()) {
        const auto together = run(network, in, instructions);
        for (std::size_t row = 0; row < 40; ++row) {
            const auto first = in.begin() + static_cast<std::ptrdiff_t>(row * 6);
            const auto alone = run(network, std::vector<float>(first, first + 6), instructions);
            CHECK(std::equal(alone.begin(), alone.end(),
                             together.begin() + static_cast<std::ptrdiff_t>(row * 20)));
        }
    }
}

TEST_CASE("tanh is the float next to the true one") {
    Network network(1);
    network.add_pointwise(Pointwise::tanh, {});
    std::vector<float> in = {0.0F, 1e-30F, 1e-6F, 20.0F, 1e30F, std::numeric_limits<float>::infinity()};
    for (float x = 1e-4F; x < 12.0F; x *= 1.003F) {
        in.push_back(x);
    }
    for (std::size_t i = in.size(); i > 0; --i) {
        in.push_back(-in[i - 1]);
    }
    for (const Instructions instructions : available_instructions()) {
        const auto out = run(network, in, instructions);
        for (std::size_t i = 0; i < in.size(); ++i) {
            const auto exact = static_cast<float>(std::tanh(static_cast<double>(in[i])));
            const std::int64_t bits = std::bit_cast<std::int32_t>(out[i]);
            const std::int64_t apart = std::abs(bits - std::bit_cast<std::int32_t>(exact));
            CHECK_MESSAGE((out[i] == exact || apart <= 1), "tanh of ", in[i]);
        }
    }
}

TEST_CASE("functions with powers of e are the floats next to the true ones") {
    struct Case {
        Pointwise function;
        std::vector<float> constants;
        double (*exact)(double);
    };
    const std::vector<Case> cases = {
        {Pointwise::gelu, {}, [](double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }},
        {Pointwise::gelu_tanh,
         {},
         [](double x) {
             return x /
                    (1.0 + std::exp(-2.0 * std::sqrt(2.0 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
         }},
        {Pointwise::silu, {}, [](double x) { return x / (1.0 + std::exp(-x)); }},
        {Pointwise::elu, {0.5F}, [](double x) { return x < 0.0 ? 0.5 * std::expm1(x) : x; }},
    };
    std::vector<float> in = {0.0F, 1e-30F, 1e-6F, 90.0F, 700.0F, 1e30F};
    for (float x = 1e-4F; x < 80.0F; x *= 1.003F) {
        in.push_back(x);
    }
    for (std::size_t i = in.size(); i > 0; --i) {
        in.push_back(-in[i - 1]);
    }
    for (const Case& each : cases) {
        Network network(1);
        network.add_pointwise(each.function, each.constants);
        for (const Instructions instructions : available_instructions()) {
            const auto out = run(network, in, instructions);
            for (std::size_t i = 0; i < in.size(); ++i) {
                const double exact = each.exact(static_cast<double>(in[i]));
                const double apart = std::abs(static_cast<double>(out[i]) - exact);
                CHECK_MESSAGE(apart <= 1e-7 * std::abs(exact) + 1e-15, "function ",
                              static_cast<int>(each.function), " of ", in[i]);
            }
        }
    }
}

TEST_CASE("a normalized row has mean 0 and variance 1, whatever its width, then its weight and bias") {
    for (const Instructions instructions : available_instructions()) {
        for (const std::size_t width : {std::size_t{2}, std::size_t{8}, std::size_t{37}}) {
            const auto in = some(width * 5);
            const auto weight = some(width);
            const auto bias = some(width);
            Network network(width);
            network.add_layer_norm(weight, bias, 0.25);
            Network plain(width);
            plain.add_layer_norm({}, {}, 0.25);
            const auto out = run(network, in, instructions);
            const auto normal = run(plain, in, instructions);
            for (std::size_t row = 0; row < 5; ++row) {
                const auto at = [&](std::size_t i) { return static_cast<double>(in[row * width + i]); };
                double mean = 0.0;
                double variance = 0.0;
                for (std::size_t i = 0; i < width; ++i) {
                    mean += at(i) / static_cast<double>(width);
                }
                for (std::size_t i = 0; i < width; ++i) {
                    variance += (at(i) - mean) * (at(i) - mean) / static_cast<double>(width);
                }
                for (std::size_t i = 0; i < width; ++i) {
                    const double exact = (at(i) - mean) / std::sqrt(variance + 0.25);
                    const double scaled =
                        exact * static_cast<double>(weight[i]) + static_cast<double>(bias[i]);
                    CHECK(static_cast<double>(normal[row * width + i]) ==
                          doctest::Approx(exact).epsilon(1e-6));
                    CHECK(static_cast<double>(out[row * width + i]) == doctest::Approx(scaled).epsilon(1e-5));
                }
            }
        }
    }
}

TEST_CASE("what was kept is added again, in the order of brackets") {
    const std::vector<float> weight = {2, 0, 0, 3};
    const std::vector<float> one = {1};
    Network network(2);
    network.keep();
    network.add_linear(rows_of(weight, 2), {});
    network.keep();
    network.add_pointwise(Pointwise::add, one);
    network.add_kept();
    network.add_kept();
    network.keep();
    network.add_kept();
    std::vector<float> in;
    std::vector<float> expected;
    for (int row = 0; row < 40; ++row) {
        const auto x = static_cast<float>(row);
        in.insert(in.end(), {x, -x});
        expected.insert(expected.end(), {2 * (5 * x + 1), 2 * (-7 * x + 1)});
    }
    for (const Instructions instructions : available_instructions()) {
        CHECK(run(network, in, instructions) == expected);
    }
}

TEST_CASE("functions of every number, with one constant or one for each column") {
    const std::vector<float> in = {-3, 0.5, 4, 1, -1, 2};
    const std::vector<float> columns = {1, 2, 4};
    const std::vector<float> one = {2};
    const auto of = [&](Pointwise function, std::span<const float> constants) {
        Network network(3);
        network.add_pointwise(function, constants);
        return run(network, in, available_instructions().back());
    };
    CHECK(of(Pointwise::relu, {}) == std::vector<float>{0, 0.5, 4, 1, 0, 2});
    CHECK(of(Pointwise::add, columns) == std::vector<float>{-2, 2.5, 8, 2, 1, 6});
    CHECK(of(Pointwise::subtract, one) == std::vector<float>{-5, -1.5, 2, -1, -3, 0});
    CHECK(of(Pointwise::multiply, columns) == std::vector<float>{-3, 1, 16, 1, -2, 8});
    CHECK(of(Pointwise::divide, columns) == std::vector<float>{-3, 0.25, 1, 1, -0.5, 0.5});
    CHECK(of(Pointwise::maximum, one) == std::vector<float>{2, 2, 4, 2, 2, 2});
    CHECK(of(Pointwise::leaky_relu, columns) == std::vector<float>{-3, 0.5, 4, 1, -2, 2});
    CHECK(of(Pointwise::minimum, columns) == std::vector<float>{-3, 0.5, 4, 1, -1, 2});
    CHECK(static_cast<double>(of(Pointwise::sigmoid, {})[1]) == doctest::Approx(0.6224593));
}

TEST_CASE("NaN stays NaN in every function") {
    const std::vector<float> one = {2};
    for (const auto function :
         {Pointwise::tanh, Pointwise::relu, Pointwise::sigmoid, Pointwise::gelu, Pointwise::gelu_tanh,
          Pointwise::silu, Pointwise::elu, Pointwise::leaky_relu, Pointwise::maximum, Pointwise::minimum}) {
        Network network(1);
        network.add_pointwise(function, function < Pointwise::elu ? std::span<const float>{} : one);
        for (const Instructions instructions : available_instructions()) {
            CHECK(std::isnan(run(network, {std::numeric_limits<float>::quiet_NaN()}, instructions)[0]));
        }
    }
}

TEST_CASE("sizes that do not fit are refused") {
    CHECK_THROWS_AS(Network(0), std::invalid_argument);
    Network network(3);
    const std::vector<float> values(6);
    CHECK_THROWS_AS(network.add_linear(rows_of(values, 3), {}), std::invalid_argument);
    CHECK_THROWS_AS(network.add_linear(rows_of(values, 2), values), std::invalid_argument);
    CHECK_THROWS_AS(network.add_pointwise(Pointwise::add, {}), std::invalid_argument);
    CHECK_THROWS_AS(network.add_pointwise(Pointwise::tanh, values), std::invalid_argument);
    CHECK_THROWS_AS(network.add_layer_norm(values, {}, 1e-5), std::invalid_argument);
    CHECK_THROWS_AS(network.add_layer_norm({}, values, 1e-5), std::invalid_argument);
    CHECK_THROWS_AS(network.add_layer_norm({}, {}, 0.0), std::invalid_argument);
    CHECK_THROWS_AS(network.add_layer_norm({}, {}, std::nan("")), std::invalid_argument);
    CHECK_THROWS_AS(network.add_kept(), std::invalid_argument);
    network.keep();
    network.add_linear(rows_of(values, 2), {});
    CHECK_THROWS_AS(network.add_kept(), std::invalid_argument);
    std::vector<float> out(6);
    CHECK_THROWS_AS(network.run(rows_of(values, 2), {out, 3, 2}), std::invalid_argument);
}
