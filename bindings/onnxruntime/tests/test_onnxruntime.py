"""DistCollective nodes in ONNX Runtime, and models that Polygraphy has sharded.

Runs in an environment with the package, onnxruntime, onnx, ml_dtypes and pytest, with python/tests
on the path for Python's modules. Models are sharded where polygraphy and onnx_graphsurgeon are, and
the tests need these files.
"""

import importlib
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import models
import numpy as np
import onnxruntime
import pytest
from ranks import Ranks, peer, run

import distcollective

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = ROOT / "samples" / "onnxruntime"

#: What the operations give on each of two ranks. `xs` has the inputs, each of 4 rows.
REFERENCE = {
    "all_reduce": lambda xs, rank: sum(xs),
    "all_gather": lambda xs, rank: np.concatenate(xs),
    "broadcast": lambda xs, rank: xs[1],
    "reduce": lambda xs, rank: sum(xs) if rank == 1 else 0 * xs[0],
    "reduce_scatter": lambda xs, rank: sum(xs)[2 * rank :][:2],
    "all_to_all": lambda xs, rank: np.concatenate([x[2 * rank :][:2] for x in xs]),
    "gather": lambda xs, rank: np.concatenate(xs) if rank == 1 else 0 * np.concatenate(xs),
    "scatter": lambda xs, rank: xs[1][2 * rank :][:2],
}


def session(model, value=None, *entries, **options):
    made = onnxruntime.SessionOptions()
    made.log_severity_level = 4
    if value is not None:
        made.add_session_config_entry("distcollective.communicator", value)
    for entry in entries:
        made.add_session_config_entry(*entry)
    made.register_custom_ops_library(distcollective.onnxruntime_library())
    for name, option in options.items():
        setattr(made, name, option)
    return onnxruntime.InferenceSession(model, made, providers=["CPUExecutionProvider"])


def inputs():
    """Small integers, which every type has exactly, and so are their sums."""
    return [np.arange(12, dtype=np.float32).reshape(4, 3) % 4 + rank for rank in range(2)]


def _every_operation_and_type():
    import distcollective.distributed as dist

    xs, rank = inputs(), dist.get_rank()
    for element_type in models.element_types():
        for operation, reference in REFERENCE.items():
            model = models.node(operation, element_type, reduce_op="sum", root=1)
            (y,) = session(model).run(None, {"x": xs[rank]})
            expected = reference(xs, rank)
            if element_type == models.BOOL:
                expected = reference([x != 0 for x in xs], rank) != 0
            assert y.shape == expected.shape, (operation, element_type)
            assert np.array_equal(y, expected.astype(np.float32)), (operation, element_type, y, expected)


def test_every_operation_gives_the_reference_for_every_type():
    run(2, _every_operation_and_type)


def _reductions():
    import distcollective.distributed as dist

    xs = [np.float32([3, -1, 0.5]), np.float32([2, 4, 0.5])]
    for reduce_op, expected in [
        ("SUM", [5, 3, 1]),
        ("prod", [6, -4, 0.25]),
        ("max", [3, 4, 0.5]),
        ("Min", [2, -1, 0.5]),
        ("avg", [2.5, 1.5, 0.5]),
    ]:
        model = models.node("ALL_REDUCE", models.FLOAT, [3], reduce_op=reduce_op)
        (y,) = session(model).run(None, {"x": xs[dist.get_rank()]})
        assert np.array_equal(y, np.float32(expected)), (reduce_op, y)


def test_reductions_by_names_in_any_case():
    run(2, _reductions)


def _shapes():
    import distcollective.distributed as dist

    rank = dist.get_rank()
    made = session(models.node("all_gather", models.FLOAT, ["n", 2]))
    for rows in (3, 0, 1):
        (y,) = made.run(None, {"x": np.full([rows, 2], rank, np.float32)})
        assert np.array_equal(y, np.repeat(np.float32([0, 1]), 2 * rows).reshape(2 * rows, 2))
    with pytest.raises(Exception, match="the input has no dimensions; a layer's collective needs 1 to 8"):
        session(models.node("all_gather", models.FLOAT, [])).run(None, {"x": np.array(2.5, "f4")})


def test_shapes_that_change_and_tensors_without_elements():
    run(2, _shapes)


def _stored_shapes():
    x = {"x": np.ones([4, 3], np.float32)}
    for dims in [(4, 3), ("rows", 3)]:
        assert session(models.stored(dims=dims)).run(None, x)[0].tolist() == [8, 3]
    for name in ("gathered", "negated"):
        with pytest.raises(Exception, match="nfer.*8.*4"):
            session(models.stored(name))
        # Who asks for it gets what ONNX Runtime makes of it.
        session(models.stored(name), None, ("session.strict_shape_type_inference", "0"))


def test_a_stored_shape_of_one_device_is_an_exception():
    run(2, _stored_shapes)


def _attributes():
    import distcollective.distributed as dist

    x = np.full([2], dist.get_rank() + 1, np.float32)
    # As older versions of Polygraphy wrote it, as newer ones do, and groups.
    for attributes, expected in [
        ({"reduce_op": "sum"}, [1, 1, 2, 2]),
        ({"reduce_op": "none", "root": -1, "group_size": 2, "nb_rank": 2, "groups": []}, [1, 1, 2, 2]),
        ({"groups": [1, 0]}, [2, 2, 1, 1]),
        ({"groups": [1, 0], "group_size": 2, "nb_rank": 2}, [2, 2, 1, 1]),
        ({"nb_rank": 1}, x),
    ]:
        (y,) = session(models.node("all_gather", models.FLOAT, [2], **attributes)).run(None, {"x": x})
        assert np.array_equal(y, np.float32(expected)), (attributes, y)


def test_attributes_are_read_leniently():
    run(2, _attributes)


def _refusals():
    import distcollective.distributed as dist

    x = np.zeros([4, 3], np.float32)
    for model, text in [
        (models.node("all_munge", models.FLOAT), '"all_munge" is not a collective operation'),
        (models.node("all_reduce", models.FLOAT), "the attribute reduce_op is missing"),
        (
            models.node("all_gather", models.FLOAT, nb_rank="two"),
            "the attribute nb_rank is a text; it has to be an int",
        ),
        (models.node("all_gather", models.FLOAT, nb_rank=2.0), "the attribute nb_rank is a float; it has to be an int"),
        (models.node("all_gather", models.FLOAT, groups=1), "the attribute groups is an integer; it has to be a list"),
        (models.node("all_gather", models.FLOAT, groups="0,1"), "the attribute groups is a text; it has to be a list"),
        (
            models.node("all_gather", models.FLOAT, groups=[1.0, 0.0]),
            "the attribute groups is a list of floats; it has to be a list of integers",
        ),
        (models.node("all_gather", models.FLOAT, nb_rank=-1), "nb_rank is -1, which is no number of ranks"),
        (models.node("all_gather", models.FLOAT, groups=[0, 1], group_size=3), "group_size is 3, and groups"),
        (models.node("broadcast", models.FLOAT), "root is -1"),
        (models.node("all_gather", models.FLOAT, nb_rank=4), "nb_rank is 4, but the communicator has 2 ranks"),
        (models.node("reduce_scatter", models.FLOAT, [5, 3], reduce_op="sum"), "dimension 0 is 5, which is not a mult"),
        (models.plain("all_gather", models.STRING), "the input's elements are strings; the operator takes float32"),
        (models.plain("all_gather", models.DOUBLE), "the input's elements are float64; the operator takes float32"),
    ]:
        with pytest.raises(Exception, match=text.replace("(", "\\(")):
            made = session(model)
            kind = made.get_inputs()[0].type
            given = {"tensor(string)": np.full([4, 3], "a"), "tensor(double)": x.astype(np.float64)}.get(kind, x)
            if made.get_inputs()[0].shape == [5, 3]:
                given = np.zeros([5, 3], np.float32)
            made.run(None, {"x": given})
    with pytest.raises(Exception, match='distcollective.communicator is "77", which is no communicator'):
        session(models.node("all_gather", models.FLOAT), "77")
    # The communicator still works.
    (y,) = session(models.node("all_reduce", models.FLOAT, reduce_op="sum")).run(None, {"x": x + 1})
    assert (y == 2).all()
    dist.barrier()


def test_what_is_wrong_is_an_exception_and_the_communicator_works():
    run(2, _refusals)


def _server(threads):
    """Answers requests, of which rank 1 fails some before the node. Gives the answers."""
    import distcollective.distributed as dist

    made = session(models.lookup())

    def answer(request):
        time.sleep((request * 7 + dist.get_rank() * 31) % 10 / 10_000)
        index = 99 if request % 5 == 1 and dist.get_rank() == 1 else 3
        try:
            with dist.group.WORLD.request(request):
                (y,) = made.run(None, {"index": np.int64([index]), "scale": np.float32([request])})
            return y.tolist()
        except Exception as error:
            return str(error)

    with ThreadPoolExecutor(threads) as pool:
        answers = list(pool.map(answer, range(100)))
    for request, found in enumerate(answers):
        if request % 5 == 1:
            assert ("out of" if dist.get_rank() == 1 else "rank 1 left the request") in found, (request, found)
        else:
            assert found == [[2.0 * request] * 2], (request, found)


@pytest.mark.parametrize("threads", [1, 4])
def test_requests_are_right_or_an_exception_on_every_rank(threads):
    run(2, _server, threads)


def _node_that_refuses():
    import distcollective.distributed as dist

    made = session(models.node("reduce_scatter", models.FLOAT, ["n", 2], reduce_op="sum"))
    for number in range(6):
        # Also the first run.
        rows = 5 if number % 3 == 0 and dist.get_rank() == 1 else 4
        given = {"x": np.full((rows, 2), number, np.float32)}
        if number % 3:
            assert (made.run(None, given)[0] == 2 * number).all()
        else:
            text = ["rank 1 refused .*dimension 0 is 5", "dimension 0 is 5"][dist.get_rank()]
            with pytest.raises(Exception, match=text):
                made.run(None, given)
    dist.barrier()


def test_a_run_that_a_node_refuses_is_left_out_on_every_rank():
    run(2, _node_that_refuses)


def _differing_models():
    import distcollective.distributed as dist

    model = models.node("all_reduce", models.FLOAT, reduce_op=["sum", "max"][dist.get_rank()])
    with pytest.raises(Exception, match="the layers of the ranks differ: rank 0 has all_reduce\\(sum\\)"):
        session(model).run(None, {"x": np.zeros([4, 3], np.float32)})


def test_models_that_differ_are_an_exception_on_every_rank():
    run(2, _differing_models)


def _names():
    import distcollective.distributed as dist

    name = f"node of rank {dist.get_rank()}"
    text = 'ranks run different nodes: rank 0 runs "node of rank 0", rank 1 runs "node of rank 1"'
    with pytest.raises(Exception, match=text):
        session(models.node("all_gather", models.FLOAT, name=name)).run(None, {"x": np.zeros([4, 3], np.float32)})


def test_nodes_with_other_names_are_an_exception_on_every_rank():
    run(2, _names)


def _lengths():
    import distcollective.distributed as dist

    made = session(models.node("all_reduce", models.FLOAT, ["n"], reduce_op="sum"))
    made.run(None, {"x": np.zeros(3, np.float32)})
    with pytest.raises(
        Exception, match="rank 0 calls all_reduce\\(sum\\) of 4 float32; rank 1 calls all_reduce\\(sum\\) of 5"
    ):
        made.run(None, {"x": np.zeros(4 + dist.get_rank(), np.float32)})


def test_inputs_that_differ_are_an_exception_on_every_rank():
    run(2, _lengths)


def _killed():
    import distcollective.distributed as dist

    made = session(models.node("all_reduce", models.FLOAT, reduce_op="sum"))
    x = np.zeros([4, 3], np.float32)
    made.run(None, {"x": x})
    if dist.get_rank() == 0:
        os.kill(os.getpid(), 9)
    with pytest.raises(Exception, match="rank 0 died while this rank waited"):
        made.run(None, {"x": x})


def test_a_rank_that_is_killed_is_an_exception_on_the_other():
    with Ranks(2, _killed) as ranks:
        assert ranks.result(1) is None


def _groups():
    import distcollective.distributed as dist

    rank = dist.get_rank()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    own = groups[rank // 2]
    x = np.full([1], rank, np.float32)
    model = models.node("all_gather", models.FLOAT, [1])
    sessions = [session(model), session(model, own.session_value())]
    assert own.session_value() == own.session_value()
    for _ in range(3):
        everybody, pair = (made.run(None, {"x": x})[0] for made in sessions)
        assert np.array_equal(everybody, np.arange(4)) and np.array_equal(pair, [rank // 2 * 2, rank // 2 * 2 + 1])
    value = own.session_value()
    dist.barrier()
    dist.destroy_process_group(own)
    with pytest.raises(Exception, match="communicator is gone"):
        session(model, value)


def test_sessions_of_a_group_beside_sessions_of_all_ranks():
    run(4, _groups)


def test_ranks_that_are_threads():
    import distcollective.distributed as dist

    def gathered():
        made = session(models.node("all_gather", models.FLOAT, [1]), dist.group.WORLD.session_value())
        return made.run(None, {"x": np.full([1], dist.get_rank(), np.float32)})[0]

    assert np.array_equal(dist.run_threads(2, gathered), [[0, 1]] * 2)


def _check_branches(made, count, x):
    """Run a model of `models.branches` on two ranks."""
    for branch, y in enumerate(made.run(None, {"x": x})):
        assert np.array_equal(y, 2 * (branch + 1) * x), (branch, y)


def _execution_order():
    import distcollective.distributed as dist

    x, orders = np.arange(4, dtype=np.float32), onnxruntime.ExecutionOrder
    made = session(models.branches(6), execution_order=orders.PRIORITY_BASED)
    for _ in range(3):
        _check_branches(made, 6, x)
    order = [orders.PRIORITY_BASED, orders.DEFAULT][dist.get_rank()]
    made = session(models.branches(6), execution_order=order)
    with pytest.raises(
        Exception, match='ranks run different nodes: rank 0 runs "reduce . 0", rank 1 runs "reduce . 0"'
    ):
        made.run(None, {"x": x})


def test_the_execution_order_may_be_by_priority_on_all_ranks_and_not_on_some():
    run(2, _execution_order)


def parallel(count, *entries):
    """A session in parallel mode with as many threads, which do not spin while they wait."""
    mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    entries += tuple((f"session.{pool}_op.allow_spinning", "0") for pool in ["inter", "intra"])
    return session(models.branches(4, after=4), None, *entries, execution_mode=mode, inter_op_num_threads=count)


def _parallel_mode():
    made = parallel(4)
    for _ in range(20):
        _check_branches(made, 4, np.arange(4, dtype=np.float32))


def test_parallel_mode_runs_the_nodes_one_after_the_other():
    run(2, _parallel_mode)


#: What a rank gets where nodes run in parallel: it finds this itself, or a peer does.
PARALLEL = "two nodes run at once on one communicator|ranks run different nodes|ranks disagree on collective"


def _parallel_nodes(partition):
    made = parallel(4, ("session.node_partition_config_file", partition))
    with pytest.raises(Exception, match=PARALLEL):
        for _ in range(1000):
            _check_branches(made, 4, np.arange(4, dtype=np.float32))


def test_nodes_that_run_in_parallel_are_an_exception_on_every_rank(tmp_path):
    """With this config entry ONNX Runtime runs the branches at the same time, in any order."""
    names = [[f"mul {branch}", *(f"reduce {branch} {step}" for step in range(5))] for branch in range(4)]
    partition = tmp_path / "partition.json"
    partition.write_text(json.dumps({"type": "DeviceBasedPartitioner", "streams": names, "devices": ["0"] * 4}))
    run(2, _parallel_nodes, str(partition))


def _resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _growth(count, work):
    """By how many bytes the process grows while it does the work again, after a start."""
    for _ in range(count // 4):
        work()
    before = _resident_bytes()
    for _ in range(count):
        work()
    return _resident_bytes() - before


def _memory():
    model, x = models.plain("all_gather", models.FLOAT), {"x": np.zeros([4, 3], np.float32)}
    made = session(model)
    runs = _growth(3000, lambda: made.run(None, x))
    sessions = _growth(100, lambda: session(model, intra_op_num_threads=1).run(None, x))
    # ONNX Runtime itself keeps some 8 KiB of each session.
    assert runs < 1 << 18 and sessions < 1 << 21, (runs, sessions)


def test_memory_does_not_grow_with_runs_and_sessions():
    run(2, _memory)


def _second_registration():
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(distcollective.onnxruntime_library())
    with pytest.raises(Exception, match="Domain already set"):
        options.register_custom_ops_library(distcollective.onnxruntime_library())
        onnxruntime.InferenceSession(models.node("all_gather", models.FLOAT), options)


def test_a_second_registration_is_an_exception():
    run(1, _second_registration)


#: A program that does not import the package. The environment comes from the launcher's variables.
ALONE = """
import sys
import numpy, onnxruntime

options = onnxruntime.SessionOptions()
options.register_custom_ops_library(sys.argv[1])
session = onnxruntime.InferenceSession(sys.argv[2], options)
y = session.run(None, {"x": numpy.ones([4, 3], numpy.float32)})[0]
assert (y == 2).all()
assert "distcollective" not in sys.modules
"""


def start(arguments, rank, size):
    variables = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    variables["DCL_JOB_ID"] = f"onnxruntime {os.getpid()} {arguments[-1]}"
    environment = {**os.environ, **variables, "LOCAL_RANK": str(rank)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *arguments], env=environment, text=True, **pipes)


def pass_on_every_rank(arguments, size, deadline=30):
    """Run a program on every rank. Give what each has printed."""
    processes = [start(arguments, rank, size) for rank in range(size)]
    outputs = []
    try:
        for process in processes:
            output, errors = process.communicate(timeout=deadline)
            assert process.returncode == 0, errors
            outputs.append(output)
        return outputs
    finally:
        for process in processes:
            process.kill()


def test_the_library_alone_finds_the_other_ranks(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(models.node("all_reduce", models.FLOAT, reduce_op="sum"))
    pass_on_every_rank(["-c", ALONE, distcollective.onnxruntime_library(), str(path)], 2)


#: A program with two ranks that are threads, in which C functions make the communicators.
IN_C = """
import ctypes, sys, threading
import numpy, onnxruntime

library = ctypes.CDLL(sys.argv[1])

def call(name, *arguments):
    assert getattr(library, name)(*arguments) == 0, name

def value_of(handle):
    value = ctypes.create_string_buffer(32)
    call("dcl_communicator_session_value", handle, value, ctypes.c_size_t(32), None)
    return value.value.decode()

def session_of(value):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("distcollective.communicator", value)
    options.register_custom_ops_library(sys.argv[1])
    return onnxruntime.InferenceSession(sys.argv[2], options)

def check(sessions):
    sums = [None, None]
    def run(rank):
        x = numpy.full([4, 3], rank + 1, numpy.float32)
        (sums[rank],) = sessions[rank].run(None, {"x": x})
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert (numpy.array(sums) == 3).all(), sums

handles = (ctypes.c_void_p * 2)()
call("dcl_communicator_new_in_process", b"host", 2, ctypes.c_int64(10000), handles)
handles = [ctypes.c_void_p(handle) for handle in handles]
values = [value_of(handle) for handle in handles]
sessions = [session_of(value) for value in values]
check(sessions)
for handle in handles:
    call("dcl_communicator_free", handle)
# A session keeps its communicator, and there can be no new one.
check(sessions)
try:
    session_of(values[0])
except Exception as error:
    sys.exit(None if "communicator is gone" in str(error) else str(error))
sys.exit("the communicator is not gone")
"""


def test_a_session_has_the_communicator_that_c_functions_made(tmp_path):
    library = os.environ.get("DCL_TEST_LIBRARY")
    if library is None:
        assert "DCL_REQUIRE_PEERS" not in os.environ
        pytest.skip("DCL_TEST_LIBRARY is not set")
    path = tmp_path / "model.onnx"
    path.write_bytes(models.node("all_reduce", models.FLOAT, reduce_op="sum"))
    command = [sys.executable, "-c", IN_C, library, str(path)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


def test_without_an_environment_the_exception_says_what_is_missing(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(models.node("all_reduce", models.FLOAT, reduce_op="sum"))
    command = [sys.executable, "-c", ALONE, distcollective.onnxruntime_library(), str(path)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=30)
    assert done.returncode == 1
    assert "the session has no communicator: there is no environment" in done.stderr, done.stderr


def _without_shapes(given, written):
    """The model that the command writes. A warning is an error."""
    import onnx

    command = [sys.executable, "-W", "error", "-m", "distcollective.onnxruntime", given, written]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return onnx.load(str(written), load_external_data=False)


def test_the_command_drops_stored_shapes(tmp_path):
    import onnx

    model = onnx.load_from_string(models.node("all_gather", models.FLOAT))
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("inner", models.FLOAT, [1]))
    given = tmp_path / "given.onnx"
    onnx.save(model, str(given))
    assert len(_without_shapes(given, tmp_path / "written.onnx").graph.value_info) == 0


def test_the_command_leaves_weights_in_their_files_where_it_can(tmp_path):
    import onnx

    given, files = tmp_path / "given.onnx", {"save_as_external_data": True, "location": "weights", "size_threshold": 0}
    onnx.save(onnx.load_from_string(models.mlp()), str(given), **files)
    external = onnx.TensorProto.EXTERNAL
    beside = _without_shapes(given, tmp_path / "beside.onnx")
    assert [weight.data_location for weight in beside.graph.initializer] == [external] * 3
    (tmp_path / "folder").mkdir()
    elsewhere = _without_shapes(given, tmp_path / "folder" / "elsewhere.onnx")
    assert external not in [weight.data_location for weight in elsewhere.graph.initializer]
    x = {"x": np.ones([8, 16], np.float32)}
    written = [given, tmp_path / "beside.onnx", tmp_path / "folder" / "elsewhere.onnx"]
    results = [onnxruntime.InferenceSession(str(path)).run(None, x)[0] for path in written]
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[0], results[2])


def _sharded(whole, sharded):
    import distcollective.distributed as dist

    x = np.random.default_rng(1).standard_normal((8, 16)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(whole).run(None, {"x": x})
    (y,) = session(sharded[dist.get_rank()]).run(None, {"x": x})
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_an_mlp_that_polygraphy_has_sharded_by_tensors_gives_the_single_device_result(tmp_path):
    peer("polygraphy")
    whole, out = tmp_path / "whole.onnx", tmp_path / "sharded.onnx"
    whole.write_bytes(models.mlp())
    polygraphy = Path(sys.executable).with_name("polygraphy")
    shard = [polygraphy, "multi-device", "shard", whole, "-o", out, "--one-shot", "--parallelism", "TP"]
    command = [sys.executable, *map(str, [*shard, "--gpus", 2, "--nb-rank", 2])]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    files = sorted(path for path in tmp_path.glob("*.onnx") if path != whole)
    assert len(files) == 2, files
    for path in files:
        _without_shapes(path, path)
    run(2, _sharded, str(whole), [str(path) for path in files])


@pytest.mark.parametrize("size", [2, 4])
def test_an_attention_that_the_sample_shards_by_context_gives_the_single_device_result(size):
    peer("polygraphy")
    outputs = pass_on_every_rank([str(SAMPLES / "sharded_attention.py")], size, deadline=120)
    for rank, output in enumerate(outputs):
        begin = f"rank {rank} of {size}: 4 DistCollective nodes, the largest difference is "
        assert output.startswith(begin) and float(output[len(begin) :]) < 1e-4


def test_the_guides_commands_and_programs_run(tmp_path, monkeypatch):
    """In a folder with the sample's model, and this environment as `env`."""
    import onnx

    peer("polygraphy")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(SAMPLES))
    onnx.save(importlib.import_module("sharded_attention").attention(), "model.onnx")
    Path("env").symlink_to(sys.prefix)
    guide = (ROOT / "docs" / "src" / "onnxruntime.md").read_text()
    commands = re.findall(r"^\$ (env/bin/(?:polygraphy|python -m) (?:.*\\\n)*.*)$", guide, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        subprocess.run(command, shell=True, check=True, stdout=subprocess.DEVNULL, timeout=120)
    programs = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    for program, size in zip(programs, [2, 4]):
        assert pass_on_every_rank(["-c", program], size) == [f"rank {rank}: (32, 64)\n" for rank in range(size)]
    assert len(programs) == 2
