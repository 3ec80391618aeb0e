#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "clusterenv/kl.hpp"

using namespace clusterenv;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

MatrixView<const double> one_row(const std::vector<double>& values) {
    return {values, 1, values.size()};
}

double categorical(const std::vector<double>& p, const std::vector<double>& q) {
    const std::array<std::size_t, 1> sizes{p.size()};
    std::array<double, 1> out{};
    kl_categorical<double>(one_row(p), one_row(q), sizes, out);
    return out[0];
}

double bernoulli(double p, double q) {
    const std::vector<double> a{p};
    const std::vector<double> b{q};
    std::array<double, 1> out{};
    kl_bernoulli<double>(one_row(a), one_row(b), out);
    return out[0];
}

double gaussian(const std::vector<double>& p, const std::vector<double>& q) {
    std::array<double, 1> out{};
    kl_diag_gaussian<double>(one_row(p), one_row(q), out);
    return out[0];
}

double sampled(double behaviour, double target) {
    const std::array<double, 1> a{behaviour};
    const std::array<double, 1> b{target};
    std::array<double, 1> out{};
    k3<double>(a, b, out);
    return out[0];
}

}  // namespace

TEST_CASE("categorical divergences are the textbook's") {
    const std::vector<double> half{std::log(0.5), std::log(0.5)};
    const std::vector<double> most{std::log(0.9), std::log(0.1)};
    CHECK(categorical(half, most) == doctest::Approx(0.5108256).epsilon(1e-7));
    CHECK(categorical(most, half) == doctest::Approx(0.3680642).epsilon(1e-7));
    CHECK(categorical(half, half) == 0.0);
    CHECK(categorical({3.0, 3.0}, half) == doctest::Approx(0.0).epsilon(1e-15));
}

TEST_CASE("extreme and masked logits give numbers or +inf") {
    CHECK(categorical({1e4, -1e4}, {-1e4, 1e4}) == doctest::Approx(2e4));
    CHECK(categorical({0.0, -kInf}, {0.0, -kInf}) == 0.0);
    CHECK(categorical({0.0, -kInf}, {0.0, 0.0}) == doctest::Approx(std::log(2.0)));
    CHECK(categorical({0.0, 0.0}, {0.0, -kInf}) == kInf);
    CHECK(categorical({-kInf, -kInf}, {0.0, 0.0}) == kInf);
    CHECK(categorical({0.0, 0.0}, {-kInf, -kInf}) == kInf);
    CHECK(categorical({-kInf, -kInf}, {-kInf, -kInf}) == 0.0);
    CHECK(std::isnan(categorical({kNan, 0.0}, {0.0, 0.0})));
    CHECK(bernoulli(kInf, kInf) == 0.0);
    CHECK(bernoulli(kInf, 0.0) == doctest::Approx(std::log(2.0)));
    CHECK(bernoulli(0.0, -kInf) == kInf);
    CHECK(bernoulli(1e4, -1e4) == doctest::Approx(1e4));
}

TEST_CASE("Gaussian divergences are the textbook's, and numbers at the ends") {
    CHECK(gaussian({0.0, 0.0}, {1.0, std::log(2.0)}) == doctest::Approx(0.4431472).epsilon(1e-7));
    CHECK(gaussian({0.0, 1.0, 0.0, std::log(0.5)}, {1.0, 1.0, std::log(2.0), 0.0}) ==
          doctest::Approx(0.7612944).epsilon(1e-7));
    CHECK(gaussian({0.0, 0.0}, {1e-9, 0.0}) == doctest::Approx(0.5e-18));
    CHECK(gaussian({1.0, -kInf}, {1.0, -kInf}) == 0.0);
    CHECK(gaussian({1.0, 0.0}, {1.0, -kInf}) == kInf);
    CHECK(gaussian({1.0, -kInf}, {1.0, 0.0}) == kInf);
    CHECK(gaussian({1.0, 1e4}, {1.0, -1e4}) == kInf);
    CHECK(gaussian({1.0, -1e4}, {1.0, 1e4}) == doctest::Approx(2e4 - 0.5));
}

TEST_CASE("k3 is 0 for equal log-probabilities, positive else, and a number at the ends") {
    CHECK(sampled(-1.0, -1.0) == 0.0);
    CHECK(sampled(-1.0, -1.0 + std::log(2.0)) == doctest::Approx(1.0 - std::log(2.0)));
    CHECK(sampled(-1.0, -kInf) == kInf);
    CHECK(sampled(-kInf, -1.0) == kInf);
    CHECK(sampled(-kInf, -kInf) == 0.0);
    CHECK(std::isnan(sampled(kNan, 0.0)));
}

TEST_CASE("sizes that do not fit are refused before anything is written") {
    const std::vector<double> values(4, 0.0);
    const std::array<std::size_t, 1> sizes{3};
    std::array<double, 2> out{7.0, 7.0};
    const MatrixView<const double> square(values, 2, 2);
    CHECK_THROWS_AS(kl_categorical<double>(square, square, sizes, out), std::invalid_argument);
    CHECK_THROWS_AS(kl_bernoulli<double>(square, {values, 1, 4}, out), std::invalid_argument);
    CHECK_THROWS_AS(kl_bernoulli<double>({values, 4, 1}, {values, 4, 1}, out), std::invalid_argument);
    CHECK_THROWS_AS(kl_diag_gaussian<double>({{values.data(), 2}, 2, 1}, {{values.data(), 2}, 2, 1}, out),
                    std::invalid_argument);
    CHECK_THROWS_AS(k3<double>(values, values, out), std::invalid_argument);
    CHECK(out == std::array<double, 2>{7.0, 7.0});
}
