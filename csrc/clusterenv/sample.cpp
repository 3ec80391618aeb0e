#include "clusterenv/sample.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "clusterenv/density.hpp"
#include "clusterenv/philox.hpp"

namespace clusterenv {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

[[noreturn]] void refuse(const char* name, std::size_t row, const char* reason) {
    throw std::invalid_argument(std::string(name) + "[" + std::to_string(row) + "] " + reason);
}

void check_keys(const NoiseKeys& keys, std::size_t rows, std::size_t dims) {
    require(keys.env_ids.size() == rows, "env_ids does not have one id for each row of params");
    require(keys.steps.size() == rows, "steps does not have one number for each row of params");
    require(dims / 2 < kMaxBlocks, "params has more dimensions than the generator has numbers for");
    for (std::size_t i = 0; i < rows; ++i) {
        if (keys.env_ids[i] < 0 || keys.env_ids[i] > std::numeric_limits<std::uint32_t>::max()) {
            refuse("env_ids", i, "is not from 0 to below 2**32");
        }
        if (keys.steps[i] < 0) {
            refuse("steps", i, "is negative");
        }
    }
}

PhiloxBlock noise_block(const NoiseKeys& keys, std::size_t row, std::size_t block) {
    return philox(counter_of(Purpose::action, static_cast<std::uint32_t>(keys.env_ids[row]),
                             static_cast<std::uint64_t>(keys.steps[row]), static_cast<std::uint32_t>(block)),
                  keys.seed);
}

double uniform(const NoiseKeys& keys, std::size_t row, std::size_t dim) {
    return unit(word(noise_block(keys, row, dim / 2), dim % 2));
}

/// Two independent standard normal numbers (Box and Muller).
std::array<double, 2> normal_pair(const PhiloxBlock& block) {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - unit(word(block, 0))));
    const double angle = 2.0 * std::numbers::pi * unit(word(block, 1));
    return {radius * std::cos(angle), radius * std::sin(angle)};
}

/// Calls `visit(k, logits)` for each categorical of a row.
template <typename Visit>
void for_each_part(std::span<const float> row, std::span<const std::size_t> sizes, Visit visit) {
    std::size_t start = 0;
    for (std::size_t k = 0; k < sizes.size(); ++k) {
        visit(k, row.subspan(start, sizes[k]));
        start += sizes[k];
    }
}

void check_categorical(MatrixView<const float> params, std::span<const std::size_t> sizes) {
    require(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}) == params.cols(),
            "sizes does not sum to the columns of params");
    for (std::size_t i = 0; i < params.rows(); ++i) {
        for_each_part(params.row(i), sizes, [i](std::size_t, std::span<const float> logits) {
            if (!std::ranges::all_of(logits, [](float logit) { return logit < kInfinity; })) {
                refuse("params", i, "has a logit that is NaN or +inf");
            }
            if (!std::ranges::any_of(logits, [](float logit) { return logit > -kInfinity; })) {
                refuse("params", i, "has only logits of -inf, so no action is possible");
            }
        });
    }
}

void check_bernoulli(MatrixView<const float> params) {
    for (std::size_t i = 0; i < params.rows(); ++i) {
        if (std::ranges::any_of(params.row(i), [](float logit) { return std::isnan(logit); })) {
            refuse("params", i, "has a logit that is NaN");
        }
    }
}

void check_gaussian(MatrixView<const float> params) {
    require(params.cols() % 2 == 0,
            "params has an odd number of columns; expected means and log standard deviations");
    for (std::size_t i = 0; i < params.rows(); ++i) {
        if (!std::ranges::all_of(params.row(i), [](float value) { return std::isfinite(value); })) {
            refuse("params", i, "has a mean or log standard deviation that is not finite");
        }
    }
}

/// An index by inverse distribution function, and its log-probability.
struct Choice {
    std::size_t index;
    double log_prob;
};

Choice choose(std::span<const float> logits, double random, std::vector<double>& weights) {
    const double peak = *std::ranges::max_element(logits);
    double total = 0.0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        weights[i] = std::exp(logits[i] - peak);
        total += weights[i];
    }
    // `random` is below 1 and the sums below are those above again, so the last of them exceeds the
    // threshold; an outcome of weight 0 leaves the sum as it is, so that it is never the one at which the
    // threshold is passed.
    const double threshold = random * total;
    std::size_t index = 0;
    double sum = weights[0];
    while (!(sum > threshold) && index + 1 < logits.size()) {
        ++index;
        sum += weights[index];
    }
    return {index, logits[index] - peak - std::log(total)};
}

double gaussian_row_log_prob(std::span<const float> params, std::span<const float> actions) {
    const std::size_t dims = actions.size();
    double total = 0.0;
    for (std::size_t d = 0; d < dims; ++d) {
        total += gaussian_log_prob(actions[d], params[d], params[dims + d]);
    }
    return total;
}

/// `dims` numbers of each row's action and one log-probability, for as many rows as `params` has.
template <typename T>
void check_shapes(MatrixView<const float> params, MatrixView<T> actions, std::size_t dims,
                  std::span<float> log_probs) {
    require(actions.rows() == params.rows() && actions.cols() == dims,
            "actions does not have the rows of params and the columns of the family");
    require(log_probs.size() == params.rows(), "log_probs does not have one number for each row of params");
}

}  // namespace

void sample_categorical(MatrixView<const float> params, std::span<const std::size_t> sizes,
                        const NoiseKeys& keys, MatrixView<std::int64_t> actions, std::span<float> log_probs) {
    check_shapes(params, actions, sizes.size(), log_probs);
    check_keys(keys, params.rows(), sizes.size());
    check_categorical(params, sizes);
    std::vector<double> weights(params.cols());
    for (std::size_t i = 0; i < params.rows(); ++i) {
        double total = 0.0;
        for_each_part(params.row(i), sizes, [&](std::size_t k, std::span<const float> logits) {
            const Choice choice = choose(logits, uniform(keys, i, k), weights);
            actions.row(i)[k] = static_cast<std::int64_t>(choice.index);
            total += choice.log_prob;
        });
        log_probs[i] = static_cast<float>(total);
    }
}

void log_prob_categorical(MatrixView<const float> params, std::span<const std::size_t> sizes,
                          MatrixView<const std::int64_t> actions, std::span<float> log_probs) {
    check_shapes(params, actions, sizes.size(), log_probs);
    check_categorical(params, sizes);
    for (std::size_t i = 0; i < params.rows(); ++i) {
        for (std::size_t k = 0; k < sizes.size(); ++k) {
            if (!std::in_range<std::size_t>(actions.row(i)[k]) ||
                static_cast<std::size_t>(actions.row(i)[k]) >= sizes[k]) {
                refuse("actions", i, "has an index outside its categorical");
            }
        }
    }
    for (std::size_t i = 0; i < params.rows(); ++i) {
        double total = 0.0;
        for_each_part(params.row(i), sizes, [&](std::size_t k, std::span<const float> logits) {
            const float logit = logits[static_cast<std::size_t>(actions.row(i)[k])];
            total += LogNormalizer<float>(logits).log_prob(logit);
        });
        log_probs[i] = static_cast<float>(total);
    }
}

void sample_bernoulli(MatrixView<const float> params, const NoiseKeys& keys, MatrixView<std::int8_t> actions,
                      std::span<float> log_probs) {
    check_shapes(params, actions, params.cols(), log_probs);
    check_keys(keys, params.rows(), params.cols());
    check_bernoulli(params);
    for (std::size_t i = 0; i < params.rows(); ++i) {
        double total = 0.0;
        for (std::size_t k = 0; k < params.cols(); ++k) {
            const double logit = params.row(i)[k];
            const bool one = uniform(keys, i, k) < 1.0 / (1.0 + std::exp(-logit));
            actions.row(i)[k] = one ? 1 : 0;
            total += log_sigmoid(one ? logit : -logit);
        }
        log_probs[i] = static_cast<float>(total);
    }
}

void log_prob_bernoulli(MatrixView<const float> params, MatrixView<const std::int8_t> actions,
                        std::span<float> log_probs) {
    check_shapes(params, actions, params.cols(), log_probs);
    check_bernoulli(params);
    for (std::size_t i = 0; i < params.rows(); ++i) {
        if (!std::ranges::all_of(actions.row(i), [](std::int8_t bit) { return bit == 0 || bit == 1; })) {
            refuse("actions", i, "has a value other than 0 and 1");
        }
    }
    for (std::size_t i = 0; i < params.rows(); ++i) {
        double total = 0.0;
        for (std::size_t k = 0; k < params.cols(); ++k) {
            const double logit = params.row(i)[k];
            total += log_sigmoid(actions.row(i)[k] == 1 ? logit : -logit);
        }
        log_probs[i] = static_cast<float>(total);
    }
}

void sample_diag_gaussian(MatrixView<const float> params, const NoiseKeys& keys, MatrixView<float> actions,
                          std::span<float> log_probs) {
    const std::size_t dims = params.cols() / 2;
    check_shapes(params, actions, dims, log_probs);
    check_keys(keys, params.rows(), dims);
    check_gaussian(params);
    for (std::size_t i = 0; i < params.rows(); ++i) {
        const std::span<const float> row = params.row(i);
        std::array<double, 2> noise{};
        for (std::size_t d = 0; d < dims; ++d) {
            if (d % 2 == 0) {
                noise = normal_pair(noise_block(keys, i, d / 2));
            }
            actions.row(i)[d] = static_cast<float>(row[d] + std::exp(double{row[dims + d]}) * noise[d % 2]);
        }
        log_probs[i] = static_cast<float>(gaussian_row_log_prob(row, actions.row(i)));
    }
}

void log_prob_diag_gaussian(MatrixView<const float> params, MatrixView<const float> actions,
                            std::span<float> log_probs) {
    check_shapes(params, actions, params.cols() / 2, log_probs);
    check_gaussian(params);
    for (std::size_t i = 0; i < params.rows(); ++i) {
        log_probs[i] = static_cast<float>(gaussian_row_log_prob(params.row(i), actions.row(i)));
    }
}

}  // namespace clusterenv
