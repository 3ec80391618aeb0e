// Small feed-forward networks: linear layers, normalization, activations, residual sums, arithmetic with
// constants.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "clusterenv/views.hpp"

namespace clusterenv {

/// What is done to every number of a row; from `elu` on with a constant.
enum class Pointwise : std::uint8_t {
    tanh,
    relu,
    sigmoid,
    gelu,
    gelu_tanh,
    silu,
    elu,
    leaky_relu,
    add,
    subtract,
    multiply,
    divide,
    maximum,
    minimum
};

/// Which instructions compute. All but the portable ones multiply and add at once, with one rounding.
enum class Instructions : std::uint8_t { portable, avx2, avx512 };

/// Those that this processor has, the fastest last.
std::span<const Instructions> available_instructions();

/// From rows [n, inputs] to rows [n, outputs], all float32.
///
/// A row's numbers depend on that row alone, not on how many others there are: sums run over the inputs in
/// an order of their own. What takes powers of e is computed in double precision and rounded once.
class Network {
  public:
    /// The identity; std::invalid_argument for 0 inputs.
    explicit Network(std::size_t inputs);

    /// A layer `bias + x @ weight`, with weight [width of now, new width].
    ///
    /// std::invalid_argument where a size does not fit.
    void add_linear(MatrixView<const float> weight, std::span<const float> bias);

    /// The function of every number; `constants` are as many as a row has, or 1 for all, or none where the
    /// function takes none. std::invalid_argument else.
    void add_pointwise(Pointwise function, std::span<const float> constants);

    /// Mean 0 and variance 1 of each row, with `epsilon` added to its variance, then times weight, plus bias
    /// [width of now], which may be empty. std::invalid_argument for another size, or unless epsilon is above
    /// 0.
    void add_layer_norm(std::span<const float> weight, std::span<const float> bias, double epsilon);

    /// Keep the numbers of now for an `add_kept` later.
    void keep();

    /// The sum with what was kept last, which is kept no more. std::invalid_argument where the widths differ.
    void add_kept();

    std::size_t inputs() const { return inputs_; }
    std::size_t outputs() const { return width_; }

    /// std::invalid_argument where a shape does not fit.
    void run(MatrixView<const float> in, MatrixView<float> out,
             Instructions instructions = available_instructions().back()) const;

  private:
    struct Layer {
        enum class Kind : std::uint8_t { linear, pointwise, layer_norm, keep, add_kept };
        Kind kind;
        Pointwise function;         // of a pointwise layer
        std::size_t inputs;         // real ones
        std::size_t padded_width;   // of what comes out
        std::vector<float> weight;  // of a linear layer [inputs, padded_width], of a layer_norm [inputs]
        std::vector<float>
            constants;  // [padded_width], or [inputs] of a layer_norm: the bias where there is one
        double epsilon;
    };

    Layer layer_of(Layer::Kind kind) const;

    std::size_t inputs_;
    std::size_t width_;
    std::size_t widest_;  // padded
    std::size_t most_kept_ = 0;
    std::vector<std::size_t> kept_;  // widths of what is kept now
    std::vector<Layer> layers_;
};

}  // namespace clusterenv
