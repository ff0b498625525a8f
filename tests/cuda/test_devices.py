"""The table of GPUs that plans are tested for."""

import pytest

from dflash_ops import _host


def test_the_table_holds_the_gpus_of_the_documentation() -> None:
    capabilities = {device.name: device.compute_capability for device in _host.known_devices()}
    assert capabilities == {
        "A100": 80,
        "RTX 3090": 86,
        "RTX 4090": 89,
        "H100": 90,
        "H200": 90,
        "B200": 100,
        "RTX 5090": 120,
    }


def test_kernels_of_warpgroups_run_on_hopper_alone() -> None:
    assert {device.name for device in _host.known_devices() if device.warpgroup_kernels} == {"H100", "H200"}


@pytest.mark.parametrize("device", _host.known_devices(), ids=lambda device: device.name)
def test_limits_are_plausible(device: _host.DeviceProperties) -> None:
    assert device.shared_bytes_per_block == device.shared_bytes_per_multiprocessor - 1024
    assert device.registers_per_multiprocessor == 65536
    assert device.threads_per_multiprocessor % 512 == 0
    assert 80 <= device.multiprocessors <= 170
    assert 0.9e12 <= device.memory_bandwidth <= 8e12  # bytes per second
    assert 1.4e9 <= device.clock <= 2.6e9


def test_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(ValueError, match=r"device: expected one of A100, .*RTX 5090, got V100"):
        _host.known_device("V100")
