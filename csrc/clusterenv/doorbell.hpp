// How one process tells another, through memory that they share, that there is something to do.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

namespace clusterenv {

/// What a wait ended with.
enum class Rung : std::uint8_t {
    yes,
    timed_out,
    interrupted,  // by a signal; the caller may look after it and wait on
};

/// A counter that some (the ringers) raise and one (the waiter) waits for.
///
/// What a ringer wrote before `ring` is there for whoever has seen the new count. The count is raised by
/// ringers alone; the other word, which says that the waiter may sleep, is the waiter's. Neither side is ever
/// needed for the other to go on: a waiter has a deadline, and a ringer does not wait.
class Doorbell {
  public:
    /// Bytes of the two words, each in a cache line of its own.
    static constexpr std::size_t kLine = 64;
    static constexpr std::size_t kBytes = 2 * kLine;

    /// Over zeros at a multiple of kLine; std::invalid_argument where `words` has not kBytes or is not
    /// aligned.
    explicit Doorbell(std::span<std::byte> words);

    /// How often it was rung, modulo 2**32.
    std::uint32_t count() const;

    /// The waiter goes on. Makes no system call unless the waiter may sleep.
    void ring();

    /// `yes` once the count is another than `seen`. By the waiter only.
    ///
    /// Looks again for `spin` first, then sleeps, `timeout` in all.
    Rung wait(std::uint32_t seen, std::chrono::nanoseconds timeout, std::chrono::nanoseconds spin);

    /// The same where the kernel has no futex: with short sleeps in between.
    Rung wait_without_futex(std::uint32_t seen, std::chrono::nanoseconds timeout) const;

  private:
    bool spun(std::uint32_t seen, std::chrono::nanoseconds spin) const;

    std::uint32_t* count_;
    std::uint32_t* may_sleep_;
};

}  // namespace clusterenv
