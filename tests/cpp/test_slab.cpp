#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "clusterenv/slab.hpp"

using clusterenv::Slab;

namespace {

bool is_open(int descriptor) {
    return ::fcntl(descriptor, F_GETFD) != -1;
}

}  // namespace

TEST_CASE("a new slab is zero, writable and for its user alone") {
    const Slab slab = Slab::create(5000);
    REQUIRE(slab.bytes().size() == 5000);
    CHECK(std::ranges::all_of(slab.bytes(), [](std::byte byte) { return byte == std::byte{0}; }));
    std::ranges::fill(slab.bytes(), std::byte{7});
    struct stat facts = {};
    REQUIRE(::fstat(slab.descriptor(), &facts) == 0);
    CHECK((facts.st_mode & 0777U) == 0600U);
    CHECK(facts.st_nlink == 0);
    CHECK(facts.st_blocks * 512 >= 5000);
}

TEST_CASE("what is written through one mapping is read through another") {
    Slab slab = Slab::create(64);
    const Slab other = Slab::attach(slab.descriptor(), 64);
    CHECK(other.bytes().data() != slab.bytes().data());
    slab.bytes()[63] = std::byte{9};
    CHECK(other.bytes()[63] == std::byte{9});
    slab.close_descriptor();
    CHECK(slab.descriptor() == -1);
    other.bytes()[0] = std::byte{3};
    CHECK(slab.bytes()[0] == std::byte{3});
}

TEST_CASE("a slab is refused where its size is not what was expected") {
    const Slab slab = Slab::create(64);
    CHECK_THROWS_AS(Slab::create(0), std::invalid_argument);
    CHECK_THROWS_AS(Slab::attach(slab.descriptor(), 65), std::invalid_argument);
    CHECK_THROWS_AS(Slab::attach(slab.descriptor(), 63), std::invalid_argument);
    CHECK_THROWS_AS(Slab::attach(-1, 64), std::system_error);
}

TEST_CASE("a slab that no machine can hold is an error, and leaves no descriptor") {
    const int next = ::dup(0);
    ::close(next);
    for (const std::size_t bytes : {std::size_t{1} << 60U, ~std::size_t{0}}) {
        CHECK_THROWS_AS(Slab::create(bytes), std::system_error);
    }
    CHECK(!is_open(next));
}

TEST_CASE("a slab that does not fit into /dev/shm is an error and no signal") {
    struct statvfs room = {};
    REQUIRE(::statvfs("/dev/shm", &room) == 0);
    const std::size_t bytes = std::size_t{room.f_blocks + 1} * room.f_frsize;
    CHECK_THROWS_AS(Slab::create(bytes), std::system_error);
}

TEST_CASE("a slab that is moved is closed once") {
    int first = -1;
    {
        Slab slab = Slab::create(64);
        first = slab.descriptor();
        Slab moved(std::move(slab));
        CHECK(moved.bytes().size() == 64);
        Slab target = Slab::create(32);
        const int second = target.descriptor();
        target = std::move(moved);
        CHECK(target.descriptor() == first);
        CHECK(target.bytes().size() == 64);
        CHECK(is_open(second));
    }
    CHECK(!is_open(first));
}

#ifndef __SANITIZE_THREAD__  // which does not follow forks
TEST_CASE("a process that is handed the descriptor shares the memory") {
    const Slab slab = Slab::create(64);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        const Slab own = Slab::attach(slab.descriptor(), 64);
        own.bytes()[5] = std::byte{5};
        ::_exit(0);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(slab.bytes()[5] == std::byte{5});
}
#endif
