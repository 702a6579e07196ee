"""Which pick serves how many rows of X: kernels/bucket.h in Python."""

import bisect

LADDER = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048, 4096)


def bucket_for(m):
    """The smallest bucket >= m; above the ladder its last, which is open-ended."""
    if m < 1:
        raise ValueError(f"m {m} is not allowed: use 1 or more")
    return LADDER[min(bisect.bisect_left(LADDER, m), len(LADDER) - 1)]


def serves(bucket, m):
    """Whether a pick for `bucket` serves a launch with `m` rows."""
    return m >= 1 and (m <= bucket or bucket == LADDER[-1])
