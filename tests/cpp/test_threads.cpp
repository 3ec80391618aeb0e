// Kernels release the GIL, so several threads may be in them at once: they share what they read, and write
// apart.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "clusterenv/kl.hpp"
#include "clusterenv/pack.hpp"
#include "clusterenv/sample.hpp"

using namespace clusterenv;

TEST_CASE("kernels in several threads give what one thread gives") {
    constexpr std::size_t kThreads = 4, kRows = 512, kWidth = 6;
    std::vector<float> params(kRows * kWidth), others(kRows * kWidth);
    std::iota(params.begin(), params.end(), -1000.0F);
    std::transform(params.begin(), params.end(), params.begin(), [](float x) { return 1e-3F * x; });
    std::transform(params.begin(), params.end(), others.begin(), [](float x) { return 1.5F * x; });
    const std::array<std::size_t, 2> sizes{4, 2};
    std::vector<std::int64_t> env_ids(kRows), steps(kRows, 7);
    std::iota(env_ids.begin(), env_ids.end(), 0);
    const std::array<std::ptrdiff_t, 1> shape{kWidth}, strides{sizeof(float)};
    std::vector<StridedRow> rows(kRows);
    for (std::size_t row = 0; row < kRows; ++row) {
        rows[row] = {reinterpret_cast<const std::byte*>(params.data() + row * kWidth), strides.data()};
    }

    struct Out {
        std::vector<std::int64_t> actions = std::vector<std::int64_t>(2 * kRows);
        std::vector<float> log_probs = std::vector<float>(kRows);
        std::vector<double> kl = std::vector<double>(kRows);
        std::vector<float> packed = std::vector<float>(kRows * kWidth);
    };
    const auto run = [&](Out& out) {
        const NoiseKeys keys{5, env_ids, steps};
        sample_categorical({params, kRows, kWidth}, sizes, keys, {out.actions, kRows, 2}, out.log_probs);
        kl_categorical<float>({params, kRows, kWidth}, {others, kRows, kWidth}, sizes, out.kl);
        pack_rows(rows, {shape, sizeof(float)}, reinterpret_cast<std::byte*>(out.packed.data()),
                  kWidth * sizeof(float));
    };
    Out alone;
    run(alone);
    std::vector<Out> outs(kThreads);
    std::vector<std::thread> threads;
    for (Out& out : outs) {
        threads.emplace_back([&run, &out] { run(out); });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (const Out& out : outs) {
        CHECK(out.actions == alone.actions);
        CHECK(out.log_probs == alone.log_probs);
        CHECK(out.kl == alone.kl);
        CHECK(out.packed == alone.packed);
    }
}
