"""qgemm.weight_store without a GPU: what is always written, what is refused, and the file."""

import json

import pytest

torch = pytest.importorskip("torch")

import qgemm  # noqa: E402
from qgemm import weight_store  # noqa: E402
from qgemm.weight_store import WeightStore  # noqa: E402

pytestmark = pytest.mark.skipif(not weight_store.available(), reason="libqgemm.so is not there: QGEMM_LIBRARY")


def tensors_of(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    header.pop("__metadata__")
    return {name: (e["dtype"], e["shape"], body[slice(*e["data_offsets"])]) for name, e in header.items()}


@pytest.mark.parametrize("kind", ["weight", "cpu_tensor", "library_constant", "state"])
def test_what_is_in_the_hosts_memory_is_never_fingerprinted_and_always_written(tmp_path, kind):
    tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    with WeightStore(tmp_path / "w") as store:
        assert [store.add("a.weights", tensor, kind) for _ in range(3)] == [False] * 3
        store.finish()
        counts = store.counts
    assert (counts.written, counts.skipped, counts.fingerprints, counts.bytes_written) == (3, 0, 0, 36)
    assert tensors_of(tmp_path / "w") == {"a.weights": ("BF16", [2, 3], tensor.view(torch.uint8).numpy().tobytes())}


@pytest.mark.parametrize("kind", ["weight", "cpu_tensor"])
def test_a_changed_weight_under_an_old_key_is_refused(tmp_path, kind):
    with WeightStore(tmp_path / "w") as store:
        store.add("a", torch.zeros(8, dtype=torch.uint8), kind)
        with pytest.raises(qgemm.InvalidRequest, match="weight a has changed"):
            store.add("a", torch.ones(8, dtype=torch.uint8), kind)
        with pytest.raises(qgemm.InvalidRequest):
            store.add("a", torch.zeros(4, dtype=torch.uint8), kind)


def test_state_may_change_and_the_last_is_written(tmp_path):
    with WeightStore(tmp_path / "w") as store:
        for value in (1, 2):
            store.add("cache", torch.full((4,), value, dtype=torch.int64), "state")
        store.finish()
    assert tensors_of(tmp_path / "w")["cache"][2] == torch.full((4,), 2, dtype=torch.int64).numpy().tobytes()


def test_what_the_store_cannot_hold_is_named(tmp_path):
    with WeightStore(tmp_path / "w") as store:
        with pytest.raises(TypeError, match="torch.complex64 is not allowed: use torch.uint8"):
            store.add("a", torch.zeros(2, dtype=torch.complex64))
        with pytest.raises(ValueError, match='kind "buffer" is not allowed: use weight, cpu_tensor'):
            store.add("a", torch.zeros(2), "buffer")
    with pytest.raises(qgemm.InvalidRequest):
        store.add("a", torch.zeros(2))  # closed


def test_an_unfinished_store_leaves_nothing(tmp_path):
    with WeightStore(tmp_path / "w") as store:
        store.add("a", torch.zeros(8, dtype=torch.uint8))
    assert list(tmp_path.iterdir()) == []
