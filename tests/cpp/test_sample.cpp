#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "clusterenv/sample.hpp"

using namespace clusterenv;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Env ids 0, 1, ... at one step.
struct Keys {
    std::vector<std::int64_t> env_ids;
    std::vector<std::int64_t> steps;

    explicit Keys(std::size_t rows, std::int64_t step = 0) : env_ids(rows), steps(rows, step) {
        std::iota(env_ids.begin(), env_ids.end(), 0);
    }
    NoiseKeys of(std::uint64_t seed) const { return {seed, env_ids, steps}; }
};

std::vector<float> repeated(const std::vector<float>& row, std::size_t times) {
    std::vector<float> rows;
    for (std::size_t i = 0; i < times; ++i) {
        rows.insert(rows.end(), row.begin(), row.end());
    }
    return rows;
}

}  // namespace

TEST_CASE("categoricals are drawn in proportion and masked outcomes never") {
    constexpr std::size_t rows = 20000;
    const auto params = repeated({std::log(0.5F), -kInf, std::log(0.2F), std::log(0.3F), 0.0F, -kInf}, rows);
    const std::array<std::size_t, 2> sizes{4, 2};
    std::vector<std::int64_t> actions(2 * rows);
    std::vector<float> log_probs(rows);
    sample_categorical({params, rows, 6}, sizes, Keys(rows).of(5), {actions, rows, 2}, log_probs);
    std::array<double, 4> seen{};
    for (std::size_t i = 0; i < rows; ++i) {
        seen[static_cast<std::size_t>(actions[2 * i])] += 1.0 / rows;
        CHECK(actions[2 * i + 1] == 0);
        CHECK(log_probs[i] == doctest::Approx(params[static_cast<std::size_t>(actions[2 * i])]));
    }
    CHECK(seen[0] == doctest::Approx(0.5).epsilon(0.03));
    CHECK(seen[1] == 0.0);
    CHECK(seen[2] == doctest::Approx(0.2).epsilon(0.05));
    CHECK(seen[3] == doctest::Approx(0.3).epsilon(0.05));
}

TEST_CASE("bits are drawn in proportion and certain ones always") {
    constexpr std::size_t rows = 20000;
    const auto params = repeated({std::log(3.0F), kInf, -kInf}, rows);
    std::vector<std::int8_t> actions(3 * rows);
    std::vector<float> log_probs(rows);
    sample_bernoulli({params, rows, 3}, Keys(rows).of(5), {actions, rows, 3}, log_probs);
    double ones = 0.0;
    for (std::size_t i = 0; i < rows; ++i) {
        ones += actions[3 * i];
        CHECK(actions[3 * i + 1] == 1);
        CHECK(actions[3 * i + 2] == 0);
        CHECK(log_probs[i] == doctest::Approx(std::log(actions[3 * i] == 1 ? 0.75 : 0.25)));
    }
    CHECK(ones / rows == doctest::Approx(0.75).epsilon(0.02));
}

TEST_CASE("Gaussians have their mean and deviation, and no correlation within a pair") {
    constexpr std::size_t rows = 20000;
    const auto params = repeated({2.0F, -1.0F, 0.0F, std::log(0.5F), 0.0F, 0.0F}, rows);
    std::vector<float> actions(3 * rows);
    std::vector<float> log_probs(rows);
    std::vector<float> again(rows);
    sample_diag_gaussian({params, rows, 6}, Keys(rows).of(5), {actions, rows, 3}, log_probs);
    log_prob_diag_gaussian({params, rows, 6}, {actions, rows, 3}, again);
    CHECK(again == log_probs);
    double mean = 0.0;
    double square = 0.0;
    double product = 0.0;
    for (std::size_t i = 0; i < rows; ++i) {
        const double first = (actions[3 * i] - 2.0) / 0.5;
        mean += first / rows;
        square += first * first / rows;
        product += first * (actions[3 * i + 1] + 1.0) / rows;
    }
    CHECK(std::abs(mean) < 0.03);
    CHECK(square == doctest::Approx(1.0).epsilon(0.05));
    CHECK(std::abs(product) < 0.03);
}

TEST_CASE("what is drawn for a row does not depend on the others") {
    const auto params = repeated({0.1F, -0.3F, 0.2F, 0.4F}, 8);
    const Keys keys(8, 1LL << 40U);
    std::vector<float> together(16);
    std::vector<float> log_probs(8);
    sample_diag_gaussian({params, 8, 4}, keys.of(1), {together, 8, 2}, log_probs);
    for (std::size_t i = 0; i < 8; ++i) {
        std::array<float, 2> alone{};
        std::array<float, 1> log_prob{};
        const NoiseKeys key{1, {&keys.env_ids[i], 1}, {&keys.steps[i], 1}};
        sample_diag_gaussian({{params.data(), 4}, 1, 4}, key, {alone, 1, 2}, log_prob);
        CHECK(alone == std::array<float, 2>{together[2 * i], together[2 * i + 1]});
        CHECK(log_prob[0] == log_probs[i]);
    }
}

TEST_CASE("a row that is no distribution is named and nothing is written") {
    const std::array<std::size_t, 1> sizes{2};
    std::vector<std::int64_t> actions(2, -7);
    std::vector<float> log_probs(2, -7.0F);
    const Keys keys(2);
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInf, -kInf}) {
        const std::vector<float> params{0.0F, 0.0F, -kInf, bad};
        CHECK_THROWS_WITH_AS(
            sample_categorical({params, 2, 2}, sizes, keys.of(1), {actions, 2, 1}, log_probs),
            doctest::Contains("params[1] has"), std::invalid_argument);
    }
    std::vector<float> reals(2, -7.0F);
    const std::vector<float> params{0.0F, 0.0F, 0.0F, kInf};
    CHECK_THROWS_WITH_AS(sample_diag_gaussian({params, 2, 2}, keys.of(1), {reals, 2, 1}, log_probs),
                         doctest::Contains("params[1] has"), std::invalid_argument);
    CHECK(actions == std::vector<std::int64_t>(2, -7));
    CHECK(reals == std::vector<float>(2, -7.0F));
    CHECK(log_probs == std::vector<float>(2, -7.0F));
}

TEST_CASE("keys out of range and actions that cannot be are refused") {
    const std::vector<float> params(4, 0.0F);
    std::vector<std::int8_t> bits(4);
    std::vector<float> log_probs(2, -7.0F);
    Keys keys(2);
    keys.env_ids[1] = 1LL << 32U;
    CHECK_THROWS_WITH_AS(sample_bernoulli({params, 2, 2}, keys.of(1), {bits, 2, 2}, log_probs),
                         doctest::Contains("env_ids[1]"), std::invalid_argument);
    keys = Keys(2, -1);
    CHECK_THROWS_WITH_AS(sample_bernoulli({params, 2, 2}, keys.of(1), {bits, 2, 2}, log_probs),
                         doctest::Contains("steps[0]"), std::invalid_argument);
    const std::vector<std::int8_t> two(4, 2);
    CHECK_THROWS_WITH_AS(log_prob_bernoulli({params, 2, 2}, {two, 2, 2}, log_probs),
                         doctest::Contains("actions[0]"), std::invalid_argument);
    const std::array<std::size_t, 1> sizes{2};
    for (const std::int64_t bad : {-1, 2}) {
        const std::vector<std::int64_t> indices{0, bad};
        CHECK_THROWS_WITH_AS(log_prob_categorical({params, 2, 2}, sizes, {indices, 2, 1}, log_probs),
                             doctest::Contains("actions[1]"), std::invalid_argument);
    }
    CHECK(log_probs == std::vector<float>(2, -7.0F));
}
