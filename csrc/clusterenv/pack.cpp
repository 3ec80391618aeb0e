#include "clusterenv/pack.hpp"

#include <cstring>

#include "clusterenv/views.hpp"

namespace clusterenv {
namespace {

/// Copies axis by axis, the last as one block where it is contiguous; gives the end of what it wrote.
std::byte* copy_strided(const std::byte* source, std::span<const std::ptrdiff_t> shape,
                        const std::ptrdiff_t* strides, std::size_t item_bytes, std::byte* out) {
    if (shape.empty()) {
        std::memmove(out, source, item_bytes);
        return out + item_bytes;
    }
    if (shape.size() == 1 && *strides == static_cast<std::ptrdiff_t>(item_bytes)) {
        const std::size_t run = static_cast<std::size_t>(shape.front()) * item_bytes;
        std::memmove(out, source, run);
        return out + run;
    }
    for (std::ptrdiff_t i = 0; i < shape.front(); ++i) {
        out = copy_strided(source + i * *strides, shape.subspan(1), strides + 1, item_bytes, out);
    }
    return out;
}

}  // namespace

std::size_t RowShape::bytes() const {
    std::size_t total = item_bytes;
    for (const std::ptrdiff_t length : shape) {
        require(length >= 0, "a row has an axis of negative length");
        total = checked_product(total, static_cast<std::size_t>(length));
    }
    return total;
}

void pack_rows(std::span<const StridedRow> rows, const RowShape& shape, std::byte* out,
               std::ptrdiff_t out_stride) {
    const std::size_t row_bytes = shape.bytes();
    if (row_bytes == 0) {
        return;  // NumPy gives arrays without items a pointer that nobody may follow
    }
    for (const StridedRow& row : rows) {
        if (row.strides == nullptr) {
            std::memmove(out, row.data, row_bytes);
        } else {
            copy_strided(row.data, shape.shape, row.strides, shape.item_bytes, out);
        }
        out += out_stride;
    }
}

}  // namespace clusterenv
