"""The launch functions and dictionaries of tensors."""

import os
import random
import socket
import subprocess
import sys

import numpy as np
import pytest
from ranks import DEADLINE, Ranks, peer, run

import distcollective
import distcollective.distributed as dist

torch = peer("torch")
ml_dtypes = peer("ml_dtypes")

#: Rank and world size, and the launcher's own name of the job.
VARIABLES = {
    "torch": ("RANK", "WORLD_SIZE"),
    "openmpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS"),
}


@pytest.mark.parametrize("launcher", [None, *VARIABLES])
def test_each_launch_function(launcher, capfd):
    def body(connection, variables, rank, size, *_):
        os.environ.update(variables)
        port = int(os.environ["MASTER_PORT"])
        # Each rank gives another seed, and gets rank 0's.
        seed = 7 + rank
        if launcher is None:
            distcollective.launch(rank, size, "127.0.0.1", port, seed=seed)
        else:
            names = VARIABLES[launcher]
            os.environ.update({names[0]: str(rank), names[1]: str(size)})
            function = getattr(distcollective, f"launch_from_{launcher}")
            where = [] if launcher == "torch" else ["127.0.0.1", port]
            function(*where, seed=seed, verbose=False)
        draws = (random.random(), float(np.random.rand()), torch.rand(1).item())
        connection.send((dist.get_rank(), dist.get_world_size(), draws))
        with pytest.raises(RuntimeError, match=r"was initialized at .*test_environment\.py:\d+"):
            dist.init_process_group("gloo")
        dist.barrier()

    with Ranks(2, None, target=body) as ranks:
        received = [ranks.receive(rank) for rank in range(2)]
        assert [ranks.exit_code(rank) for rank in range(2)] == [0, 0]
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    draws = (random.random(), float(np.random.rand()), torch.rand(1).item())
    assert received == [(0, 2, draws), (1, 2, draws)]
    assert ("rank 0 of 2" in capfd.readouterr().out) == (launcher is None)


def test_rank_0_holds_the_port():
    def is_free(port):
        with socket.socket() as search:
            try:
                search.bind(("127.0.0.1", port))
                return True
            except OSError:
                return False

    def body():
        port = int(os.environ["MASTER_PORT"])
        dist.barrier()
        was_free = is_free(port)
        # A server that asks for the port gets it, as torch's store does.
        if dist.get_rank() == 0:
            socket.create_server(("127.0.0.1", port)).close()
        dist.barrier()
        dist.destroy_process_group()
        return was_free, port

    (first, port), (second, _) = run(2, body)
    assert not first and not second
    assert is_free(port)


def test_a_launch_function_reads_its_own_launchers_variables():
    def body(connection, variables, *_):
        os.environ.update(variables, RANK="0", WORLD_SIZE="1")
        with pytest.raises(ValueError, match="OMPI_COMM_WORLD_RANK"):
            distcollective.launch_from_openmpi("127.0.0.1", 29500)
        with pytest.raises(ValueError, match='this package has "gloo"'):
            distcollective.launch_from_torch(backend="ucc")
        with pytest.raises(RuntimeError, match='NCCL cannot be used.*backend="gloo"'):
            distcollective.launch_from_torch(backend="nccl")
        with pytest.raises(ValueError, match="port is 70000"):
            distcollective.launch(0, 1, "127.0.0.1", 70000)
        connection.send("done")

    with Ranks(1, None, target=body) as ranks:
        assert ranks.receive(0) == "done"


def weights():
    return {
        "matrix": torch.arange(6.0).reshape(2, 3),
        "transposed": torch.arange(6).reshape(2, 3).t(),
        "scalar": torch.tensor(5, dtype=torch.int32),
        "empty": torch.empty(0, 4, dtype=torch.bfloat16),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "double": torch.full((2, 2), 1.5, dtype=torch.float64),
        "flags": torch.tensor([True, False]),
        "numpy": np.arange(4, dtype=np.int16),
        "float8": np.ones(3, ml_dtypes.float8_e5m2),
    }


def test_a_dictionary_arrives():
    def body():
        given = weights() if dist.get_rank() == 2 else None
        got = distcollective.broadcast_tensor_dict(given, src=2)
        assert list(got) == list(weights())
        for name, expected in weights().items():
            tensor = got[name]
            if name == "float8":
                # The source has its own array. The others have a tensor, unless torch is old.
                if given is None and hasattr(torch, "float8_e5m2"):
                    assert tensor.dtype == torch.float8_e5m2
                    tensor = tensor.view(torch.uint8).numpy().view(expected.dtype)
                assert tensor.dtype == expected.dtype and tensor.tobytes() == expected.tobytes()
                continue
            expected = torch.as_tensor(expected)
            assert torch.equal(torch.as_tensor(tensor), expected), name
            assert torch.as_tensor(tensor).dtype == expected.dtype and tuple(tensor.shape) == tuple(expected.shape)
        if given is None:
            got["matrix"] += 1  # it can be written
        same = distcollective.ray_broadcast_tensor_dict(given, src=2, backend="gloo", device="cpu")
        assert torch.equal(same["matrix"], weights()["matrix"])
        # Any device of torch's; the source's own tensors stay.
        there = distcollective.broadcast_tensor_dict(given, src=2, backend="host", device="meta")
        assert there["matrix"].device.type == ("meta" if given is None else "cpu")
        here = distcollective.broadcast_tensor_dict(given, src=2, device="meta", offload_to_cpu=True)
        assert torch.equal(here["matrix"], weights()["matrix"])

    run(3, body)


def test_what_a_broadcast_of_a_dictionary_refuses():
    def body():
        broadcast = distcollective.ray_broadcast_tensor_dict
        with pytest.raises(ValueError, match='backend is "nccl", and the group has another one; give backend="gloo"'):
            broadcast({})
        with pytest.raises(ValueError, match="group_name is 'mine'"):
            broadcast({}, backend="gloo", group_name="mine")
        with pytest.raises(ValueError, match='backend is "ucc"; this package has'):
            broadcast({}, backend="ucc")
        with pytest.raises(ValueError, match="this rank is the source"):
            distcollective.broadcast_tensor_dict(None, src=dist.get_rank())
        with pytest.raises(TypeError, match="^bias: it is a list, not a tensor"):
            distcollective.broadcast_tensor_dict({"bias": [1.0]}, src=dist.get_rank())
        # What is wrong on the source is told to every rank at once.
        for given, text in [
            (None, "this rank is the source"),
            ({"bias": [1.0]}, "bias: it is a list"),
            ({7: np.zeros(3)}, "a name in tensor_dict is 7; names are texts"),
            ([("bias", np.zeros(3))], "tensor_dict is a list, not a dictionary"),
        ]:
            is_source = dist.get_rank() == 0
            told = text if is_source else f"because rank 0 refuses: .*{text}"
            with pytest.raises((TypeError, ValueError), match=told):
                distcollective.broadcast_tensor_dict(given if is_source else None)
        # So is a wrong argument of another rank.
        refuses = dist.get_rank() == 1
        text = "^backend is .nccl., and the group has another one" if refuses else "because rank 1 refuses: backend is"
        with pytest.raises((RuntimeError, ValueError), match=text):
            distcollective.broadcast_tensor_dict({"bias": np.zeros(3)}, backend="nccl" if refuses else None)
        dist.barrier()

    run(2, body)


class Interface:
    """An array without an attribute that tells its shape."""

    def __init__(self, array):
        self.__array_interface__, self.array = array.__array_interface__, array


def test_the_shape_of_a_tensor_in_a_dictionary_is_that_of_its_memory():
    def body():
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        given = {"matrix": Interface(array)} if dist.get_rank() == 0 else None
        got = distcollective.broadcast_tensor_dict(given)["matrix"]
        assert given is not None or np.array_equal(np.asarray(got), array)

    run(2, body)


def test_without_torch_arrays_of_numpy_arrive():
    program = """
import sys
import numpy as np
import distcollective
distcollective.launch(int(sys.argv[1]), 2, "127.0.0.1", 1, verbose=False)
names = "bool float32 float16 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 complex64 complex128".split()
given = {name: np.ones(3, name) for name in names}
if sys.argv[1] == "0":
    import ml_dtypes
    for name in ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"]:
        given[name] = np.ones(3, getattr(ml_dtypes, name))
given["n"] = np.zeros((), np.int64)
got = distcollective.broadcast_tensor_dict(given if sys.argv[1] == "0" else None)
assert got["n"].shape == () and len(got) == 19
for name, array in got.items():
    if name != "n":
        assert type(array) is np.ndarray and array.dtype.name == name and (array == np.ones(3, array.dtype)).all(), name
for wrong in [{"device": "cuda:0"}, {"pin_memory": True}]:
    try:
        distcollective.broadcast_tensor_dict({}, **wrong)
        raise AssertionError(wrong)
    except ValueError as error:
        assert "that needs torch" in str(error)
assert "torch" not in sys.modules
"""
    environment = {**os.environ, "DCL_JOB_ID": f"dictionary {os.getpid()}"}
    processes = [subprocess.Popen([sys.executable, "-c", program, str(rank)], env=environment) for rank in range(2)]
    try:
        assert [process.wait(DEADLINE) for process in processes] == [0, 0]
    finally:
        [process.kill() for process in processes]
