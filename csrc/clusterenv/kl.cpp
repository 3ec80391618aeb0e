#include "clusterenv/kl.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "clusterenv/density.hpp"

namespace clusterenv {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Rounding can leave a sum of a divergence a hair below 0; NaN stays NaN.
double not_negative(double divergence) {
    return divergence < 0.0 ? 0.0 : divergence;
}

/// p * (log p - log q), with the limits that make it a number where p is 0.
double weighted_difference(double log_p, double log_q) {
    const double p = std::exp(log_p);
    return p == 0.0 ? 0.0 : p * (log_p - log_q);
}

template <typename T>
double categorical_row(std::span<const T> p, std::span<const T> q) {
    if (std::equal(p.begin(), p.end(), q.begin())) {
        return 0.0;
    }
    const LogNormalizer<T> norm_p(p);
    const LogNormalizer<T> norm_q(q);
    if (norm_p.impossible() || norm_q.impossible()) {
        return kInfinity;
    }
    double total = 0.0;
    for (std::size_t i = 0; i < p.size(); ++i) {
        total += weighted_difference(norm_p.log_prob(p[i]), norm_q.log_prob(q[i]));
    }
    return not_negative(total);
}

double bernoulli_term(double p, double q) {
    if (p == q) {
        return 0.0;
    }
    return not_negative(weighted_difference(log_sigmoid(p), log_sigmoid(q)) +
                        weighted_difference(log_sigmoid(-p), log_sigmoid(-q)));
}

double gaussian_term(double mean_p, double log_std_p, double mean_q, double log_std_q) {
    // expm1 keeps small divergences exact; the equal cases keep inf - inf and 0 * inf out of it.
    const double log_ratio = log_std_p == log_std_q ? 0.0 : log_std_p - log_std_q;
    if (log_ratio == kInfinity) {
        return kInfinity;
    }
    const double shift = mean_p == mean_q ? 0.0 : (mean_p - mean_q) * std::exp(-log_std_q);
    return not_negative(0.5 * std::expm1(2.0 * log_ratio) - log_ratio + 0.5 * shift * shift);
}

double k3_term(double behaviour, double target) {
    if (behaviour == target) {
        return 0.0;
    }
    const double log_ratio = target - behaviour;
    return log_ratio == kInfinity ? kInfinity : not_negative(std::expm1(log_ratio) - log_ratio);
}

template <typename T>
void check_shapes(MatrixView<const T> p, MatrixView<const T> q, std::span<double> out) {
    require(p.rows() == q.rows() && p.cols() == q.cols(), "q does not have the shape of p");
    require(out.size() == p.rows(), "out does not have one number for each row of p");
}

}  // namespace

template <typename T>
void kl_categorical(MatrixView<const T> p, MatrixView<const T> q, std::span<const std::size_t> sizes,
                    std::span<double> out) {
    check_shapes(p, q, out);
    require(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}) == p.cols(),
            "sizes does not sum to the columns of p");
    for (std::size_t i = 0; i < out.size(); ++i) {
        double total = 0.0;
        std::size_t start = 0;
        for (const std::size_t size : sizes) {
            total += categorical_row(p.row(i).subspan(start, size), q.row(i).subspan(start, size));
            start += size;
        }
        out[i] = total;
    }
}

template <typename T>
void kl_bernoulli(MatrixView<const T> p, MatrixView<const T> q, std::span<double> out) {
    check_shapes(p, q, out);
    for (std::size_t i = 0; i < out.size(); ++i) {
        double total = 0.0;
        for (std::size_t k = 0; k < p.cols(); ++k) {
            total += bernoulli_term(p.row(i)[k], q.row(i)[k]);
        }
        out[i] = total;
    }
}

template <typename T>
void kl_diag_gaussian(MatrixView<const T> p, MatrixView<const T> q, std::span<double> out) {
    check_shapes(p, q, out);
    require(p.cols() % 2 == 0, "p has an odd number of columns; expected means and log standard deviations");
    const std::size_t dims = p.cols() / 2;
    for (std::size_t i = 0; i < out.size(); ++i) {
        double total = 0.0;
        for (std::size_t d = 0; d < dims; ++d) {
            total += gaussian_term(p.row(i)[d], p.row(i)[dims + d], q.row(i)[d], q.row(i)[dims + d]);
        }
        out[i] = total;
    }
}

template <typename T>
void k3(std::span<const T> behaviour_log_probs, std::span<const T> target_log_probs, std::span<double> out) {
    require(behaviour_log_probs.size() == out.size(), "behaviour_log_probs does not have the length of out");
    require(target_log_probs.size() == out.size(), "target_log_probs does not have the length of out");
    for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = k3_term(behaviour_log_probs[i], target_log_probs[i]);
    }
}

template void kl_categorical(MatrixView<const float>, MatrixView<const float>, std::span<const std::size_t>,
                             std::span<double>);
template void kl_categorical(MatrixView<const double>, MatrixView<const double>, std::span<const std::size_t>,
                             std::span<double>);
template void kl_bernoulli(MatrixView<const float>, MatrixView<const float>, std::span<double>);
template void kl_bernoulli(MatrixView<const double>, MatrixView<const double>, std::span<double>);
template void kl_diag_gaussian(MatrixView<const float>, MatrixView<const float>, std::span<double>);
template void kl_diag_gaussian(MatrixView<const double>, MatrixView<const double>, std::span<double>);
template void k3(std::span<const float>, std::span<const float>, std::span<double>);
template void k3(std::span<const double>, std::span<const double>, std::span<double>);

}  // namespace clusterenv
