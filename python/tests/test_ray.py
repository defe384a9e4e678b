"""``ray_broadcast_tensor_dict`` between actors of Ray, if Ray is installed."""

import os
import uuid
from pathlib import Path

import numpy as np
import pytest
from ranks import peer

ray = peer("ray")

RANKS = 3
DEADLINE = 60


class Member:
    """A process that gets rank, size, host and port as arguments."""

    def begin(self, rank, size, host, port, job):
        os.environ["DCL_JOB_ID"] = job
        import distcollective

        distcollective.launch(rank, size, host, port, verbose=False)

    def broadcast(self, weights, src):
        import distcollective

        got = distcollective.ray_broadcast_tensor_dict(weights, src=src, backend="gloo")
        return {name: np.asarray(tensor) for name, tensor in got.items()}

    def refuse(self):
        import distcollective

        try:
            distcollective.ray_broadcast_tensor_dict({})
        except ValueError as error:
            return str(error)


@pytest.fixture
def members():
    # Ray's own settings: it writes no token into the user's folder, and reports no use.
    os.environ.update({"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"})
    path = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}
    limits = {"num_cpus": RANKS, "object_store_memory": 80 << 20}
    ray.init(include_dashboard=False, log_to_driver=False, runtime_env=path, **limits)
    try:
        actor = ray.remote(num_cpus=1)(Member)
        yield [actor.remote() for _ in range(RANKS)]
    finally:
        ray.shutdown()


def test_a_dictionary_between_actors(members):
    weights = {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "double": np.full(3, 1.5),
        "big": np.ones(300_000, np.int64),
        "scalar": np.array(5, np.int32),
    }
    address = "127.0.0.1", 1 + uuid.uuid4().int % 60_000, uuid.uuid4().hex
    ray.get([member.begin.remote(rank, RANKS, *address) for rank, member in enumerate(members)], timeout=DEADLINE)
    for src in [0, 2]:
        given = [weights if rank == src else None for rank in range(RANKS)]
        calls = [member.broadcast.remote(mine, src) for member, mine in zip(members, given)]
        for got in ray.get(calls, timeout=DEADLINE):
            assert list(got) == list(weights)
            for name, array in weights.items():
                assert got[name].dtype == array.dtype and (got[name] == array).all() and got[name].shape == array.shape
    texts = ray.get([member.refuse.remote() for member in members], timeout=DEADLINE)
    assert all('backend is "nccl"' in text and 'give backend="gloo"' in text for text in texts)
