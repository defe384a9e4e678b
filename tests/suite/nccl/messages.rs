//! Messages between ranks on GPUs.

use distcollective::comm::{Message, RawMessage, RawOperands, Received, Source};
use distcollective::tensor::MemorySpace;
use distcollective::{Buffer, Communicator, DataType, ErrorKind, Rank, ReduceOperation, Result, Stream};

use super::captures::SUM;
use super::{Child, cuda_stream, needs_more_gpus, on_gpus};

/// The elements of a message on a stream.
const LEN: usize = 5000;

pub fn play(name: &str, ranks: u32) {
    match name {
        "exchange" => on_gpus(ranks, |communicator| exchange(&communicator)),
        "streams" => on_gpus(ranks, |communicator| on_a_stream(&communicator)),
        "first" => on_gpus(ranks, |communicator| first(&communicator)),
        "refusals" => on_gpus(ranks, |communicator| refusals(&communicator)),
        _ => panic!("{name} is no role"),
    }
}

/// Each rank sends to the next one: host slices one after the other, and buffers of the GPU at
/// once.
fn exchange(communicator: &Communicator) -> Result<()> {
    let (rank, n) = (communicator.rank().0, communicator.world_size());
    let (next, before) = ((rank + 1) % n, (rank + n - 1) % n);
    for len in [1, 5000] {
        for sender in 0..n {
            if rank == sender {
                communicator.send(&vec![f32::from(sender as u8); len], next, 0)?;
            } else if before == sender {
                let mut x = vec![-1.0f32; len];
                let got = communicator.recv(&mut x, sender, 0)?;
                assert_eq!(got, Received { source: Rank(sender), element_count: len });
                assert!(x.iter().all(|x| *x == f32::from(sender as u8)));
            }
        }
    }
    for data_type in DataType::ALL {
        let len = 100 * data_type.byte_len();
        let bytes_of = |from: u32| -> Vec<u8> { (0..len).map(|i| (from as usize * 50 + i) as u8).collect() };
        let mut sent = Buffer::zeroed_in(communicator.space(), data_type, [100])?;
        sent.write(0, &bytes_of(rank))?;
        let received = Buffer::zeroed_in(communicator.space(), data_type, [100])?;
        let messages = vec![Message::send(sent, next, 0), Message::recv(received, before, 0)];
        let done = communicator.batch_isend_irecv(messages)?.wait()?;
        let mut bytes = vec![0; len];
        done.messages[1].buffer.read(0, &mut bytes)?;
        assert_eq!(bytes, bytes_of(before), "{data_type}");
        assert_eq!(done.received(), [None, Some(Received { source: Rank(before), element_count: 100 })]);
    }
    // A message of no elements needs no peer.
    communicator.send(&[0.0f32; 0], next, 0)
}

/// The first messages between opposite ranks: one puts both directions into a batch, the other one
/// makes one after the other.
fn first(communicator: &Communicator) -> Result<()> {
    let (rank, n) = (communicator.rank().0, communicator.world_size());
    let (opposite, buffer) = ((rank + n / 2) % n, || Buffer::zeroed_in(communicator.space(), DataType::Float32, [5]));
    if rank < opposite {
        let messages = vec![Message::send(buffer()?, opposite, 0), Message::recv(buffer()?, opposite, 0)];
        communicator.batch_isend_irecv(messages)?.wait()?;
    } else {
        let received = communicator.irecv(buffer()?, opposite, 0)?;
        communicator.isend(buffer()?, opposite, 0)?.wait()?;
        received.wait()?;
    }
    communicator.barrier()
}

/// Messages on a CUDA stream send what the stream has computed before, and nothing waits between.
fn on_a_stream(communicator: &Communicator) -> Result<()> {
    let (rank, n, stream) = (communicator.rank().0, communicator.world_size(), cuda_stream(communicator)?);
    let buffer_of = |value: u32| -> Result<Buffer> {
        let mut buffer = Buffer::zeroed_in(communicator.space(), DataType::Uint32, [LEN as i64])?;
        buffer.write(0, &value.to_ne_bytes().repeat(LEN))?;
        Ok(buffer)
    };
    let (sum, gathered, received) = (buffer_of(rank + 1)?, buffer_of(0)?, buffer_of(0)?);
    let message = |buffer: &Buffer, dst: Option<u32>, src: u32| RawMessage {
        address: buffer.as_ptr().cast_mut(),
        data_type: DataType::Uint32.into(),
        element_count: LEN,
        dst: dst.map(Rank),
        src: Source::Rank(Rank(src)),
        tag: 0,
    };
    let messages = [message(&sum, Some((rank + 1) % n), 0), message(&received, None, (rank + n - 1) % n)];
    // SAFETY: the buffers live until the stream is synchronized, and nothing else uses them.
    unsafe {
        let address = sum.as_ptr().cast_mut();
        let in_place = RawOperands::Pair { input: address, output: address };
        let reduced = communicator.enqueue(SUM, DataType::Uint32, LEN, in_place, &stream)?;
        let sent = communicator.enqueue_messages(&messages, Some(&stream))?;
        let again = RawOperands::Pair { input: received.as_ptr(), output: gathered.as_ptr().cast_mut() };
        let copied = communicator.enqueue(SUM, DataType::Uint32, LEN, again, &stream)?;
        for work in [reduced, copied] {
            work.wait()?;
        }
        sent.wait()?;
    }
    let mut bytes = vec![0; 4 * LEN];
    gathered.read(0, &mut bytes)?;
    let total: u32 = (1..=n).sum::<u32>() * n;
    assert_eq!(bytes, total.to_ne_bytes().repeat(LEN));
    let MemorySpace::Cuda(gpu) = communicator.space() else { panic!("the communicator is not on a GPU") };
    if let Ok(other) = Stream::cuda(gpu ^ 1) {
        // SAFETY: the call is refused.
        let error = unsafe { communicator.enqueue_messages(&messages, Some(&other)) }.expect_err("another GPU's");
        assert!(
            error.to_string().contains(&format!("batch_isend_irecv: the stream is one of GPU {}", gpu ^ 1)),
            "{error}"
        );
    }
    communicator.barrier()
}

/// What NCCL does not have is an error that says so, and the communicator still works.
fn refusals(communicator: &Communicator) -> Result<()> {
    let other = 1 - communicator.rank().0;
    let is_unsupported = |result: Result<()>, text: &str| {
        let error = result.expect_err("NCCL does not have it");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(text), "{error}");
    };
    let bits = communicator.all_reduce(&mut [1u8], ReduceOperation::Bor);
    is_unsupported(bits, "all_reduce: NCCL has no bor; the host backend has it");
    is_unsupported(communicator.send(&[1], other, 3), "send: tag 3: NCCL has no tags");
    is_unsupported(communicator.recv(&mut [1], None, 0).map(drop), "recv: NCCL does not receive from any rank");
    let failed = communicator.isend(vec![1], other, 0).expect_err("a buffer in host memory");
    assert_eq!(failed.error.kind(), ErrorKind::InvalidBuffer);
    communicator.barrier()
}

#[test]
fn ranks_on_gpus_exchange_messages() {
    for ranks in [2, 3] {
        if !needs_more_gpus(ranks) {
            Child::new("messages exchange", ranks).passes();
        }
    }
}

#[test]
fn first_messages_of_opposite_ranks_are_in_any_order() {
    for ranks in [2, 4] {
        if !needs_more_gpus(ranks) {
            Child::new("messages first", ranks).passes();
        }
    }
}

#[test]
fn messages_on_a_stream_keep_its_order() {
    if !needs_more_gpus(2) {
        Child::new("messages streams", 2).passes();
    }
}

#[test]
fn what_nccl_has_not_is_refused() {
    if !needs_more_gpus(2) {
        Child::new("messages refusals", 2).passes();
    }
}
