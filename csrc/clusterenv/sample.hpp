// Actions drawn from the flat parameters of a policy's distribution, with their log-probabilities.
//
// The noise of a row is a pure function of (seed, env id, step, dimension): neither the other rows of a batch
// nor their order change what is drawn. All rows are checked before anything is written; a row that is no
// distribution (NaN, nothing possible, a Gaussian that is not finite) is named in a std::invalid_argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "clusterenv/views.hpp"

namespace clusterenv {

/// What the noise of each row depends on; env ids are from 0 to below 2^32, steps from 0.
struct NoiseKeys {
    std::uint64_t seed;
    std::span<const std::int64_t> env_ids;
    std::span<const std::int64_t> steps;
};

/// Indices [n, number of sizes] from categoricals whose logits lie side by side; -inf is never drawn.
void sample_categorical(MatrixView<const float> params, std::span<const std::size_t> sizes,
                        const NoiseKeys& keys, MatrixView<std::int64_t> actions, std::span<float> log_probs);

/// Zeros and ones [n, K] from K logits.
void sample_bernoulli(MatrixView<const float> params, const NoiseKeys& keys, MatrixView<std::int8_t> actions,
                      std::span<float> log_probs);

/// Reals [n, D] from D means and D log standard deviations; the log-density is that of the rounded action.
void sample_diag_gaussian(MatrixView<const float> params, const NoiseKeys& keys, MatrixView<float> actions,
                          std::span<float> log_probs);

/// Log-probability of given indices; std::invalid_argument where one is not below its size.
void log_prob_categorical(MatrixView<const float> params, std::span<const std::size_t> sizes,
                          MatrixView<const std::int64_t> actions, std::span<float> log_probs);

/// Log-probability of given zeros and ones; std::invalid_argument where one is something else.
void log_prob_bernoulli(MatrixView<const float> params, MatrixView<const std::int8_t> actions,
                        std::span<float> log_probs);

/// Log-density of given reals.
void log_prob_diag_gaussian(MatrixView<const float> params, MatrixView<const float> actions,
                            std::span<float> log_probs);

}  // namespace clusterenv
