//! The eager collectives: `dcl_all_reduce` to `dcl_scatter`.

use dcl::collective::Collective;
use dcl::comm::{RawBlocks, RawOperands};
use dcl::{Rank, ReduceOperation};

use super::arguments::{ConstVoidPointer, InPointer, OutPointer, VoidPointer, data_type, reduce_op, unsigned};
use super::communicator::CCommunicator;
use super::handle::Handle;
use super::status::{CallError, Result, Status, call};
use super::stream::{AnyWork, CStream, CWork, enqueue};

/// The arguments that every collective has.
struct EagerCall {
    communicator: Handle<CCommunicator>,
    input: ConstVoidPointer,
    output: VoidPointer,
    count: usize,
    data_type: i32,
    stream: Handle<CStream>,
    work: OutPointer<Handle<CWork>>,
}

impl EagerCall {
    fn enqueue(self, collective: Collective<Rank>) -> Result<()> {
        let EagerCall { communicator, input, output, count, data_type, stream, work } = self;
        let (communicator, data_type) = (communicator.get()?, self::data_type(data_type)?);
        enqueue(stream, work, |stream| {
            let operands = RawOperands::Pair { input: input.address(), output: output.address().cast() };
            // SAFETY: the header requires memory that is long enough, and that the caller leaves
            // alone until the work is done.
            let work = unsafe { communicator.communicator.enqueue(collective, data_type, count, operands, stream)? };
            Ok(AnyWork::Collective(work))
        })
    }
}

fn reduction(number: i32) -> Result<ReduceOperation> {
    reduce_op(number)?
        .ok_or_else(|| CallError::invalid_argument("it needs a reduce operation: sum, prod, max, min or avg"))
}

pub(super) fn root(number: i32) -> Result<Rank> {
    Ok(Rank(unsigned("root", number)?))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_all_reduce(
    communicator: Handle<CCommunicator>,
    input: ConstVoidPointer,
    output: VoidPointer,
    count: usize,
    data_type: i32,
    reduce_op: i32,
    stream: Handle<CStream>,
    work: OutPointer<Handle<CWork>>,
) -> Status {
    call(|| {
        let call = EagerCall { communicator, input, output, count, data_type, stream, work };
        call.enqueue(Collective::AllReduce { reduce_op: reduction(reduce_op)? })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_all_gather(
    communicator: Handle<CCommunicator>,
    input: ConstVoidPointer,
    output: VoidPointer,
    count: usize,
    data_type: i32,
    stream: Handle<CStream>,
    work: OutPointer<Handle<CWork>>,
) -> Status {
    call(|| {
        let call = EagerCall { communicator, input, output, count, data_type, stream, work };
        call.enqueue(Collective::AllGather)
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_broadcast(
    communicator: Handle<CCommunicator>,
    input: ConstVoidPointer,
    output: VoidPointer,
    count: usize,
    data_type: i32,
    root: i32,
    stream: Handle<CStream>,
    work: OutPointer<Handle<CWork>>,
) -> Status {
    call(|| {
        let call = EagerCall { communicator, input, output, count, data_type, stream, work };
        call.enqueue(Collective::Broadcast { root: self::root(root)? })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_reduce(
    communicator: Handle<CCommunicator>,
    input: ConstVoidPointer,
    output: VoidPointer,
    count: usize,
    data_type: i32,
    reduce_op: i32,
    root: i32,
    stream: Handle<CStream>,
    work: OutPointer<Handle<CWork>>,
) -> Status {
    call(|| {
        let call = EagerCall { communicator, input, output, count, data_type, stream, work };
        call.enqueue(Collective::Reduce { reduce_op: reduction(reduce_op)?, root: self::root(root)? })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_reduce_scatter(
    communicator: Handle<CCommunicator>,
    input: ConstVoidPointer,
    output: VoidPointer,
    count: usize,
    data_type: i32,
    reduce_op: i32,
    stream: Handle<CStream>,
    work: OutPointer<Handle<CWork>>,
) -> Status {
    call(|| {
        let call = EagerCall { communicator, input, output, count, data_type, stream, work };
        call.enqueue(Collective::ReduceScatter { reduce_op: reduction(reduce_op)? })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_all_to_all(
    communicator: Handle<CCommunicator>,
    input: ConstVoidPointer,
    output: VoidPointer,
    count: usize,
    data_type: i32,
    stream: Handle<CStream>,
    work: OutPointer<Handle<CWork>>,
) -> Status {
    call(|| {
        let call = EagerCall { communicator, input, output, count, data_type, stream, work };
        call.enqueue(Collective::AllToAll)
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_gather(
    communicator: Handle<CCommunicator>,
    input: ConstVoidPointer,
    output: VoidPointer,
    count: usize,
    data_type: i32,
    root: i32,
    stream: Handle<CStream>,
    work: OutPointer<Handle<CWork>>,
) -> Status {
    call(|| {
        let call = EagerCall { communicator, input, output, count, data_type, stream, work };
        call.enqueue(Collective::Gather { root: self::root(root)? })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_scatter(
    communicator: Handle<CCommunicator>,
    input: ConstVoidPointer,
    output: VoidPointer,
    count: usize,
    data_type: i32,
    root: i32,
    stream: Handle<CStream>,
    work: OutPointer<Handle<CWork>>,
) -> Status {
    call(|| {
        let call = EagerCall { communicator, input, output, count, data_type, stream, work };
        call.enqueue(Collective::Scatter { root: self::root(root)? })
    })
}

/// The arguments that every list form has. A list is read on the ranks that use it.
struct ListCall<T> {
    communicator: Handle<CCommunicator>,
    one: *mut u8,
    list: InPointer<T>,
    count: usize,
    data_type: i32,
    stream: Handle<CStream>,
    work: OutPointer<Handle<CWork>>,
}

impl<T: Copy> ListCall<T> {
    fn enqueue(self, name: &str, collective: Collective<Rank>, address: impl Fn(&T) -> *mut u8) -> Result<()> {
        let ListCall { communicator, one, list, count, data_type, stream, work } = self;
        let (communicator, data_type) = (communicator.get()?, self::data_type(data_type)?);
        let communicator = &communicator.communicator;
        let uses_list = collective.root().is_none_or(|root| root == communicator.rank());
        let list = list.array(name, if uses_list { communicator.world_size() } else { 0 })?;
        let operands = RawOperands::List { one, list: &list.iter().map(address).collect::<Vec<_>>() };
        enqueue(stream, work, |stream| {
            // SAFETY: the header requires memory that is long enough, and that the caller leaves
            // alone until the work is done.
            let work = unsafe { communicator.enqueue(collective, data_type, count, operands, stream)? };
            Ok(AnyWork::Collective(work))
        })
    }
}

#[unsafe(no_mangle)]
extern "C" fn dcl_all_gather_list(
    communicator: Handle<CCommunicator>,
    input: ConstVoidPointer,
    outputs: InPointer<VoidPointer>,
    count: usize,
    data_type: i32,
    stream: Handle<CStream>,
    work: OutPointer<Handle<CWork>>,
) -> Status {
    call(|| {
        let one = input.address().cast_mut();
        let call = ListCall { communicator, one, list: outputs, count, data_type, stream, work };
        call.enqueue("outputs", Collective::AllGather, |output| output.address().cast())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_gather_list(
    communicator: Handle<CCommunicator>,
    input: ConstVoidPointer,
    outputs: InPointer<VoidPointer>,
    count: usize,
    data_type: i32,
    root: i32,
    stream: Handle<CStream>,
    work: OutPointer<Handle<CWork>>,
) -> Status {
    call(|| {
        let one = input.address().cast_mut();
        let call = ListCall { communicator, one, list: outputs, count, data_type, stream, work };
        call.enqueue("outputs", Collective::Gather { root: self::root(root)? }, |output| output.address().cast())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_scatter_list(
    communicator: Handle<CCommunicator>,
    inputs: InPointer<ConstVoidPointer>,
    output: VoidPointer,
    count: usize,
    data_type: i32,
    root: i32,
    stream: Handle<CStream>,
    work: OutPointer<Handle<CWork>>,
) -> Status {
    call(|| {
        let one = output.address().cast();
        let call = ListCall { communicator, one, list: inputs, count, data_type, stream, work };
        call.enqueue("inputs", Collective::Scatter { root: self::root(root)? }, |input| input.address().cast_mut())
    })
}

/// One side of a call with counts: the first block, and the counts. They are read on the ranks that
/// use the side.
struct CountedSide {
    name: &'static str,
    address: *mut u8,
    counts: Counts,
}

enum Counts {
    /// Of one block.
    One(usize),
    /// Of a block for each rank.
    Each(InPointer<usize>),
}

/// The other arguments of a call with counts.
struct CountedCall {
    communicator: Handle<CCommunicator>,
    data_type: i32,
    stream: Handle<CStream>,
    work: OutPointer<Handle<CWork>>,
}

impl CountedCall {
    fn enqueue(self, collective: Collective<Rank>, sides: [CountedSide; 2]) -> Result<()> {
        let CountedCall { communicator, data_type, stream, work } = self;
        let (communicator, data_type) = (communicator.get()?, self::data_type(data_type)?);
        let communicator = &communicator.communicator;
        let is_root = collective.root().is_none_or(|root| root == communicator.rank());
        let mut blocks = [(Vec::new(), Vec::new()), (Vec::new(), Vec::new())];
        for ((addresses, counts), CountedSide { name, address, counts: given }) in blocks.iter_mut().zip(sides) {
            *counts = match given {
                Counts::One(count) => vec![count],
                Counts::Each(list) => list.array(name, if is_root { communicator.world_size() } else { 0 })?,
            };
            let mut next = address;
            for count in &*counts {
                addresses.push(next);
                next = next.wrapping_add(count.wrapping_mul(data_type.byte_len()));
            }
        }
        let blocks = blocks.each_ref().map(|(addresses, counts)| RawBlocks { addresses, counts });
        enqueue(stream, work, |stream| {
            // SAFETY: the header requires memory that is long enough, and that the caller leaves
            // alone until the work is done.
            let work = unsafe { communicator.enqueue_v(collective, data_type, blocks, stream)? };
            Ok(AnyWork::Collective(work))
        })
    }
}

/// The input of a call with counts.
fn input(address: ConstVoidPointer, counts: Counts) -> CountedSide {
    CountedSide { name: "input_counts", address: address.address().cast_mut(), counts }
}

/// The output of a call with counts.
fn output(address: VoidPointer, counts: Counts) -> CountedSide {
    CountedSide { name: "output_counts", address: address.address().cast(), counts }
}

#[unsafe(no_mangle)]
extern "C" fn dcl_all_to_all_v(
    communicator: Handle<CCommunicator>,
    input: ConstVoidPointer,
    input_counts: InPointer<usize>,
    output: VoidPointer,
    output_counts: InPointer<usize>,
    data_type: i32,
    stream: Handle<CStream>,
    work: OutPointer<Handle<CWork>>,
) -> Status {
    call(|| {
        let sides = [self::input(input, Counts::Each(input_counts)), self::output(output, Counts::Each(output_counts))];
        CountedCall { communicator, data_type, stream, work }.enqueue(Collective::AllToAll, sides)
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_all_gather_v(
    communicator: Handle<CCommunicator>,
    input: ConstVoidPointer,
    input_count: usize,
    output: VoidPointer,
    output_counts: InPointer<usize>,
    data_type: i32,
    stream: Handle<CStream>,
    work: OutPointer<Handle<CWork>>,
) -> Status {
    call(|| {
        let sides = [self::input(input, Counts::One(input_count)), self::output(output, Counts::Each(output_counts))];
        CountedCall { communicator, data_type, stream, work }.enqueue(Collective::AllGather, sides)
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_gather_v(
    communicator: Handle<CCommunicator>,
    input: ConstVoidPointer,
    input_count: usize,
    output: VoidPointer,
    output_counts: InPointer<usize>,
    data_type: i32,
    root: i32,
    stream: Handle<CStream>,
    work: OutPointer<Handle<CWork>>,
) -> Status {
    call(|| {
        let sides = [self::input(input, Counts::One(input_count)), self::output(output, Counts::Each(output_counts))];
        let collective = Collective::Gather { root: self::root(root)? };
        CountedCall { communicator, data_type, stream, work }.enqueue(collective, sides)
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_scatter_v(
    communicator: Handle<CCommunicator>,
    input: ConstVoidPointer,
    input_counts: InPointer<usize>,
    output: VoidPointer,
    output_count: usize,
    data_type: i32,
    root: i32,
    stream: Handle<CStream>,
    work: OutPointer<Handle<CWork>>,
) -> Status {
    call(|| {
        let sides = [self::input(input, Counts::Each(input_counts)), self::output(output, Counts::One(output_count))];
        let collective = Collective::Scatter { root: self::root(root)? };
        CountedCall { communicator, data_type, stream, work }.enqueue(collective, sides)
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_reduce_scatter_v(
    communicator: Handle<CCommunicator>,
    input: ConstVoidPointer,
    input_counts: InPointer<usize>,
    output: VoidPointer,
    output_count: usize,
    data_type: i32,
    reduce_op: i32,
    stream: Handle<CStream>,
    work: OutPointer<Handle<CWork>>,
) -> Status {
    call(|| {
        let sides = [self::input(input, Counts::Each(input_counts)), self::output(output, Counts::One(output_count))];
        let collective = Collective::ReduceScatter { reduce_op: reduction(reduce_op)? };
        CountedCall { communicator, data_type, stream, work }.enqueue(collective, sides)
    })
}
