// Log-probabilities of one distribution: shared, so that divergences and samplers mean the same.
#pragma once

#include <cmath>
#include <limits>
#include <span>

namespace clusterenv {

/// log(sigmoid(logit)), exact to the ends: 0 at +inf, -inf at -inf.
inline double log_sigmoid(double logit) {
    return logit >= 0.0 ? -std::log1p(std::exp(-logit)) : logit - std::log1p(std::exp(logit));
}

/// The log-softmax of a row of logits, in double; -inf masks an outcome.
template <typename T>
class LogNormalizer {
  public:
    explicit LogNormalizer(std::span<const T> logits) {
        for (const T logit : logits) {
            peak_ = static_cast<double>(logit) > peak_ ? static_cast<double>(logit) : peak_;
        }
        double total = 0.0;
        for (const T logit : logits) {
            total += std::exp(static_cast<double>(logit) - peak_);
        }
        log_total_ = std::log(total);
    }

    /// No outcome can happen: every logit is -inf.
    bool impossible() const { return peak_ == -std::numeric_limits<double>::infinity(); }
    double log_prob(T logit) const { return static_cast<double>(logit) - peak_ - log_total_; }

  private:
    double peak_ = -std::numeric_limits<double>::infinity();
    double log_total_ = 0.0;
};

/// log N(action; mean, exp(log_std)).
inline double gaussian_log_prob(double action, double mean, double log_std) {
    constexpr double kLogRootTwoPi = 0.91893853320467274178;
    const double z = (action - mean) * std::exp(-log_std);
    return -0.5 * z * z - log_std - kLogRootTwoPi;
}

}  // namespace clusterenv
