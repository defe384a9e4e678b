"""DLPack's structures, made by hand: versions, offsets, flags, devices, types."""

import ctypes

import numpy as np
import pytest
from ranks import run

import distcollective.distributed as dist

READ_ONLY, IS_COPIED = 1, 2


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Exporter:
    """Gives an array of float32 by DLPack, with the fields that a test changes."""

    def __init__(self, array, shape, strides=None, is_versioned=True, major=1, flags=0, **fields):
        numbers = ctypes.c_int64 * len(shape)
        self.array, self.shape = array, numbers(*shape)
        self.strides = None if strides is None else numbers(*strides)
        self.is_versioned = is_versioned
        values = {"device_type": 1, "code": 2, "bits": 32, "lanes": 1, **fields}
        tensor = Tensor(data=array.ctypes.data, ndim=len(shape), shape=self.shape, strides=self.strides, **values)
        self.managed = Versioned(major=major, flags=flags, tensor=tensor)

    def __dlpack__(self, max_version=None):
        if self.is_versioned:
            assert max_version == (1, 0)
            return new_capsule(ctypes.addressof(self.managed), b"dltensor_versioned", None)
        return new_capsule(ctypes.addressof(self.managed.tensor), b"dltensor", None)


@pytest.mark.parametrize("is_versioned", [False, True])
def test_offsets_and_strides(is_versioned):
    def body():
        memory = np.arange(12, dtype=np.float32)
        # Row 1 of a matrix of 3 x 4; then its columns 0 and 2, transposed.
        dist.all_reduce(Exporter(memory, [4], is_versioned=is_versioned, byte_offset=16))
        dist.all_reduce(Exporter(memory, [2, 3], [2, 4], is_versioned=is_versioned))
        return memory.tolist()

    expected = np.arange(12.0).reshape(3, 4)
    expected[1] *= 2
    expected[:, ::2] *= 2
    assert run(2, body) == [expected.reshape(-1).tolist()] * 2


def test_what_is_refused():
    def body():
        memory = np.zeros(4, np.float32)
        cases = [
            (ValueError, "read-only", {"flags": READ_ONLY}),
            (ValueError, "read-only", {"flags": IS_COPIED}),
            (TypeError, "it is of DLPack's version 2", {"major": 2}),
            (ValueError, "it is on GPU 3, and the group's tensors are in host", {"device_type": 2, "device_id": 3}),
            (TypeError, "device 3 of DLPack's type 7; give a copy", {"device_type": 7, "device_id": 3}),
            (TypeError, "type code 2 with 32 bits in 4 lanes", {"lanes": 4}),
            (TypeError, "type code 15 with 6 bits", {"code": 15, "bits": 6}),
            (ValueError, "not aligned", {"byte_offset": 2}),
        ]
        for kind, text, fields in cases:
            with pytest.raises(kind, match=f"^tensor: .*{text}"):
                dist.all_reduce(Exporter(memory, [2], **fields))
        results = [np.zeros(4, np.float32) for _ in range(2)]
        dist.all_gather(results, Exporter(memory + dist.get_rank(), [4], flags=READ_ONLY, device_type=3))
        return [result.tolist() for result in results]

    assert run(2, body) == [[[0] * 4, [1] * 4]] * 2
