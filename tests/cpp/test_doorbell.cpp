#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <vector>

#include "clusterenv/doorbell.hpp"
#include "clusterenv/slab.hpp"

using clusterenv::Doorbell;
using clusterenv::Rung;
using clusterenv::Slab;
using std::chrono::nanoseconds;
using namespace std::chrono_literals;

namespace {

constexpr auto kPatient = 30s;

struct Room {
    Slab slab = Slab::create(4 * Doorbell::kBytes);

    Doorbell bell(std::size_t number) const {
        return Doorbell(slab.bytes().subspan(number * Doorbell::kBytes, Doorbell::kBytes));
    }
};

/// Two sides that take turns `rounds` times and add to a number that no atomic guards; `spin` before
/// sleeping.
void answer(Room& room, std::uint64_t& number, std::uint32_t rounds, nanoseconds spin, bool begins) {
    Doorbell mine = room.bell(begins ? 0 : 1);
    Doorbell theirs = room.bell(begins ? 1 : 0);
    for (std::uint32_t round = 0; round < rounds; ++round) {
        if (begins) {
            ++number;
            mine.ring();
        }
        Rung rung = Rung::interrupted;
        while (rung == Rung::interrupted) {
            rung = theirs.wait(round, kPatient, spin);
        }
        REQUIRE(rung == Rung::yes);
        if (!begins) {
            ++number;
            mine.ring();
        }
    }
}

// --- a model of both sides, one step for each access to shared memory -------------------------------------

struct State {
    int ringer = 0;
    int waiter = 0;
    int count = 0;
    bool may_sleep = false;
    bool saw_sleeper = false;
    bool asleep = false;

    auto key() const { return std::tie(ringer, waiter, count, may_sleep, saw_sleeper, asleep); }
    bool operator<(const State& other) const { return key() < other.key(); }
};

constexpr int kDone = 9;

/// The ringer's next step; with `careless` it looks for a sleeper before it raises the count.
State ringer_step(State state, bool careless) {
    const bool raises = (state.ringer == 0) != careless;
    if (state.ringer < 2 && raises) {
        state.count = 1;
        ++state.ringer;
    } else if (state.ringer < 2) {
        state.saw_sleeper = state.may_sleep;
        ++state.ringer;
    } else {
        if (state.saw_sleeper && state.asleep) {
            state.asleep = false;
        }
        state.ringer = kDone;
    }
    return state;
}

/// The waiter's next step, which it cannot make while it sleeps; the kernel compares and sleeps as one.
State waiter_step(State state) {
    if (state.waiter == 0) {
        state.may_sleep = true;
        state.waiter = 1;
    } else if (state.waiter == 1) {
        state.waiter = state.count != 0 ? 3 : 2;
    } else if (state.waiter == 2) {
        state.asleep = state.count == 0;
        state.waiter = 1;
    } else {
        state.may_sleep = false;
        state.waiter = kDone;
    }
    return state;
}

/// Whether some order of all steps ends with the bell rung and the waiter asleep for good.
bool can_lose_a_wake_up(bool careless) {
    std::set<State> seen;
    std::vector<State> open{State{}};
    while (!open.empty()) {
        const State state = open.back();
        open.pop_back();
        if (!seen.insert(state).second) {
            continue;
        }
        const bool waiter_moves = state.waiter != kDone && !state.asleep;
        if (state.ringer == kDone && !waiter_moves && state.waiter != kDone) {
            return true;
        }
        if (state.ringer != kDone) {
            open.push_back(ringer_step(state, careless));
        }
        if (waiter_moves) {
            open.push_back(waiter_step(state));
        }
    }
    return false;
}

}  // namespace

TEST_CASE("no order of steps loses a wake-up, and the model would find one that did") {
    CHECK_FALSE(can_lose_a_wake_up(false));
    CHECK(can_lose_a_wake_up(true));
}

TEST_CASE("a doorbell that was rung before is not waited for") {
    const Room room;
    Doorbell bell = room.bell(0);
    CHECK(bell.count() == 0);
    bell.ring();
    CHECK(bell.count() == 1);
    CHECK(bell.wait(0, 0s, 0s) == Rung::yes);
    CHECK(bell.wait_without_futex(0, 0s) == Rung::yes);
}

TEST_CASE("a wait ends with its deadline") {
    const Room room;
    Doorbell bell = room.bell(0);
    const auto start = std::chrono::steady_clock::now();
    CHECK(bell.wait(0, 20ms, 1ms) == Rung::timed_out);
    CHECK(bell.wait(0, -1s, 1ms) == Rung::timed_out);
    CHECK(bell.wait_without_futex(0, 20ms) == Rung::timed_out);
    CHECK(std::chrono::steady_clock::now() - start >= 40ms);
}

TEST_CASE("the count goes round") {
    const Room room;
    *reinterpret_cast<std::uint32_t*>(room.slab.bytes().data()) = ~std::uint32_t{0};
    Doorbell bell = room.bell(0);
    bell.ring();
    CHECK(bell.count() == 0);
    CHECK(bell.wait(~std::uint32_t{0}, 0s, 0s) == Rung::yes);
}

TEST_CASE("words that are too few or not aligned are refused") {
    const Room room;
    CHECK_THROWS_AS(Doorbell(room.slab.bytes().first(Doorbell::kLine)), std::invalid_argument);
    CHECK_THROWS_AS(Doorbell(room.slab.bytes().subspan(4, Doorbell::kBytes)), std::invalid_argument);
}

TEST_CASE("threads that take turns see what the other wrote, whether they spin or sleep") {
    for (const nanoseconds spin : {nanoseconds(0), nanoseconds(20us)}) {
        Room room;
        std::uint64_t number = 0;
        constexpr std::uint32_t rounds = 5000;
        std::thread other([&] { answer(room, number, rounds, spin, false); });
        answer(room, number, rounds, spin, true);
        other.join();
        CHECK(number == 2 * rounds);
    }
}

TEST_CASE("a sleeper without futex is told too") {
    const Room room;
    Doorbell bell = room.bell(0);
    std::thread ringer([&] {
        std::this_thread::sleep_for(5ms);
        room.bell(0).ring();
    });
    CHECK(bell.wait_without_futex(0, kPatient) == Rung::yes);
    ringer.join();
}

#ifndef __SANITIZE_THREAD__  // which does not follow forks
TEST_CASE("processes that take turns see what the other wrote") {
    Room room;
    auto& number = *reinterpret_cast<std::uint64_t*>(room.slab.bytes().data() + 3 * Doorbell::kBytes);
    constexpr std::uint32_t rounds = 2000;
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        answer(room, number, rounds, 0s, false);
        ::_exit(0);
    }
    answer(room, number, rounds, 0s, true);
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(number == 2 * rounds);
}

TEST_CASE("a side that is killed at any moment leaves the other with its deadline") {
    for (int number = 0; number < 20; ++number) {
        Room room;
        const pid_t child = ::fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            std::uint64_t ignored = 0;
            answer(room, ignored, ~std::uint32_t{0}, 0s, false);
            ::_exit(1);
        }
        std::thread killer([child, number] {
            std::this_thread::sleep_for(number * 200us);
            ::kill(child, SIGKILL);
        });
        Doorbell mine = room.bell(0);
        Doorbell theirs = room.bell(1);
        std::uint32_t seen = 0;
        do {
            mine.ring();
        } while (theirs.wait(seen++, 50ms, 0s) == Rung::yes);
        killer.join();
        int status = 0;
        REQUIRE(::waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status));
        mine.ring();
    }
}

TEST_CASE("a signal ends a wait, so that its handler can be looked after") {
    struct sigaction action = {};
    action.sa_handler = [](int) {};
    struct sigaction before = {};
    REQUIRE(::sigaction(SIGUSR1, &action, &before) == 0);
    const Room room;
    const pid_t self = ::getpid();
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        for (int i = 0; i < 200; ++i) {
            std::this_thread::sleep_for(5ms);
            ::kill(self, SIGUSR1);
        }
        ::_exit(0);
    }
    CHECK(room.bell(0).wait(0, kPatient, 0s) == Rung::interrupted);
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ::sigaction(SIGUSR1, &before, nullptr);
}
#endif
