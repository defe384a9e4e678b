//! The broadcast into memory that all receivers share.

use std::fs;

use distcollective::tensor::MemorySpace;
use distcollective::tensor_dict::{BroadcastOptions, Tensor};
use distcollective::{Buffer, Communicator, DataType, ErrorKind, Rank, TensorDict};

use super::{assert_has, between_processes, bytes_of, empty, filled, lose_a_rank, refused, weights};
use crate::ranks::on_ranks;

/// The bytes of the dictionary whose memory is measured.
const MEASURED: usize = 48 << 20;

fn shared() -> BroadcastOptions {
    BroadcastOptions::new().shared(true)
}

/// Each rank in turn gives its dictionary, twice. Receivers keep what does not arrive. What has
/// come stays when the next copy comes.
fn share_from_each_rank(communicator: &Communicator) {
    for src in 0..communicator.world_size() {
        let is_source = communicator.rank().0 == src;
        let mut own = TensorDict::new();
        own.insert("float32", filled(DataType::Float32, &[3, 5], 77));
        let mut views = Vec::new();
        for round in 0..3 {
            let expected = weights(src as usize + round);
            if is_source {
                own = weights(src as usize + round);
            }
            communicator.broadcast_tensor_dict(&mut own, &shared().src(src)).expect("a broadcast");
            assert_has(&own, &expected, 0);
            assert_eq!(own.get("alone").expect("it came").as_buffer().is_some(), is_source, "a receiver has a view");
            let came = own.get("transposed").expect("it came").view().map(|view| view.element_count());
            assert_eq!(came.ok(), (!is_source).then_some(120_000), "views are aligned");
            assert!(is_source || own.get_mut("float32").expect("it came").view_mut().is_err(), "views are read-only");
            if !is_source {
                let alone = own.insert("alone", filled(DataType::Uint8, &[super::PACKED as i64], 5));
                views.push((alone.expect("it came"), bytes_of(expected.get("alone").expect("it is there"))));
            }
        }
        views.iter().for_each(|(view, expected)| assert!(view.as_bytes().expect("a view") == expected));
    }
}

/// What a rank of several processes does.
pub fn play(role: &str, communicator: Communicator) {
    let rank = communicator.rank();
    match role {
        "dict: shared" => share_from_each_rank(&communicator),
        "dict: shared memory" => measure(communicator),
        "dict: rank 0 exits while it shares" => {
            lose_a_rank(&communicator, 0, shared(), || std::process::exit(0));
        }
        "dict: a view outlives its ranks" => {
            let mut own = if rank == Rank(0) { weights(1) } else { TensorDict::new() };
            communicator.broadcast_tensor_dict(&mut own, &shared()).expect("a broadcast");
            let long = own.remove("long").expect("it came");
            drop(own);
            communicator.abort("the test").expect("it goes on");
            drop(communicator);
            assert!(bytes_of(&long) == bytes_of(weights(1).get("long").expect("it is there")));
        }
        _ => panic!("no role {role}"),
    }
}

/// What this process has of memory: of memory that is shared between processes, its proportional
/// part and all that it has touched, and its own.
struct Usage {
    shared_part: usize,
    shared: usize,
    private: usize,
}

impl Usage {
    fn now() -> Self {
        let text = fs::read_to_string("/proc/self/smaps").expect("the mappings");
        let mut usage = Usage { shared_part: 0, shared: 0, private: 0 };
        let mut is_shared = false;
        for line in text.lines() {
            let Some((name, rest)) = line.split_once(':') else { continue };
            let bytes = || rest.trim().strip_suffix(" kB").and_then(|n| n.parse::<usize>().ok()).expect("kB") << 10;
            match name {
                "Pss" if is_shared => usage.shared_part += bytes(),
                "Rss" if is_shared => usage.shared += bytes(),
                "Anonymous" => usage.private += bytes(),
                // The first line of a mapping: `7f00-7f01 rw-s 0 00:01 5 /memfd:distcollective`.
                _ if line.contains("/memfd:distcollective") => is_shared = true,
                _ if name.contains('-') => is_shared = false,
                _ => {}
            }
        }
        usage
    }
}

/// The processes print how much memory the broadcast has cost them.
fn measure(communicator: Communicator) {
    let is_source = communicator.rank() == Rank(0);
    let mut own = TensorDict::new();
    if is_source {
        (0..6).for_each(|i| drop(own.insert(format!("{i}"), Buffer::from(vec![i as u8 + 1; MEASURED / 6]))));
    }
    communicator.barrier().expect("a barrier");
    let before = Usage::now();
    communicator.broadcast_tensor_dict(&mut own, &shared()).expect("a broadcast");
    for (i, (_, tensor)) in own.iter().enumerate() {
        assert!(tensor.as_bytes().expect("bytes").iter().all(|byte| *byte == i as u8 + 1));
    }
    communicator.barrier().expect("a barrier");
    let after = Usage::now();
    communicator.barrier().expect("a barrier");
    let more = |now: usize, then: usize| now.saturating_sub(then);
    println!(
        "measured: {} {} {}",
        more(after.shared_part, before.shared_part),
        more(after.shared, before.shared),
        more(after.private, before.private)
    );
    drop(own);
    let end = Usage::now();
    println!("measured: {} {} {}", more(end.shared_part, before.shared_part), more(end.shared, before.shared), 0);
}

#[test]
fn three_receivers_have_one_copy() {
    const SLACK: usize = 4 << 20;
    let (mut parts, mut part_of_source) = (0, 0);
    for (rank, (succeeded, text)) in between_processes("dict: shared memory", 4).into_iter().enumerate() {
        assert!(succeeded, "{text}");
        let lines = text.lines().filter_map(|line| line.split_once("measured: ").map(|(_, numbers)| numbers));
        let numbers = |line: &str| line.split(' ').map(|n| n.parse().expect("a number")).collect::<Vec<usize>>();
        let lines: Vec<Vec<usize>> = lines.map(numbers).collect();
        let [with, without] = &lines[..] else { panic!("{text}") };
        let (part, all, private) = (with[0], with[1], with[2]);
        assert!(private < SLACK, "rank {rank} has {private} bytes more of its own");
        if rank == 0 {
            part_of_source = all;
        } else {
            assert!((MEASURED..MEASURED + SLACK).contains(&all), "rank {rank} sees {all} bytes");
            parts += part;
        }
        assert!(without[1] < SLACK, "rank {rank} has still {} bytes", without[1]);
    }
    assert!(part_of_source < SLACK, "the source keeps its own tensors, and {part_of_source} bytes of the copy");
    assert!((MEASURED - SLACK..MEASURED + SLACK).contains(&parts), "together they have {parts} bytes");
}

#[test]
fn threads_share_what_the_source_gives() {
    for ranks in [1, 2, 3] {
        on_ranks(ranks, |communicator| share_from_each_rank(&communicator));
    }
}

#[test]
fn processes_share_what_the_source_gives() {
    for role in ["dict: shared", "dict: a view outlives its ranks"] {
        for (succeeded, text) in between_processes(role, 3) {
            assert!(succeeded, "{role}: {text}");
        }
    }
}

#[test]
fn a_source_that_dies_while_it_shares_ends_the_broadcast() {
    let ranks = between_processes("dict: rank 0 exits while it shares", 3);
    for (rank, (succeeded, text)) in ranks.into_iter().enumerate() {
        assert!(succeeded, "{text}");
        assert!(rank == 0 || text.contains("told: ") && text.contains("rank 0"), "{text}");
    }
}

#[test]
fn a_progress_function_of_a_receiver_that_panics_changes_no_dictionary() {
    let dict = |rank| if rank == 0 { weights(0) } else { TensorDict::new() };
    let errors = refused(3, dict, |rank| shared().progress(move |_| assert_ne!(rank, 1, "on purpose")));
    for (rank, (kind, text)) in errors.into_iter().enumerate() {
        assert_eq!(kind, ErrorKind::Plugin);
        assert!(text.contains("the progress function panicked: ") && text.contains("on purpose"), "{text}");
        assert_eq!(text.contains("because rank 1 refuses: "), rank != 1, "{text}");
    }
}

#[test]
fn empty_tensors_are_shared() {
    on_ranks(2, |communicator| {
        let mut own = TensorDict::new();
        communicator.broadcast_tensor_dict(&mut own, &shared()).expect("nothing is broadcast");
        if communicator.rank() == Rank(0) {
            own.insert("empty", filled(DataType::Int64, &[0, 7], 0));
        }
        communicator.broadcast_tensor_dict(&mut own, &shared()).expect("a broadcast");
        assert_eq!(own.get("empty").map(Tensor::byte_len), Some(0));
    });
}

#[test]
fn what_cannot_be_shared_is_an_error_on_every_rank() {
    for (rank, (kind, text)) in refused(3, empty, |rank| shared().shared(rank != 1)).into_iter().enumerate() {
        assert_eq!(kind, ErrorKind::Disagreement);
        let (own, other, peer) = if rank == 1 { (false, true, 0) } else { (true, false, 1) };
        assert!(text.contains(&format!("shared is {own} on this rank and {other} on rank {peer}")), "{text}");
    }
    let with_pins = refused(2, empty, |_| shared().pin_memory(true));
    let on_gpu = refused(2, empty, |_| shared().device(MemorySpace::Cuda(0)));
    for (errors, what) in [(with_pins, "pin_memory"), (on_gpu, "a device")] {
        for (kind, text) in errors {
            assert_eq!(kind, ErrorKind::InvalidArgument);
            assert!(
                text.contains("shared puts what arrives into memory of all receivers, and ") && text.contains(what)
            );
        }
    }
    let dict = |rank: u32| {
        let mut dict = TensorDict::new();
        dict.insert("w", filled(DataType::Float32, &[2 + i64::from(rank)], 0));
        dict
    };
    let errors = refused(2, dict, |_| shared());
    assert!(errors[1].1.contains("this rank has float32 [3], and the source sends float32 [2]"), "{errors:?}");
}
