// Rows of separate arrays, copied into one batch.
#pragma once

#include <cstddef>
#include <span>

namespace clusterenv {

/// One array of the shape that all rows share. `strides` (in bytes, one an axis) may be null: C-contiguous.
struct StridedRow {
    const std::byte* data;
    const std::ptrdiff_t* strides;
};

/// Shape and item size of a row; a row has `bytes` of them when packed.
struct RowShape {
    std::span<const std::ptrdiff_t> shape;
    std::size_t item_bytes;

    /// Bytes of a packed row; std::length_error where they do not fit into a word.
    std::size_t bytes() const;
};

/// Copies row i to `out + i * out_stride`, which must have room for it. A row may already lie in its place.
void pack_rows(std::span<const StridedRow> rows, const RowShape& shape, std::byte* out,
               std::ptrdiff_t out_stride);

}  // namespace clusterenv
