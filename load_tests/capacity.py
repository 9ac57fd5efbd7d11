#!/usr/bin/env python3
"""Runs every `<!-- paravt bench capacity … -->` of CAPACITY.md again, and puts what it prints in the place of what stood there.

    python3 load_tests/capacity.py [--paravt target/release/paravt] [--only WORDS] [--check]

Standard library only. `--only '--nodes 1,10'` leaves out blocks whose command does not hold these words. `--check` changes nothing, and
ends with status 1 where something would be. The thousand GPUs take a quarter of an hour.
"""

import argparse
import pathlib
import re
import shlex
import subprocess
import sys
import time

PAGE = pathlib.Path(__file__).resolve().parent / "CAPACITY.md"
BLOCK = re.compile(r"(<!-- paravt (bench capacity --nodes [^\n]*) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paravt", default=str(PAGE.parents[1] / "target" / "release" / "paravt"))
    parser.add_argument("--only", default="")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    stale = []

    def again(match):
        head, command, before, end = match.groups()
        if arguments.only not in command:
            return match[0]
        begin = time.monotonic()
        done = subprocess.run([arguments.paravt, *shlex.split(command)], stdout=subprocess.PIPE, text=True, check=True)
        after = done.stdout.rstrip("\n") + "\n"
        if after != before:
            stale.append(command)
        print(f"{'changed' if after != before else 'same   '} paravt {command} ({time.monotonic() - begin:.0f} s)", flush=True)
        return head + after + end

    text = BLOCK.sub(again, PAGE.read_text())
    if arguments.check:
        sys.exit(1 if stale else 0)
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
