#include "clusterenv/doorbell.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>

#include "clusterenv/views.hpp"

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#endif

namespace clusterenv {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;
using Word = std::atomic_ref<std::uint32_t>;

static_assert(Word::is_always_lock_free, "processes cannot share a lock that is not in the segment");

constexpr nanoseconds kLongest = std::chrono::hours(24);
constexpr int kLooksPerClock = 64;

void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/// Both sides must agree on an order of "the count is raised" and "the waiter may sleep": with anything
/// weaker than sequential consistency each could miss what the other has just written.
constexpr auto kAgreed = std::memory_order_seq_cst;

#ifdef __linux__
/// Without the private flag, so that it works between processes.
long futex(std::uint32_t* word, int operation, std::uint32_t value, const timespec* timeout) {
    return ::syscall(SYS_futex, word, operation, value, timeout, nullptr, 0);  // NOLINT(*-vararg): no wrapper
}

timespec as_timespec(nanoseconds left) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    return {static_cast<std::time_t>(seconds.count()), static_cast<long>((left - seconds).count())};
}
#endif

}  // namespace

Doorbell::Doorbell(std::span<std::byte> words)
    : count_(reinterpret_cast<std::uint32_t*>(words.data())),
      may_sleep_(reinterpret_cast<std::uint32_t*>(words.data() + (words.size() < kBytes ? 0 : kLine))) {
    require(words.size() == kBytes, "a doorbell has not the bytes that it needs");
    require(reinterpret_cast<std::uintptr_t>(words.data()) % kLine == 0, "a doorbell is not aligned");
}

std::uint32_t Doorbell::count() const {
    return Word(*count_).load(std::memory_order_acquire);  // partner: the store in `ring`
}

void Doorbell::ring() {
    const Word count(*count_);
    count.fetch_add(1, kAgreed);                 // partners: the loads in `wait`
    if (Word(*may_sleep_).load(kAgreed) == 0) {  // partner: the store in `wait`
        return;
    }
#ifdef __linux__
    futex(count_, FUTEX_WAKE, 1, nullptr);
#endif
}

bool Doorbell::spun(std::uint32_t seen, nanoseconds spin) const {
    const auto end = steady_clock::now() + spin;
    do {
        for (int look = 0; look < kLooksPerClock; ++look) {
            if (count() != seen) {
                return true;
            }
            pause();
        }
    } while (steady_clock::now() < end);
    return false;
}

Rung Doorbell::wait(std::uint32_t seen, nanoseconds timeout, nanoseconds spin) {
#ifdef __linux__
    timeout = std::clamp(timeout, nanoseconds(0), kLongest);
    const auto end = steady_clock::now() + timeout;
    if (spun(seen, std::min(spin, timeout))) {
        return Rung::yes;
    }
    const Word may_sleep(*may_sleep_);
    Rung rung = Rung::timed_out;
    may_sleep.store(1, kAgreed);  // partner: the load in `ring`
    while (true) {
        if (Word(*count_).load(kAgreed) != seen) {  // partner: the store in `ring`
            rung = Rung::yes;
            break;
        }
        const nanoseconds left = end - steady_clock::now();
        if (left <= nanoseconds(0)) {
            break;
        }
        const timespec most = as_timespec(left);
        // Sleeps only while the count is still `seen`, which the kernel looks up with wake-ups locked out.
        if (futex(count_, FUTEX_WAIT, seen, &most) != 0 && errno == EINTR) {
            rung = Rung::interrupted;
            break;
        }
    }
    may_sleep.store(0, std::memory_order_relaxed);  // too late at worst: a wake-up that nobody needs
    return rung;
#else
    return spun(seen, std::min(spin, timeout)) ? Rung::yes : wait_without_futex(seen, timeout);
#endif
}

Rung Doorbell::wait_without_futex(std::uint32_t seen, nanoseconds timeout) const {
    constexpr nanoseconds shortest = std::chrono::microseconds(10);
    constexpr nanoseconds longest = std::chrono::milliseconds(1);
    const auto end = steady_clock::now() + std::clamp(timeout, nanoseconds(0), kLongest);
    nanoseconds nap = shortest;
    while (count() == seen) {
        const nanoseconds left = end - steady_clock::now();
        if (left <= nanoseconds(0)) {
            return Rung::timed_out;
        }
        std::this_thread::sleep_for(std::min(nap, left));
        nap = std::min(2 * nap, longest);
    }
    return Rung::yes;
}

}  // namespace clusterenv
