"""Scratch memory of launches: one block per stream, and one per captured graph and stream.

Launches on one stream run one after the other and may share a block; a graph may be replayed beside other graphs that were
captured on the same stream, so each capture has blocks of its own, which are taken back when the graph is destroyed.

A block is [tickets | partials] with the border at a fixed place: a launch that needs fewer tickets starts further right, so
that all launches agree on which bytes are tickets. Those are zero between launches.
"""

import ctypes
import dataclasses
import threading

_ALIGNMENT = 256
_FEWEST_TICKET_BYTES = 64 << 10
_FEWEST_PARTIAL_BYTES = 1 << 20


@dataclasses.dataclass
class _Block:
    address: int
    ticket_bytes: int
    partial_bytes: int

    def holds(self, tickets, partials):
        return tickets <= self.ticket_bytes and partials <= self.partial_bytes


class _Semaphore:
    """A C semaphore as a flag that CUDA can raise: its destructor callbacks must run no Python and call no CUDA."""

    _libc = ctypes.CDLL(None)
    POST = ctypes.cast(_libc.sem_post, ctypes.c_void_p)

    def __init__(self):
        self._memory = (ctypes.c_ulong * 8)()
        self._libc.sem_init(ctypes.byref(self._memory), 0, 0)

    @property
    def address(self):
        return ctypes.c_void_p(ctypes.addressof(self._memory))

    def was_posted(self):
        return self._libc.sem_trywait(ctypes.byref(self._memory)) == 0


class Workspaces:
    """Of one device. `make_room` frees what memory can be freed, when there is not enough. Thread-safe."""

    def __init__(self, driver, make_room=lambda: None):
        self._driver, self._make_room = driver, make_room
        self._lock = threading.Lock()
        self._blocks = {}  # (capture id or 0, stream) -> _Block
        self._of_graphs = {}  # capture id -> (_Semaphore, [_Block, ...])
        self._free = []

    def address(self, tickets, partials, stream, is_capturing):
        """Where a launch on `stream` finds its workspace of tickets + partials bytes."""
        capture, graph = self._driver.capture(stream) if is_capturing else (0, None)
        tickets = -(-tickets // _ALIGNMENT) * _ALIGNMENT
        with self._lock:
            block = self._blocks.get((capture, stream))
            if block is None or not block.holds(tickets, partials):
                block = self._new_block(capture, graph, stream, tickets, partials, block)
            return block.address + block.ticket_bytes - tickets

    def _new_block(self, capture, graph, stream, tickets, partials, before):
        self._take_back()
        if before is not None:  # outgrown: stays as it is, launches in flight or in the graph use it
            tickets = max(tickets, 2 * before.ticket_bytes if tickets > before.ticket_bytes else before.ticket_bytes)
            partials = max(partials, 2 * before.partial_bytes if partials > before.partial_bytes else before.partial_bytes)
        tickets, partials = max(tickets, _FEWEST_TICKET_BYTES), max(partials, _FEWEST_PARTIAL_BYTES)
        fitting = [block for block in self._free if block.holds(tickets, partials)]
        block = min(fitting, key=lambda b: b.ticket_bytes + b.partial_bytes) if fitting else None
        if block is not None:
            self._free.remove(block)
        else:
            block = _Block(self._allocate(tickets + partials), tickets, partials)
        self._driver.zero(block.address, block.ticket_bytes, stream)
        self._blocks[capture, stream] = block
        if capture:
            if capture not in self._of_graphs:
                semaphore = _Semaphore()
                self._driver.on_graph_destroyed(graph, semaphore.POST, semaphore.address)
                self._of_graphs[capture] = (semaphore, [])
            self._of_graphs[capture][1].append(block)
        return block

    def _allocate(self, size):
        address = self._driver.allocate(size)
        if address is None:
            self._make_room()
            address = self._driver.allocate(size)
        if address is None:
            raise MemoryError(f"the GPU has no {size >> 20} MiB left for a kernel's workspace")
        return address

    def _take_back(self):
        """Blocks of graphs that are gone become free."""
        for capture in [c for c, (semaphore, _) in self._of_graphs.items() if semaphore.was_posted()]:
            _, blocks = self._of_graphs.pop(capture)
            self._free += blocks
            self._blocks = {key: block for key, block in self._blocks.items() if key[0] != capture}
