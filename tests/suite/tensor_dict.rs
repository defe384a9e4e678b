//! Dictionaries of tensors: the broadcast between threads and between processes, and what ends it.

#[cfg(feature = "safetensors")]
mod files;
mod kills;
mod shared;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use distcollective::tensor::MemorySpace;
use distcollective::tensor_dict::{BroadcastOptions, ElementType, OpaqueType, Tensor};
use distcollective::{
    Buffer, Communicator, DataType, Environment, ErrorKind, Rank, ReduceOperation, Result, Stream, TensorDict,
};

use crate::messages::on_both;
use crate::processes::{Role, command, new_job};
use crate::ranks::{DEADLINE, on_ranks, wait_all};

/// The longest piece of a broadcast, and the length from which on a tensor has its own pieces.
const PIECE: usize = 8 << 20;
const PACKED: usize = 256 << 10;

/// Bytes that differ from place to place and from seed to seed. They repeat after a prime number,
/// which no piece is a multiple of.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    const PERIOD: usize = 4099;
    let period: Vec<u8> = (0..PERIOD).map(|i| (i.wrapping_mul(31) ^ i >> 8 ^ seed.wrapping_mul(97)) as u8).collect();
    let mut bytes = period.repeat(len.div_ceil(PERIOD));
    bytes.truncate(len);
    bytes
}

fn filled(data_type: DataType, dims: &[i64], seed: usize) -> Buffer {
    let mut buffer = Buffer::zeroed(data_type, dims).expect("a buffer");
    let bytes = pattern(buffer.byte_len(), seed);
    buffer.as_mut_bytes().expect("host memory").copy_from_slice(&bytes);
    buffer
}

/// A dictionary with every type and kind of tensor.
pub fn weights(seed: usize) -> TensorDict {
    let mut dict = TensorDict::new();
    for (number, data_type) in DataType::ALL.into_iter().enumerate() {
        dict.insert(format!("{data_type}"), filled(data_type, &[3, 5], seed + number));
    }
    dict.insert("scalar", filled(DataType::Float32, &[], seed + 20));
    dict.insert("empty", filled(DataType::Int64, &[0, 7], seed));
    let int16 = OpaqueType::new("I16", 16).expect("a type");
    dict.insert("int16", Tensor::opaque(int16, [2, 2], pattern(8, seed + 21)).expect("8 bytes"));
    let float4 = OpaqueType::new("F4", 4).expect("a type");
    dict.insert("float4", Tensor::opaque(float4, [3, 2], pattern(3, seed + 22)).expect("3 bytes"));
    for (name, len) in [("packed", PACKED - 1), ("alone", PACKED), ("long", PIECE + 50), ("pieces", PIECE + PACKED)] {
        dict.insert(name, filled(DataType::Uint8, &[len as i64], seed + len));
    }
    let matrix = filled(DataType::Int32, &[300, 400], seed + 23);
    dict.insert("transposed", Tensor::strided(matrix, 0, [400, 300], &[1, 400]).expect("it fits"));
    dict.metadata_mut().insert("format".to_owned(), format!("pt {seed}"));
    dict
}

fn bytes_of(tensor: &Tensor) -> Vec<u8> {
    let mut bytes = vec![0; tensor.byte_len()];
    tensor.read(0, &mut bytes).expect("all bytes");
    bytes
}

/// Checks that `dict` has the tensors of `expected`, bit for bit and in this order, after `first`
/// others.
pub fn assert_has(dict: &TensorDict, expected: &TensorDict, first: usize) {
    let describe = |(name, tensor): (&str, &Tensor)| format!("{name} {tensor:?}");
    let names = |dict: &TensorDict, first| dict.iter().skip(first).map(describe).collect::<Vec<_>>();
    assert_eq!(names(dict, first), names(expected, 0));
    for (name, tensor) in expected.iter() {
        assert!(bytes_of(dict.get(name).expect("it is there")) == bytes_of(tensor), "{name} differs");
    }
    assert_eq!(dict.metadata(), expected.metadata());
}

/// What every rank does in a broadcast from each rank in turn, first into empty dictionaries, then
/// into the tensors that came before.
fn broadcast_from_each_rank(communicator: &Communicator) {
    for src in 0..communicator.world_size() {
        let options = BroadcastOptions::new().src(src);
        let mut own = TensorDict::new();
        for round in 0..3 {
            let expected = weights(src as usize + round);
            if communicator.rank().0 == src {
                own = weights(src as usize + round);
            }
            let places: Vec<_> = own.iter().map(|(_, tensor)| tensor.as_buffer().map(Buffer::as_ptr)).collect();
            communicator.broadcast_tensor_dict(&mut own, &options).expect("a broadcast");
            assert_has(&own, &expected, 0);
            let now: Vec<_> = own.iter().map(|(_, tensor)| tensor.as_buffer().map(Buffer::as_ptr)).collect();
            assert!(places.is_empty() || places == now, "tensors that match are filled in place");
        }
    }
}

#[test]
fn threads_get_every_tensor_of_the_source() {
    for ranks in [1, 2, 3] {
        on_ranks(ranks, |communicator| broadcast_from_each_rank(&communicator));
    }
}

/// What a rank of several processes does.
pub fn play(role: &str, communicator: Communicator) {
    match role {
        "dict: broadcast" => {
            broadcast_from_each_rank(&communicator);
            #[cfg(feature = "safetensors")]
            files::broadcast_a_mapped_file(&communicator);
        }
        "dict: rank 1 exits in the middle" => {
            lose_a_rank(&communicator, 1, BroadcastOptions::new(), || std::process::exit(0));
        }
        _ => match role.strip_prefix("dict: kill: ") {
            Some(phase) => kills::play(phase, &communicator),
            None => shared::play(role, communicator),
        },
    }
}

/// What a rank of an environment does, which has a group of these ranks: its group's first rank
/// gives the group its dictionary, then rank 0 gives its own to all.
pub fn broadcast_in_groups(environment: &Environment, name: &str, members: [u32; 2]) {
    let rank = environment.rank().0;
    let mut own = if [0, members[0]].contains(&rank) { weights(rank as usize) } else { TensorDict::new() };
    let group = environment.group(name);
    if members.contains(&rank) {
        group.expect("a member").broadcast_tensor_dict(&mut own, &BroadcastOptions::new()).expect("a broadcast");
        assert_has(&own, &weights(members[0] as usize), 0);
    } else {
        let error = group.expect_err("this rank is not a member");
        let text = format!("rank {rank} is not a member of group {name:?}, which has ranks");
        assert_eq!(error.kind(), ErrorKind::NotAMember);
        assert!(error.to_string().contains(&text), "{error}");
    }
    let all = environment.communicator();
    all.broadcast_tensor_dict(&mut own, &BroadcastOptions::new()).expect("a broadcast");
    assert_has(&own, &weights(members[0] as usize), 0);
    let error = environment.group("trio").expect_err("no such group");
    assert_eq!(error.to_string(), "there is no group \"trio\"; there are \"default\", \"pair\"");
}

/// Runs a role on processes of one rank each.
fn between_processes(name: &str, world_size: u32) -> Vec<(bool, String)> {
    let job = new_job();
    let role = |first_rank| Role { name, job: &job, world_size, first_rank, local_ranks: 1, quarter: 0 };
    let children = (0..world_size).map(|rank| command(&role(rank)).spawn().expect("a child starts"));
    wait_all(children.collect(), DEADLINE)
}

#[test]
fn processes_get_every_tensor_of_the_source() {
    for (succeeded, text) in between_processes("dict: broadcast", 3) {
        assert!(succeeded, "{text}");
    }
}

#[test]
fn up_to_8_ranks_get_the_tensors() {
    for n in 4..=8 {
        on_both(n, move |communicator| {
            for is_shared in [false, true] {
                let own = |seed| {
                    let mut dict = weights(seed);
                    ["long", "pieces"].iter().for_each(|name| drop(dict.remove(name)));
                    dict
                };
                let is_source = communicator.rank() == Rank(n - 1);
                let mut dict = TensorDict::new();
                for seed in 0..2 {
                    if is_source {
                        dict = own(seed);
                    }
                    let options = BroadcastOptions::new().src(n - 1).shared(is_shared);
                    communicator.broadcast_tensor_dict(&mut dict, &options).expect("a broadcast");
                    assert_has(&dict, &own(seed), 0);
                }
            }
        });
    }
}

#[test]
fn a_receiver_keeps_what_does_not_arrive_and_replaces_what_cannot_be_filled() {
    on_ranks(2, |communicator| {
        let mut dict = TensorDict::new();
        let is_source = communicator.rank() == Rank(0);
        if !is_source {
            dict.insert("own", Buffer::from(vec![7u8]));
            let rows = filled(DataType::Int32, &[4, 2], 0);
            dict.insert("b", Tensor::strided(rows, 0, [2, 2], &[4, 1]).expect("it fits"));
            dict.metadata_mut().insert("format".to_owned(), "own".to_owned());
        }
        let mut expected = TensorDict::new();
        expected.insert("a", filled(DataType::Float16, &[4], 1));
        expected.insert("b", filled(DataType::Int32, &[2, 2], 2));
        if is_source {
            expected.iter().for_each(|(name, tensor)| {
                let copy = tensor.as_buffer().expect("a buffer").try_clone().expect("memory");
                drop(dict.insert(name, copy));
            });
        }
        communicator.broadcast_tensor_dict(&mut dict, &BroadcastOptions::new())?;
        let names: Vec<_> = dict.iter().map(|(name, _)| name.to_owned()).collect();
        let (order, own): (&[&str], _) = if is_source { (&["a", "b"], None) } else { (&["own", "b", "a"], Some(1)) };
        assert_eq!(
            (names, dict.get("own").map(Tensor::byte_len)),
            (order.iter().map(|n| (*n).to_owned()).collect(), own)
        );
        for (name, tensor) in expected.iter() {
            assert_eq!(dict.get(name).expect("it came").as_bytes()?, tensor.as_bytes()?);
        }
        assert!(dict.metadata().is_empty());
        Ok::<_, distcollective::Error>(())
    })
    .into_iter()
    .for_each(|result| result.unwrap_or_else(|error| panic!("{error}")));
}

/// Each rank's error of a broadcast with options of its own. The communicator works afterwards,
/// and no dictionary has changed.
fn refused(ranks: u32, dict: fn(u32) -> TensorDict, options: fn(u32) -> BroadcastOptions) -> Vec<(ErrorKind, String)> {
    on_ranks(ranks, move |communicator| {
        let rank = communicator.rank().0;
        let mut own = dict(rank);
        let error = communicator.broadcast_tensor_dict(&mut own, &options(rank)).expect_err("it is refused");
        assert_has(&own, &dict(rank), 0);
        let mut sum = [1i32];
        communicator.all_reduce(&mut sum, ReduceOperation::Sum).expect("the communicator works");
        assert_eq!(sum, [ranks as i32]);
        let mut own = TensorDict::new();
        communicator.broadcast_tensor_dict(&mut own, &BroadcastOptions::new()).expect("nothing is broadcast");
        (error.kind(), error.to_string())
    })
}

fn empty(_: u32) -> TensorDict {
    TensorDict::new()
}

#[test]
fn ranks_that_name_wrong_sources_get_an_error() {
    let errors = refused(3, empty, |rank| BroadcastOptions::new().src(u32::from(rank == 2)));
    let names = |own: u32, rank: u32, other: u32| {
        let text = format!(
            "rank {own}: broadcast_tensor_dict: the ranks name different sources: this rank names {}, and rank {rank} \
             names {other}",
            u32::from(own == 2)
        );
        (ErrorKind::Disagreement, text)
    };
    assert_eq!(errors, [names(0, 2, 1), names(1, 2, 1), names(2, 0, 0)]);

    let errors = refused(2, empty, |_| BroadcastOptions::new().src(2));
    for (rank, (kind, text)) in errors.into_iter().enumerate() {
        assert_eq!(kind, ErrorKind::InvalidArgument);
        assert_eq!(text, format!("rank {rank}: broadcast_tensor_dict: source 2 is not one of 2 ranks"));
    }
    let errors = refused(2, empty, |rank| BroadcastOptions::new().src(2 * rank));
    assert_eq!(errors[1].1, "rank 1: broadcast_tensor_dict: source 2 is not one of 2 ranks");
    let told = "rank 0: broadcast_tensor_dict: no dictionary has changed, because rank 1 refuses: source 2 is not one of \
                2 ranks";
    assert_eq!(errors[0], (ErrorKind::InvalidArgument, told.to_owned()));
}

#[test]
fn a_receiver_with_another_schema_ends_nothing() {
    let dict = |rank: u32| {
        let mut dict = TensorDict::new();
        let dims: &[i64] = if rank == 1 { &[3, 2] } else { &[2, 3] };
        dict.insert("w", filled(DataType::Float32, dims, rank as usize));
        dict
    };
    let errors = refused(3, dict, |_| BroadcastOptions::new());
    let own = "tensor \"w\": this rank has float32 [3, 2], and the source sends float32 [2, 3]; remove this rank's, or \
               give it that type and shape";
    for (rank, (kind, text)) in errors.into_iter().enumerate() {
        assert_eq!(kind, ErrorKind::InvalidBuffer);
        let told = if rank == 1 { "" } else { "no dictionary has changed, because rank 1 refuses: " };
        assert_eq!(text, format!("rank {rank}: broadcast_tensor_dict: {told}{own}"));
    }
    let dict = |rank: u32| {
        let mut dict = TensorDict::new();
        dict.insert("w", filled(if rank == 0 { DataType::Int8 } else { DataType::Uint8 }, &[1], 0));
        dict
    };
    let errors = refused(2, dict, |_| BroadcastOptions::new());
    assert!(errors[1].1.contains("this rank has uint8 [1], and the source sends int8 [1]"), "{errors:?}");
}

#[test]
fn options_that_do_not_fit_are_an_error_on_every_rank() {
    if std::env::var_os("DCL_TEST_GPU").is_some() {
        println!("skipped: this needs a machine without a GPU");
    } else {
        for (kind, text) in refused(2, empty, |_| BroadcastOptions::new().pin_memory(true)) {
            assert!(kind == ErrorKind::Unsupported && text.contains("pin_memory needs CUDA: "), "{kind:?} {text}");
        }
    }
    let errors = refused(2, empty, |rank| match rank {
        0 => BroadcastOptions::new().device(MemorySpace::Cuda(9)),
        _ => BroadcastOptions::new().device(MemorySpace::Host),
    });
    assert!(errors[0].1.starts_with("rank 0: broadcast_tensor_dict: the device needs CUDA: "), "{errors:?}");
    assert!(errors[1].1.contains("because rank 0 refuses: the device needs CUDA: "), "{errors:?}");
}

/// A caller finds a mistake before the call, on one rank.
#[test]
fn a_rank_that_refuses_tells_every_rank() {
    for is_shared in [false, true] {
        let dict = |rank| if rank == 0 { weights(0) } else { TensorDict::new() };
        let options: fn(u32) -> BroadcastOptions = match is_shared {
            false => |rank| refusing(rank, BroadcastOptions::new()),
            // The ranks do not agree on anything else either.
            true => |rank| refusing(rank, BroadcastOptions::new().src(rank % 2).shared(rank == 2)),
        };
        for (rank, (kind, text)) in refused(3, dict, options).into_iter().enumerate() {
            let told = if rank == 1 { "" } else { "no dictionary has changed, because rank 1 refuses: " };
            assert_eq!(kind, ErrorKind::NotReady);
            assert_eq!(text, format!("rank {rank}: broadcast_tensor_dict: {told}there is no such model"));
        }
    }
}

fn refusing(rank: u32, options: BroadcastOptions) -> BroadcastOptions {
    match rank {
        1 => options.refuse(distcollective::Error::new(ErrorKind::NotReady, "there is no such model")),
        _ => options,
    }
}

#[test]
fn without_gpus_the_host_is_the_default() {
    on_ranks(2, |communicator| {
        let options = BroadcastOptions::new().device(MemorySpace::Host);
        let mut dict = if communicator.rank() == Rank(0) { weights(1) } else { TensorDict::new() };
        communicator.broadcast_tensor_dict(&mut dict, &options).expect("a broadcast");
        assert_has(&dict, &weights(1), 0);
    });
}

#[test]
fn another_call_of_a_rank_is_a_disagreement() {
    let errors = on_ranks(2, |communicator| {
        let error = match communicator.rank() {
            Rank(0) => communicator.broadcast_tensor_dict(&mut weights(0), &BroadcastOptions::new()),
            _ => communicator.all_reduce(&mut [1f32], ReduceOperation::Sum),
        };
        error.expect_err("the calls differ")
    });
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Disagreement);
        let text = error.to_string();
        assert!(text.contains("broadcast_tensor_dict") && text.contains("all_reduce(sum) of 1 float32"), "{text}");
    }
}

/// A rank does something after the first piece. The others get an error, and no tensor is added to
/// their dictionaries.
fn lose_a_rank(
    communicator: &Communicator,
    lost: u32,
    options: BroadcastOptions,
    act: impl Fn() + Send + Sync + 'static,
) {
    let rank = communicator.rank();
    let options = if rank == Rank(lost) { options.progress(move |_| act()) } else { options };
    let mut dict = if rank == Rank(0) { weights(0) } else { TensorDict::new() };
    let error = communicator.broadcast_tensor_dict(&mut dict, &options).expect_err("a rank is lost");
    assert!([ErrorKind::PeerLost, ErrorKind::Aborted, ErrorKind::Plugin].contains(&error.kind()), "{error:?}");
    assert_eq!(error.kind() == ErrorKind::Plugin, rank == Rank(lost), "{error:?}");
    assert_eq!(dict.len(), if rank == Rank(0) { weights(0).len() } else { 0 });
    let again = communicator.broadcast_tensor_dict(&mut dict, &BroadcastOptions::new()).expect_err("it has ended");
    assert!([error.kind(), ErrorKind::PeerLost, ErrorKind::Aborted].contains(&again.kind()), "{again:?}");
    println!("told: {error}");
}

#[test]
fn a_progress_function_that_panics_ends_the_broadcast() {
    for lost in [0, 1] {
        for is_shared in [false, true] {
            // A receiver that shares is told before any dictionary changes: it refuses.
            if lost == 0 || !is_shared {
                on_ranks(3, move |communicator| {
                    let options = BroadcastOptions::new().shared(is_shared);
                    lose_a_rank(&communicator, lost, options, || panic!("on purpose"));
                });
            }
        }
    }
}

#[test]
fn a_process_that_dies_in_the_middle_ends_the_broadcast() {
    for (rank, (succeeded, text)) in between_processes("dict: rank 1 exits in the middle", 3).into_iter().enumerate() {
        assert!(succeeded, "{text}");
        assert!(rank == 1 || text.contains("told: ") && text.contains("rank 1"), "{text}");
    }
}

#[test]
fn progress_counts_the_bytes_of_all_pieces() {
    on_ranks(2, |communicator| {
        let (calls, last) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counted = (Arc::clone(&calls), Arc::clone(&last));
        let options = BroadcastOptions::new().progress(move |progress| {
            assert_eq!(progress.total_bytes, weights(0).byte_len());
            counted.0.fetch_add(1, Ordering::Relaxed);
            let before = counted.1.swap(progress.byte_count as usize, Ordering::Relaxed);
            assert!(progress.byte_count as usize > before);
        });
        let mut dict = if communicator.rank() == Rank(0) { weights(0) } else { TensorDict::new() };
        communicator.broadcast_tensor_dict(&mut dict, &options).expect("a broadcast");
        assert_eq!(last.load(Ordering::Relaxed) as u64, dict.byte_len());
        // The long tensors have 1 + 2 pieces, "transposed" and "alone" one each, and the rest share
        // one.
        assert_eq!(calls.load(Ordering::Relaxed), 6);
    });
}

#[test]
fn work_on_a_stream_hands_the_dictionary_back() {
    let results = on_ranks(2, |communicator| {
        let stream = Stream::worker()?;
        let options = BroadcastOptions::new().src(1);
        let dict = if communicator.rank() == Rank(1) { weights(3) } else { TensorDict::new() };
        let work = communicator.broadcast_tensor_dict_async(dict, &options, &stream)?;
        // It comes after the broadcast.
        communicator.barrier()?;
        assert_has(&work.wait()?, &weights(3), 0);

        let wrong = communicator.broadcast_tensor_dict_async(weights(3), &options.src(7), &stream)?;
        let distcollective::stream::WorkError::Failed(failed) = wrong.wait().expect_err("there is no rank 7") else {
            panic!("nothing interrupts it")
        };
        assert!(failed.error.to_string().contains("source 7 is not one of 2 ranks"), "{}", failed.error);
        assert_has(&failed.operands, &weights(3), 0);
        Ok::<_, distcollective::Error>(())
    });
    results.into_iter().for_each(|result: Result<()>| result.unwrap_or_else(|error| panic!("{error}")));
}

#[test]
fn tensors_say_what_they_are() {
    let opaque = || OpaqueType::new("U16", 16).expect("a type");
    let tensor = Tensor::opaque(opaque(), [2, 2], vec![1u8; 8]).expect("8 bytes");
    assert_eq!((tensor.element_type(), tensor.byte_len()), (&ElementType::Opaque(opaque()), 8));
    assert_eq!(format!("{tensor:?}"), "Tensor(U16 [2, 2])");
    assert_eq!(tensor.view().expect_err("opaque").kind(), ErrorKind::Unsupported);
    let error = Tensor::opaque(opaque(), [3], vec![1u8; 8]).expect_err("6 bytes");
    assert_eq!(error.to_string(), "U16 [3] is 6 bytes, and what is given is Buffer(uint8 [8])");

    let mut strided = Tensor::strided(filled(DataType::Int32, &[4], 0), 0, [2], &[2]).expect("it fits");
    assert!(strided.as_bytes().is_err() && strided.view().is_err() && strided.view_mut().is_err());
    assert!(strided.read(2, &mut [0; 4]).is_err() && strided.read(4, &mut [0; 8]).is_err());
    let all = filled(DataType::Int32, &[4], 0);
    let copy = strided.into_buffer().expect("a copy");
    assert_eq!(copy.as_bytes().expect("host"), [&pattern(16, 0)[..4], &pattern(16, 0)[8..12]].concat());
    assert_eq!(Tensor::from(all).into_buffer().expect("itself").as_bytes().expect("host"), pattern(16, 0));
}

#[cfg(feature = "ndarray")]
#[test]
fn arrays_with_any_strides_become_tensors() {
    let array = ndarray::Array2::from_shape_fn((2, 3), |(i, j)| (10 * i + j) as i64);
    let tensor = Tensor::try_from(&array.t()).expect("a tensor");
    assert_eq!(tensor.shape().as_slice(), [3, 2]);
    assert_eq!(tensor.view().expect("int64").as_slice::<i64>().expect("int64"), [0, 10, 1, 11, 2, 12]);
}
