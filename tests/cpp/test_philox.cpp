#include <doctest/doctest.h>

#include "clusterenv/philox.hpp"

using namespace clusterenv;

TEST_CASE("philox gives the known answers of Random123") {
    CHECK(philox({0, 0, 0, 0}, 0) == PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    CHECK(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffffffffffff) ==
          PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822) ==
          PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a counter keeps purpose, id, time and block apart") {
    const PhiloxBlock base = counter_of(Purpose::action, 1, 2, 3);
    CHECK(counter_of(Purpose::sample_rows, 1, 2, 3) != base);
    CHECK(counter_of(Purpose::action, 2, 2, 3) != base);
    CHECK(counter_of(Purpose::action, 1, 2 + (1ULL << 32U), 3) != base);
    CHECK(counter_of(Purpose::action, 1, 2, 4) != base);
    CHECK(counter_of(Purpose::action, 0, 0, kMaxBlocks - 1) !=
          counter_of(Purpose::sample_rows, 0, 0, kMaxBlocks - 1));
}

TEST_CASE("unit numbers reach from 0 to below 1") {
    CHECK(unit(0) == 0.0);
    CHECK(unit(0xffffffffffffffff) == 1.0 - 0x1p-53);
    CHECK(word({1, 2, 3, 4}, 0) == 0x0000000100000002);
    CHECK(word({1, 2, 3, 4}, 1) == 0x0000000300000004);
}
