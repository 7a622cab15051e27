"""The stand-in for `sgl_kernel` does what its two kernels promise and never pretends to be more."""

from __future__ import annotations

import importlib.util
import os
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from radixtier.cpu.environment import STUBS  # noqa: E402


@pytest.fixture(scope="module")
def stub() -> ModuleType:
    spec = importlib.util.spec_from_file_location("radixtier_stub", STUBS / "sgl_kernel" / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_token_table_rows_take_consecutive_slots(stub: ModuleType) -> None:
    table = torch.full((4, 10), -1, dtype=torch.int32)
    start, end = torch.tensor([2, 0, 5]), torch.tensor([5, 1, 5])
    stub.assign_req_to_token_pool_cpu(torch.tensor([3, 0, 1]), table, start, end, torch.tensor([40, 41, 42, 7]), 10)
    expected = torch.full((4, 10), -1, dtype=torch.int32)
    expected[3, 2:5] = torch.tensor([40, 41, 42])
    expected[0, 0] = 7
    assert torch.equal(table, expected)
    with pytest.raises(ValueError, match="10 columns"):
        stub.assign_req_to_token_pool_cpu(torch.tensor([0]), table, start[:1], torch.tensor([11]), end, 10)


def test_rows_move_in_every_buffer_at_once(stub: ModuleType) -> None:
    buffers = [torch.randn(8, 3), torch.randn(8, 5).to(torch.bfloat16)]
    expected = [buffer.clone() for buffer in buffers]
    for buffer in expected:
        buffer[[1, 2]] = buffer[[2, 6]]
    pointers = torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64)
    stub.copy_all_layer_kv_cache_cpu(pointers, torch.tensor([12, 10]), torch.tensor([1, 2]), torch.tensor([2, 6]))
    assert all(map(torch.equal, buffers, expected))
    stub.copy_all_layer_kv_cache_cpu(pointers, torch.tensor([12, 10]), torch.tensor([]), torch.tensor([]))


def test_what_is_missing_says_so(stub: ModuleType) -> None:
    with pytest.raises(NotImplementedError, match=r"verify_tree_greedy_cpu.*CPU build of sgl-kernel"):
        stub.verify_tree_greedy_cpu()
    assert not hasattr(stub, "fp8_scaled_mm")


@pytest.mark.parametrize("ranks", [1, 2])
def test_arm_finds_its_operators_and_no_shared_memory(
    stub: ModuleType, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stub.__name__ == "radixtier_stub"
    torch.ops.sgl_kernel.init_cpu_threads_env([0, 1])
    # As SGLang does in front of this; a group of that size would then reduce over shared memory.
    monkeypatch.setenv("LOCAL_SIZE", str(ranks))
    torch.ops.sgl_kernel.initialize(ranks, 0)
    assert os.environ["LOCAL_SIZE"] == "0"
