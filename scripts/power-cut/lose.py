#!/usr/bin/env python3
"""Makes the disk that a power cut may leave, of its last state and the log of what was written and flushed since.

  lose.py DISK LOG SEED    changes DISK in place, prints how many writes were kept and lost

All that was written before the last flush is kept. Each later write is lost with one half, and one in ten of those kept is torn at a sector: what
a disk with a volatile cache may do. The log is in the format of dm-log-writes, as QEMU's blklogwrites writes it. It is itself cut somewhere.
"""

import os
import random
import struct
import sys

FLUSH, FUA, DISCARD = 1, 2, 4


def entries(log):
    size = os.fstat(log.fileno()).st_size
    magic, version, _count, sector = struct.unpack("<QQQI", log.read(28))
    if magic != 0x6A736677736872 or version != 1:
        sys.exit("lose.py: not a log of writes")
    at, found = sector, []
    while at + sector <= size:
        log.seek(at)
        start, count, flags, _ = struct.unpack("<QQQQ", log.read(32))
        if not count and not flags:
            break
        data = at + sector
        at = data + (0 if flags & DISCARD else count * sector)
        if at > size:
            break
        found.append((start * sector, count, flags, data))
    return sector, found


def main():
    disk, log, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
    chance = random.Random(seed)
    kept = lost = 0
    with open(log, "rb") as log, open(disk, "r+b") as disk:
        # A machine that has not written anything has not begun its log.
        sector, found = entries(log) if os.fstat(log.fileno()).st_size else (512, [])
        flushed = max((number for number, entry in enumerate(found) if entry[2] & FLUSH), default=-1)
        for number, (start, count, flags, data) in enumerate(found):
            if not count or flags & DISCARD:
                continue
            if number > flushed and not flags & FUA:
                if chance.random() < 0.5:
                    lost += 1
                    continue
                if count > 1 and chance.random() < 0.1:
                    count = chance.randrange(1, count)
            log.seek(data)
            disk.seek(start)
            disk.write(log.read(count * sector))
            kept += 1
    print(f"{kept}, {lost}")


main()
