"""Ends with an error if a JUnit report tells of no tests at all or of skipped ones.

Usage: python no_skips.py REPORT [REASON]. Skips whose reason holds REASON are fine.
"""

from __future__ import annotations

import sys
from xml.etree import ElementTree


def main(report: str, reason: str | None = None) -> None:
    """Print the skipped tests, and end with 1 if there are any, or no tests."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    skipped = []
    for case in cases:
        for skip in case.iter("skipped"):
            why = f"{skip.get('message')}: {skip.text}"
            # A module that is skipped as a whole has no type.
            if skip.get("type") != "pytest.xfail" and not (reason and reason in why):
                skipped.append(f"skipped: {case.get('classname')} {case.get('name')} {why}\n")
    sys.stdout.writelines(skipped)
    if skipped or not cases:
        sys.exit(f"{len(cases)} tests, {len(skipped)} of them skipped; expected some, and none skipped")


if __name__ == "__main__":
    main(*sys.argv[1:])
