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
    CHECK(of(Pointwise::minimum, columns) == std::vector<float>{-3, 0.5, 4, 1, -1, 2});
    CHECK(static_cast<double>(of(Pointwise::sigmoid, {})[1]) == doctest::Approx(0.6224593));
}

TEST_CASE("NaN stays NaN in every function") {
    const std::vector<float> one = {2};
    for (const auto function :
         {Pointwise::tanh, Pointwise::relu, Pointwise::sigmoid, Pointwise::maximum, Pointwise::minimum}) {
        Network network(1);
        network.add_pointwise(function, function < Pointwise::add ? std::span<const float>{} : one);
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
    std::vector<float> out(6);
    CHECK_THROWS_AS(network.run(rows_of(values, 2), {out, 3, 2}), std::invalid_argument);
}
