//! The communicator: collectives and messages on Python's tensors.

use std::time::Duration;

use distcollective::collective::Collective;
use distcollective::comm::{BackendKind, RawCollective, RawMessage, Source};
use distcollective::tensor::MemorySpace;
use distcollective::{Error, Rank, ReduceOperation, Stream};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::addresses::{Addresses, RawMessages, parts};
use super::cuda;
use super::errors::call;
use super::memory::{check_apart, check_distinct, streams_of};
use super::tensor::{Access, Tensor};
use super::tensor_dict::{self, Arrived, Entry, Options};
use super::timeout::Timeout;
use super::work::{Pending, Work};

/// A rank of a set of ranks.
#[pyclass(frozen, module = "distcollective._core")]
pub(super) struct Communicator {
    communicator: distcollective::Communicator,
}

impl Communicator {
    pub(super) fn new(communicator: distcollective::Communicator) -> Self {
        Communicator { communicator }
    }

    /// The library's communicator.
    pub(super) fn library(&self) -> &distcollective::Communicator {
        &self.communicator
    }
}

/// An argument and its name.
type Argument<'a, 'py> = (&'static str, &'a Bound<'py, PyAny>);

/// What a call gives: the work, if the call goes on.
type Started = PyResult<Option<Work>>;

fn reduction(number: i32) -> PyResult<ReduceOperation> {
    let reduce_op = ReduceOperation::from_number(number).ok().flatten();
    reduce_op.ok_or_else(|| PyValueError::new_err(format!("there is no reduction with the number {number}")))
}

/// Checks that two tensors of a call have one element type.
fn check_same_type((name, tensor): (&str, &Tensor), (other_name, other): (&str, &Tensor)) -> PyResult<()> {
    let (element, other) = (&tensor.element, &other.element);
    match element.name == other.name {
        true => Ok(()),
        false => Err(PyTypeError::new_err(format!(
            "{name} is of {} and {other_name} of {}; they have one type",
            element.name, other.name
        ))),
    }
}

fn check_len(name: &str, tensor: &Tensor, expected: usize, why: &str) -> PyResult<()> {
    match tensor.element_count() == expected {
        true => Ok(()),
        false => {
            let len = tensor.element_count();
            Err(PyValueError::new_err(format!("{name} has {len} elements, and needs {expected}: {why}")))
        }
    }
}

/// Checks that a tensor has a part for each of `n` ranks along dimension 0.
fn check_divided(name: &str, tensor: &Tensor, n: usize) -> PyResult<()> {
    match tensor.first_len() {
        len if len.is_multiple_of(n) => Ok(()),
        len => {
            let text = format!("dimension 0 of {name} is {len}, which is not a multiple of {n} ranks");
            Err(PyValueError::new_err(text))
        }
    }
}

impl Communicator {
    fn world_size(&self) -> usize {
        self.communicator.world_size() as usize
    }

    /// Makes a call whose tensors have been checked.
    ///
    /// # Safety
    ///
    /// `enqueue` uses memory of the tensors only.
    unsafe fn start(
        &self,
        py: Python<'_>,
        tensors: Vec<Tensor>,
        async_op: bool,
        enqueue: impl FnOnce(&Stream) -> Result<distcollective::Work<RawCollective>, Error> + Send,
    ) -> Started {
        let space = self.communicator.space();
        if space == MemorySpace::Host && !async_op {
            call(py, || enqueue(&Stream::inline())?.wait().map(drop).map_err(Error::from))?;
            tensors.iter().for_each(Tensor::write_back);
            return Ok(None);
        }
        let work = match space {
            // After what makes the elements, and before what uses them.
            MemorySpace::Cuda(ordinal) => {
                let stream = one_stream(py, &tensors, ordinal)?;
                call(py, || enqueue(&cuda_stream(stream, ordinal)?))?
            }
            _ => call(py, || enqueue(&self.communicator.stream()?))?,
        };
        let work = Work::new(Pending::Collective(work), tensors);
        if async_op {
            return Ok(Some(work));
        }
        self.finish(py, &work)?;
        Ok(None)
    }

    /// Waits until tensors on a GPU have their elements, for calls on a stream of the library's.
    fn synchronize(&self, py: Python<'_>, tensors: &[Tensor]) -> PyResult<()> {
        let MemorySpace::Cuda(ordinal) = self.communicator.space() else { return Ok(()) };
        let streams = streams_of(tensors);
        call(py, || streams.iter().try_for_each(|stream| cuda_stream(*stream, ordinal)?.synchronize()))
    }

    /// Waits for work of a call that blocks. If the program ends the wait, it ends the group, as it
    /// does in a call on the host.
    fn finish(&self, py: Python<'_>, work: &Work) -> PyResult<()> {
        let ended = work.wait_until(py, None);
        if ended.is_err() && !work.is_completed(py)? {
            call(py, || self.communicator.abort("a call was interrupted by the program"))?;
        }
        ended
    }

    /// A call that reads and writes one tensor.
    fn in_place(
        &self,
        collective: Collective<Rank>,
        argument: Argument<'_, '_>,
        access: Access,
        async_op: bool,
    ) -> Started {
        let tensor = self.tensor(&collective, argument, access)?;
        let (data_type, count) = (tensor.transfer_type(), tensor.element_count());
        let addresses = Addresses::Pair([tensor.address(); 2]);
        // SAFETY: the addresses are those of the tensor, which has so many elements.
        unsafe {
            self.start(argument.1.py(), vec![tensor], async_op, |stream| {
                addresses.enqueue(&self.communicator, collective, data_type, count, stream)
            })
        }
    }

    /// A call from one tensor to another.
    fn apart(
        &self,
        collective: Collective<Rank>,
        output: Argument<'_, '_>,
        input: Argument<'_, '_>,
        async_op: bool,
    ) -> Started {
        let (n, operation) = (self.world_size(), collective.operation());
        let (input_blocks, output_blocks) = (operation.input_blocks(n), operation.output_blocks(n));
        let source = self.tensor(&collective, input, Access::Read)?;
        let destination = self.tensor(&collective, output, Access::Write)?;
        check_same_type((input.0, &source), (output.0, &destination))?;
        if input_blocks == n {
            check_divided(input.0, &source, n)?;
        }
        let len = source.element_count();
        let block = len / input_blocks;
        let why = format!("{} has {len} elements, and there are {n} ranks", input.0);
        check_len(output.0, &destination, block * output_blocks, &why)?;
        if input_blocks == output_blocks {
            check_divided(output.0, &destination, n)?;
        }
        let data_type = source.transfer_type();
        let addresses = Addresses::Pair([source.address(), destination.address()]);
        let tensors = vec![source, destination];
        check_apart(&tensors)?;
        // SAFETY: the addresses are those of the tensors, whose lengths have been checked.
        unsafe {
            self.start(input.1.py(), tensors, async_op, |stream| {
                addresses.enqueue(&self.communicator, collective, data_type, block, stream)
            })
        }
    }

    /// A call between one tensor and a list with one for each rank, on the ranks that use it.
    fn with_list(
        &self,
        collective: Collective<Rank>,
        one: Argument<'_, '_>,
        (list_name, list): (&'static str, Option<Vec<Bound<'_, PyAny>>>),
        async_op: bool,
    ) -> Started {
        let n = self.world_size();
        let uses_list = collective.root().is_none_or(|root| root == self.communicator.rank());
        let list = list.unwrap_or_default();
        let expected = if uses_list { n } else { 0 };
        if list.len() != expected {
            let len = list.len();
            let text = format!("{list_name} has {len} tensors; on this rank it has {expected}, of {n} ranks");
            return Err(PyValueError::new_err(text));
        }
        let (one_access, list_access) = match collective {
            Collective::Scatter { .. } => (Access::Write, Access::Read),
            _ => (Access::Read, Access::Write),
        };
        let tensor = self.tensor(&collective, one, one_access)?;
        let len = tensor.element_count();
        let mut tensors = Vec::with_capacity(1 + n);
        for element in &list {
            let element = self.tensor(&collective, (list_name, element), list_access)?;
            check_same_type((one.0, &tensor), (list_name, &element))?;
            tensors.push(element);
        }
        // All ranks have such a list in all_gather, so that they choose the same form.
        let is_even = tensors.windows(2).all(|pair| pair[0].element_count() == pair[1].element_count());
        if collective == Collective::AllGather && !is_even {
            let own = &tensors[self.communicator.rank().index()];
            check_len(list_name, own, len, &format!("at this rank's place, because {} has {len}", one.0))?;
            tensors.insert(0, tensor);
            let blocks = tensors.iter().map(Tensor::block).collect();
            // SAFETY: the blocks are the tensors.
            return unsafe { self.with_blocks(one.1.py(), collective, tensors, blocks, 1, async_op) };
        }
        let check = |element| check_len(list_name, element, len, &format!("{} has {len}", one.0));
        tensors.iter().try_for_each(check)?;
        let data_type = tensor.transfer_type();
        let list = tensors.iter().map(Tensor::address).collect();
        let addresses = Addresses::List(tensor.address(), list);
        tensors.push(tensor);
        check_apart(&tensors)?;
        // SAFETY: the addresses are those of the tensors, whose lengths have been checked.
        unsafe {
            self.start(one.1.py(), tensors, async_op, |stream| {
                addresses.enqueue(&self.communicator, collective, data_type, len, stream)
            })
        }
    }

    /// A call on blocks of different lengths: addresses and numbers of elements, of which the first
    /// `given` are the inputs.
    ///
    /// # Safety
    ///
    /// The blocks are in the tensors, of which there is one or more, all of one type.
    unsafe fn with_blocks(
        &self,
        py: Python<'_>,
        collective: Collective<Rank>,
        tensors: Vec<Tensor>,
        blocks: Vec<(*mut u8, usize)>,
        given: usize,
        async_op: bool,
    ) -> Started {
        check_apart(&tensors)?;
        let data_type = tensors[0].transfer_type();
        let (addresses, counts): (Vec<*mut u8>, Vec<usize>) = blocks.into_iter().unzip();
        let addresses = Addresses::Blocks(addresses);
        // SAFETY: the caller's promise.
        unsafe {
            self.start(py, tensors, async_op, |stream| {
                addresses.enqueue_blocks(&self.communicator, collective, data_type, &counts, given, stream)
            })
        }
    }

    /// The tensor of an argument, whose elements the operation can reduce if it does.
    fn tensor(
        &self,
        collective: &Collective<Rank>,
        (name, object): Argument<'_, '_>,
        access: Access,
    ) -> PyResult<Tensor> {
        let tensor = Tensor::of(object, name, access, self.communicator.space())?;
        if let Some(reduce_op) = collective.reduce_op() {
            tensor.element.check_reducible(name, reduce_op)?;
        }
        Ok(tensor)
    }
}

/// The CUDA stream on which a call on tensors runs: the one on which they are made, or on which the
/// program works.
fn one_stream(py: Python<'_>, tensors: &[Tensor], ordinal: u32) -> PyResult<usize> {
    match streams_of(tensors)[..] {
        [] => cuda::current_stream(py, ordinal),
        [stream] => Ok(stream),
        [one, other, ..] => Err(PyValueError::new_err(format!(
            "tensors of this call are made on two CUDA streams, {one:#x} and {other:#x}; make them on one, or synchronize"
        ))),
    }
}

/// The program's CUDA stream.
pub(super) fn cuda_stream(stream: usize, ordinal: u32) -> Result<Stream, Error> {
    let stream = std::ptr::with_exposed_provenance_mut(stream);
    // SAFETY: the program has given a tensor with this stream, and keeps the stream until the call
    // has ended, as the interface of the tensor demands.
    unsafe { Stream::from_raw_cuda(stream, ordinal) }
}

/// A message as Python gives it: whether it is sent, the tensor, the other rank (`None` for any),
/// the tag.
type PyMessage<'py> = (bool, Bound<'py, PyAny>, Option<u32>, u32);

#[pymethods]
impl Communicator {
    #[getter]
    fn rank(&self) -> u32 {
        self.communicator.rank().0
    }

    #[getter(world_size)]
    fn rank_count(&self) -> u32 {
        self.communicator.world_size()
    }

    /// The name of the backend.
    #[getter]
    fn backend(&self) -> &'static str {
        match self.communicator.backend() {
            BackendKind::Nccl => "nccl",
            _ => "gloo",
        }
    }

    /// The number of the GPU that tensors are on; `None` if they are in host memory.
    #[getter]
    fn gpu(&self) -> Option<u32> {
        match self.communicator.space() {
            MemorySpace::Cuda(ordinal) => Some(ordinal),
            _ => None,
        }
    }

    #[getter]
    fn timeout(&self) -> Duration {
        self.communicator.timeout()
    }

    fn with_timeout(&self, timeout: Timeout) -> Self {
        Communicator::new(self.communicator.with_timeout(timeout.0))
    }

    fn global_ranks(&self) -> Vec<u32> {
        self.communicator.global_ranks().iter().map(|rank| rank.0).collect()
    }

    fn new_group(&self, py: Python<'_>, ranks: Vec<u32>) -> PyResult<Option<Self>> {
        let group = call(py, || self.communicator.new_group(ranks))?;
        Ok(group.map(Communicator::new))
    }

    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        call(py, || self.communicator.abort(reason))
    }

    fn begin_request(&self, py: Python<'_>, id: u64) -> PyResult<()> {
        call(py, || self.communicator.begin_request(id))
    }

    fn end_request(&self, py: Python<'_>, failure: Option<&str>) -> PyResult<()> {
        call(py, || self.communicator.end_request(failure))
    }

    #[pyo3(signature = (async_op = false))]
    fn barrier(&self, py: Python<'_>, async_op: bool) -> Started {
        // SAFETY: a barrier uses no memory.
        unsafe { self.start(py, Vec::new(), async_op, |stream| self.communicator.enqueue_barrier(stream)) }
    }

    fn monitored_barrier(&self, py: Python<'_>, timeout: Timeout) -> PyResult<()> {
        call(py, || self.communicator.monitored_barrier(timeout.0))
    }

    #[pyo3(signature = (tensor, op, async_op = false))]
    fn all_reduce(&self, tensor: &Bound<'_, PyAny>, op: i32, async_op: bool) -> Started {
        let collective = Collective::AllReduce { reduce_op: reduction(op)? };
        self.in_place(collective, ("tensor", tensor), Access::Write, async_op)
    }

    #[pyo3(signature = (tensor, root, async_op = false))]
    fn broadcast(&self, tensor: &Bound<'_, PyAny>, root: u32, async_op: bool) -> Started {
        let access = if self.rank() == root { Access::Read } else { Access::Write };
        self.in_place(Collective::Broadcast { root: Rank(root) }, ("tensor", tensor), access, async_op)
    }

    #[pyo3(signature = (tensor, op, root, async_op = false))]
    fn reduce(&self, tensor: &Bound<'_, PyAny>, op: i32, root: u32, async_op: bool) -> Started {
        let access = if self.rank() == root { Access::Write } else { Access::Read };
        let collective = Collective::Reduce { reduce_op: reduction(op)?, root: Rank(root) };
        self.in_place(collective, ("tensor", tensor), access, async_op)
    }

    #[pyo3(signature = (output, input, async_op = false))]
    fn all_gather_into(&self, output: &Bound<'_, PyAny>, input: &Bound<'_, PyAny>, async_op: bool) -> Started {
        self.apart(Collective::AllGather, ("output_tensor", output), ("input_tensor", input), async_op)
    }

    #[pyo3(signature = (output, input, op, async_op = false))]
    fn reduce_scatter(&self, output: &Bound<'_, PyAny>, input: &Bound<'_, PyAny>, op: i32, async_op: bool) -> Started {
        let collective = Collective::ReduceScatter { reduce_op: reduction(op)? };
        self.apart(collective, ("output", output), ("input", input), async_op)
    }

    #[pyo3(signature = (output, input, async_op = false))]
    fn all_to_all(&self, output: &Bound<'_, PyAny>, input: &Bound<'_, PyAny>, async_op: bool) -> Started {
        self.apart(Collective::AllToAll, ("output", output), ("input", input), async_op)
    }

    /// "all_gather", "gather" or "scatter". The root alone gives the list, and in all_gather each
    /// rank.
    #[pyo3(signature = (operation, tensor, tensors, root, async_op = false))]
    fn call_on_list(
        &self,
        operation: &str,
        tensor: &Bound<'_, PyAny>,
        tensors: Option<Vec<Bound<'_, PyAny>>>,
        root: u32,
        async_op: bool,
    ) -> Started {
        let root = Rank(root);
        let (collective, list_name) = match operation {
            "all_gather" => (Collective::AllGather, "tensor_list"),
            "gather" => (Collective::Gather { root }, "gather_list"),
            "scatter" => (Collective::Scatter { root }, "scatter_list"),
            _ => return Err(PyValueError::new_err(format!("{operation} has no list"))),
        };
        self.with_list(collective, ("tensor", tensor), (list_name, tensors), async_op)
    }

    /// "all_to_all" or "reduce_scatter" between tensors that may have different lengths: one for
    /// each rank, or a single one on the side with one block.
    #[pyo3(signature = (operation, outputs, inputs, op, async_op = false))]
    fn call_on_blocks(
        &self,
        py: Python<'_>,
        operation: &str,
        outputs: Vec<Bound<'_, PyAny>>,
        inputs: Vec<Bound<'_, PyAny>>,
        op: i32,
        async_op: bool,
    ) -> Started {
        let collective = match operation {
            "all_to_all" => Collective::AllToAll,
            "reduce_scatter" => Collective::ReduceScatter { reduce_op: reduction(op)? },
            _ => return Err(PyValueError::new_err(format!("{operation} has no blocks of different lengths"))),
        };
        let mut tensors: Vec<Tensor> = Vec::with_capacity(inputs.len() + outputs.len());
        for (name, list, access) in [("an input", &inputs, Access::Read), ("an output", &outputs, Access::Write)] {
            for object in list {
                let tensor = self.tensor(&collective, (name, object), access)?;
                if let Some(first) = tensors.first() {
                    check_same_type(("the first input", first), (name, &tensor))?;
                }
                tensors.push(tensor);
            }
        }
        if tensors.is_empty() {
            return Err(PyValueError::new_err(format!("{operation} has no tensors")));
        }
        let blocks = tensors.iter().map(Tensor::block).collect();
        // SAFETY: the blocks are the tensors.
        unsafe { self.with_blocks(py, collective, tensors, blocks, inputs.len(), async_op) }
    }

    /// all_to_all of parts along dimension 0, of these lengths, or of one length.
    #[pyo3(signature = (output, input, output_sizes, input_sizes, async_op = false))]
    fn all_to_all_split(
        &self,
        output: &Bound<'_, PyAny>,
        input: &Bound<'_, PyAny>,
        output_sizes: Option<Vec<i64>>,
        input_sizes: Option<Vec<i64>>,
        async_op: bool,
    ) -> Started {
        let n = self.world_size();
        let source = self.tensor(&Collective::AllToAll, ("input", input), Access::Read)?;
        let destination = self.tensor(&Collective::AllToAll, ("output", output), Access::Write)?;
        check_same_type(("input", &source), ("output", &destination))?;
        let mut blocks = parts("input", &source, input_sizes, n)?;
        blocks.extend(parts("output", &destination, output_sizes, n)?);
        // SAFETY: `parts` divides the two tensors.
        unsafe { self.with_blocks(input.py(), Collective::AllToAll, vec![source, destination], blocks, n, async_op) }
    }

    /// On GPUs the messages are enqueued on the stream of the tensors, or wait for it and have a
    /// stream of their own.
    #[pyo3(signature = (messages, async_op = true, on_stream = false))]
    fn messages(
        &self,
        py: Python<'_>,
        messages: Vec<PyMessage<'_>>,
        async_op: bool,
        on_stream: bool,
    ) -> PyResult<Work> {
        let mut tensors = Vec::with_capacity(messages.len());
        let mut raw = Vec::with_capacity(messages.len());
        for (is_send, object, peer, tag) in messages {
            let access = if is_send { Access::Read } else { Access::Write };
            let tensor = Tensor::of(&object, "tensor", access, self.communicator.space())?;
            let (data_type, element_count) = (tensor.transfer_type(), tensor.element_count());
            let (dst, src) = match is_send {
                true => (peer.map(Rank), Source::Any),
                false => (None, peer.map(Rank).into()),
            };
            raw.push(RawMessage { address: tensor.address(), data_type, element_count, dst, src, tag });
            tensors.push(tensor);
        }
        check_distinct(&tensors)?;
        let stream = match self.communicator.space() {
            MemorySpace::Cuda(ordinal) if on_stream => Some((one_stream(py, &tensors, ordinal)?, ordinal)),
            _ => None,
        };
        if stream.is_none() {
            self.synchronize(py, &tensors)?;
        }
        let raw = RawMessages(raw);
        let pending = call(py, || {
            let stream = stream.map(|(stream, ordinal)| cuda_stream(stream, ordinal)).transpose()?;
            // SAFETY: the addresses are those of the tensors, which the work keeps until it has
            // ended, or the caller of `forget_tensors` does.
            unsafe { raw.enqueue(&self.communicator, stream.as_ref()) }
        })?;
        let work = Work::new(pending, tensors);
        if !async_op {
            self.finish(py, &work)?;
        }
        Ok(work)
    }

    fn broadcast_tensor_dict(
        &self,
        py: Python<'_>,
        entries: Option<Vec<Entry<'_>>>,
        options: Options,
    ) -> PyResult<Vec<Arrived>> {
        let own = tensor_dict::own_tensors(py, &self.communicator, entries, &options).and_then(|own| {
            self.synchronize(py, &own.tensors)?;
            Ok(own)
        });
        tensor_dict::broadcast(py, &self.communicator, own, &options)
    }

    fn broadcast_bytes<'py>(&self, py: Python<'py>, data: &[u8], root: u32) -> PyResult<Bound<'py, PyBytes>> {
        let mut bytes = if self.rank() == root { data.to_vec() } else { Vec::new() };
        call(py, || self.communicator.broadcast_bytes(&mut bytes, root))?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn all_gather_bytes<'py>(&self, py: Python<'py>, data: &[u8]) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let all = call(py, || self.communicator.all_gather_bytes(data))?;
        Ok(all.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    fn gather_bytes<'py>(&self, py: Python<'py>, data: &[u8], root: u32) -> PyResult<Option<Vec<Bound<'py, PyBytes>>>> {
        let all = call(py, || self.communicator.gather_bytes(data, root))?;
        Ok(all.map(|all| all.iter().map(|bytes| PyBytes::new(py, bytes)).collect()))
    }

    fn scatter_bytes<'py>(
        &self,
        py: Python<'py>,
        list: Option<Vec<Vec<u8>>>,
        root: u32,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let own = call(py, || self.communicator.scatter_bytes(list.as_deref(), root))?;
        Ok(PyBytes::new(py, &own))
    }
}
