#include "clusterenv/slab.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <limits>
#include <string>
#include <system_error>
#include <utility>

#include "clusterenv/views.hpp"

namespace clusterenv {
namespace {

[[noreturn]] void fail(int error, const std::string& what) {
    throw std::system_error(error, std::generic_category(), what);
}

/// Closes a descriptor unless it is released.
class Owned {
  public:
    explicit Owned(int descriptor) : descriptor_(descriptor) {}
    Owned(const Owned&) = delete;
    Owned(Owned&&) = delete;
    Owned& operator=(const Owned&) = delete;
    Owned& operator=(Owned&&) = delete;
    ~Owned() {
        if (descriptor_ >= 0) {
            ::close(descriptor_);
        }
    }

    int get() const { return descriptor_; }
    int release() { return std::exchange(descriptor_, -1); }

  private:
    int descriptor_;
};

/// A segment in /dev/shm, whose limit is below what the machine has, without its name: whoever is handed the
/// descriptor can attach, nobody else, and nothing is left of it whatever happens to those who use it.
int open_unnamed() {
    static std::atomic<unsigned> count = 0;
    while (true) {
        const std::string name = "/clusterenv-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
        const int descriptor = ::shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, S_IRUSR | S_IWUSR);
        if (descriptor >= 0) {
            ::shm_unlink(name.c_str());
            return descriptor;
        }
        if (errno != EEXIST) {
            return descriptor;
        }
    }
}

/// More than this no segment can have, whatever the kernel would try.
std::size_t physical_bytes() {
    const long pages = ::sysconf(_SC_PHYS_PAGES);
    const long page_bytes = ::sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0
               ? static_cast<std::size_t>(pages) * static_cast<std::size_t>(page_bytes)
               : std::numeric_limits<std::size_t>::max();
}

/// Gives the segment its size and all of its pages.
void allocate(int descriptor, std::size_t bytes) {
    const std::string what = "shared memory of " + std::to_string(bytes) + " bytes cannot be allocated";
    if (bytes > physical_bytes() || bytes > static_cast<std::size_t>(std::numeric_limits<off_t>::max())) {
        fail(ENOMEM, what);
    }
    const auto size = static_cast<off_t>(bytes);
    if (::ftruncate(descriptor, size) != 0) {
        fail(errno, what);
    }
    int error = EINTR;
    while (error == EINTR) {
        error = ::posix_fallocate(descriptor, 0, size);
    }
    if (error != 0) {
        fail(error, what);
    }
}

}  // namespace

Slab Slab::create(std::size_t bytes) {
    require(bytes > 0, "bytes is 0; expected a size from 1");
    Owned descriptor(open_unnamed());
    if (descriptor.get() < 0) {
        fail(errno, "shared memory cannot be created");
    }
    allocate(descriptor.get(), bytes);
    Slab slab(descriptor.get(), bytes);
    descriptor.release();
    return slab;
}

Slab Slab::attach(int descriptor, std::size_t bytes) {
    Owned own(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));  // NOLINT(*-vararg): a system call
    struct stat facts = {};
    if (own.get() < 0 || ::fstat(own.get(), &facts) != 0) {
        fail(errno, "shared memory cannot be attached");
    }
    require(bytes > 0 && facts.st_size >= 0 && static_cast<std::size_t>(facts.st_size) == bytes,
            "the segment does not have the number of bytes that was expected");
    Slab slab(own.get(), bytes);
    own.release();
    return slab;
}

Slab::Slab(int descriptor, std::size_t bytes) : descriptor_(descriptor) {
    void* start = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (start == MAP_FAILED) {
        fail(errno, "shared memory of " + std::to_string(bytes) + " bytes cannot be mapped");
    }
    bytes_ = {static_cast<std::byte*>(start), bytes};
}

Slab::Slab(Slab&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), bytes_(std::exchange(other.bytes_, {})) {}

Slab& Slab::operator=(Slab&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

Slab::~Slab() {
    if (!bytes_.empty()) {
        ::munmap(bytes_.data(), bytes_.size());
    }
    close_descriptor();
}

void Slab::close_descriptor() noexcept {
    if (descriptor_ >= 0) {
        ::close(std::exchange(descriptor_, -1));
    }
}

}  // namespace clusterenv
