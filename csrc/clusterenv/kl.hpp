// Divergences between action distributions, one number for each row of parameters, in nats.
#pragma once

#include <cstddef>
#include <span>

#include "clusterenv/views.hpp"

namespace clusterenv {

/// KL(p || q) of independent categoricals with `sizes[k]` logits each, side by side in a row.
///
/// Computed in double. Equal rows give exactly 0. An outcome that p never takes counts 0; one that only p
/// takes gives +inf, and so does a row without any possible outcome. NaN comes of NaN and +inf alone.
template <typename T>
void kl_categorical(MatrixView<const T> p, MatrixView<const T> q, std::span<const std::size_t> sizes,
                    std::span<double> out);

/// KL(p || q) of independent Bernoullis given by logits. Infinite logits are certainties.
template <typename T>
void kl_bernoulli(MatrixView<const T> p, MatrixView<const T> q, std::span<double> out);

/// KL(p || q) of diagonal Gaussians; a row holds all means, then all log standard deviations.
template <typename T>
void kl_diag_gaussian(MatrixView<const T> p, MatrixView<const T> q, std::span<double> out);

/// (r - 1) - log r with r = target / behaviour: an estimate of KL(behaviour || target) for actions that the
/// behaviour policy drew. Never negative; the mean over many is unbiased.
template <typename T>
void k3(std::span<const T> behaviour_log_probs, std::span<const T> target_log_probs, std::span<double> out);

}  // namespace clusterenv
