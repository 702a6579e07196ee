"""When a call is tried again, and how long is waited before that."""

import dataclasses
import random

from qgemm.errors import Unavailable


@dataclasses.dataclass(frozen=True)
class Retry:
    """Calls that fail with UNAVAILABLE, or with the daemon's word when to come again (a full queue), are repeated: all
    calls of the API may be. The wait doubles from `first_wait_s` up to `longest_wait_s`, each a random part between half
    and all of it, so that many clients do not come at once; a daemon's own word is followed."""

    attempts: int = 4  # in all; 1: never again
    first_wait_s: float = 0.1
    longest_wait_s: float = 2.0

    def wait_s(self, failures, random_part=random.random):
        """Seconds to wait after the given number of failures (1, 2, ...)."""
        longest = min(self.first_wait_s * 2 ** (failures - 1), self.longest_wait_s)
        return longest * (0.5 + 0.5 * random_part())

    def wait_after(self, error, failures):
        """Seconds to wait after this error of qgemm.errors; None: it is not one that passes."""
        if error.retry_after_s is not None:
            return error.retry_after_s
        return self.wait_s(failures) if isinstance(error, Unavailable) else None

    def again(self, failures, waited_until, deadline):
        """Whether to try again: attempts are left and the wait ends before the call's deadline (None: none)."""
        return failures < self.attempts and (deadline is None or waited_until < deadline)

