// Memory that several processes share.
#pragma once

#include <cstddef>
#include <span>

namespace clusterenv {

/// A mapped segment without a name: only those of this user's processes that are handed its descriptor
/// attach.
///
/// All of it is allocated when it is created, so that a full /dev/shm is an error there, and not a SIGBUS at
/// whatever is written later.
class Slab {
  public:
    /// A new segment of `bytes` zeros; std::invalid_argument for 0, std::system_error where there is no room.
    static Slab create(std::size_t bytes);

    /// The segment behind `descriptor`, which stays the caller's.
    ///
    /// std::invalid_argument where it has not exactly `bytes`; std::system_error where it cannot be mapped.
    static Slab attach(int descriptor, std::size_t bytes);

    Slab(Slab&& other) noexcept;
    Slab& operator=(Slab&& other) noexcept;
    Slab(const Slab&) = delete;
    Slab& operator=(const Slab&) = delete;
    ~Slab();

    std::span<std::byte> bytes() const { return bytes_; }

    /// For `attach` in other processes; -1 once it is closed.
    int descriptor() const { return descriptor_; }

    /// Nobody else can attach any more; the mapping stays.
    void close_descriptor() noexcept;

  private:
    Slab(int descriptor, std::size_t bytes);

    int descriptor_;
    std::span<std::byte> bytes_;
};

}  // namespace clusterenv
