// Small feed-forward networks: linear layers, activations, and arithmetic with constants.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "clusterenv/views.hpp"

namespace clusterenv {

/// What is done to every number of a row; from `add` on with a constant.
enum class Pointwise : std::uint8_t {
    tanh,
    relu,
    sigmoid,
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
/// their order. tanh is computed in double precision and rounded once.
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

    std::size_t inputs() const { return inputs_; }
    std::size_t outputs() const { return width_; }

    /// std::invalid_argument where a shape does not fit.
    void run(MatrixView<const float> in, MatrixView<float> out,
             Instructions instructions = available_instructions().back()) const;

  private:
    struct Layer {
        bool linear;
        Pointwise function;            // unless linear
        std::size_t inputs;            // real ones
        std::size_t padded_width;      // of what comes out
        std::vector<float> weight;     // [inputs, padded_width]
        std::vector<float> constants;  // [padded_width]: the bias of a linear layer
    };

    std::size_t inputs_;
    std::size_t width_;
    std::size_t widest_;  // padded
    std::vector<Layer> layers_;
};

}  // namespace clusterenv
