//! Ranks are threads of one process. Each machine is a host communicator of its own, and a link
//! between threads stands for the network.

use std::sync::Arc;
use std::time::Duration;

use super::ClusterBackend;
use super::link::in_process::links;
use crate::collective::{ReduceOperation, WireType};
use crate::comm::{Communicator, Message, Source, TransferPath, host};
use crate::element::{Element, F8E4M3, F8E5M2, bf16, f16};
use crate::error::{ErrorKind, Result};
use crate::rank::Rank;

const TIMEOUT: Duration = Duration::from_secs(10);

/// The ranks of a job on these machines.
fn world(machines: &[u32]) -> Vec<Communicator> {
    let mut links: Vec<_> = links(machines.len() as u32).into_iter().map(Some).collect();
    let mut ranks: Vec<Option<Communicator>> = machines.iter().map(|_| None).collect();
    let mut numbers = machines.to_vec();
    numbers.sort();
    numbers.dedup();
    for number in numbers {
        let here = |rank: &u32| machines[*rank as usize] == number;
        let names: Box<[Rank]> = (0..machines.len() as u32).filter(here).map(Rank).collect();
        let hosts = host::in_process(names.len() as u32, Some(names.clone())).expect("memory");
        for (rank, host) in names.iter().zip(hosts) {
            let link = Box::new(links[rank.index()].take().expect("one for each rank"));
            let backend = ClusterBackend::new(link, *rank, machines.into(), host).expect("a thread");
            ranks[rank.index()] = Some(Communicator::new(Arc::new(backend), TIMEOUT));
        }
    }
    ranks.into_iter().flatten().collect()
}

/// What each rank's thread returns.
fn each<T: Send>(ranks: Vec<Communicator>, run: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// Runs a program on one machine, and on each of these placements. The outputs are the same.
fn compare(placements: &[&[u32]], program: impl Fn(&Communicator) -> Result<Vec<u8>> + Sync) {
    for machines in placements {
        let run = |communicator: Communicator| program(&communicator).map_err(|error| error.to_string());
        let hosts = host::in_process(machines.len() as u32, None).expect("memory");
        let hosts = hosts.into_iter().map(|host| Communicator::new(Arc::new(host), TIMEOUT));
        let (expected, results) = (each(hosts.collect(), run), each(world(machines), run));
        for (rank, (expected, result)) in expected.iter().zip(&results).enumerate() {
            let (expected, result) = (expected.as_ref().expect("one machine"), result.as_ref().expect("several"));
            let differs = expected.iter().zip(result).position(|(a, b)| a != b);
            assert_eq!(expected.len(), result.len(), "rank {rank} on {machines:?}");
            assert_eq!(differs, None, "rank {rank} on {machines:?} of {} bytes", expected.len());
        }
    }
}

const PLACEMENTS: [&[u32]; 6] =
    [&[0, 1], &[0, 0, 1, 1], &[0, 0, 0, 1], &[0, 1, 0, 1], &[0, 1, 1, 2, 0], &[0, 0, 1, 1, 2, 2]];

/// Elements that look like any, the same for every program.
fn elements<T: Copy>(rank: usize, count: usize, of: impl Fn(u32) -> T) -> Vec<T> {
    let mut state = rank as u32 * 7919 + 12345;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        of(state >> 8)
    };
    (0..count).map(next).collect()
}

fn bytes_of<T: Element>(elements: &[T]) -> Vec<u8> {
    // SAFETY: elements have no padding.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast::<u8>(), size_of_val(elements)) }.to_vec()
}

/// All collectives of one type on blocks of `count` elements.
fn all_collectives<T: Element>(
    communicator: &Communicator,
    count: usize,
    reductions: &[ReduceOperation],
    of: impl Fn(u32) -> T,
) -> Result<Vec<u8>> {
    let (rank, n) = (communicator.rank().index(), communicator.world_size() as usize);
    let one = elements(rank, count, &of);
    let each = elements(rank, count * n, &of);
    let zeros = |count: usize| vec![T::default(); count];
    let mut seen = Vec::new();
    let mut keep = |output: &[T]| seen.extend(bytes_of(output));
    for reduce_op in reductions.iter().copied() {
        let mut output = one.clone();
        communicator.all_reduce(&mut output, reduce_op)?;
        keep(&output);
        let mut output = zeros(count);
        communicator.reduce_scatter(&each, &mut output, reduce_op)?;
        keep(&output);
        for root in 0..n {
            let mut output = one.clone();
            communicator.reduce(&mut output, reduce_op, root as u32)?;
            keep(if rank == root { &output } else { &[] });
        }
    }
    let mut output = zeros(count * n);
    communicator.all_gather(&one, &mut output)?;
    keep(&output);
    communicator.all_to_all(&each, &mut output)?;
    keep(&output);
    for root in 0..n as u32 {
        let is_root = rank as u32 == root;
        let mut output = one.clone();
        communicator.broadcast(&mut output, root)?;
        keep(&output);
        let mut output = zeros(count * n);
        communicator.gather(&one, is_root.then_some(&mut output), root)?;
        keep(&output);
        let mut output = zeros(count);
        communicator.scatter(is_root.then_some(&each), &mut output, root)?;
        keep(&output);
    }
    Ok(seen)
}

const ALL: [ReduceOperation; 5] =
    [ReduceOperation::Sum, ReduceOperation::Prod, ReduceOperation::Max, ReduceOperation::Min, ReduceOperation::Avg];

/// Numbers of many magnitudes, so that each order of a sum has other bits.
fn float(bits: u32) -> f32 {
    let magnitude = [1e-3, 1.0, 77.0, 3e4, 1e9][bits as usize % 5];
    (bits as f32 / 8_388_608.0 - 1.0) * magnitude
}

#[test]
fn several_machines_have_the_bits_of_one() {
    compare(&PLACEMENTS, |communicator| {
        let mut all = Vec::new();
        for count in [0, 1, 3, 9, 1000] {
            all.extend(all_collectives(communicator, count, &ALL, float)?);
            all.extend(all_collectives(communicator, count, &ALL, |bits| f64::from(float(bits)))?);
            all.extend(all_collectives(communicator, count, &ALL, |bits| bf16::from_f32(float(bits)))?);
            all.extend(all_collectives(communicator, count, &ALL, |bits| f16::from_bits(bits as u16))?);
            all.extend(all_collectives(communicator, count, &ALL, |bits| F8E4M3::from_bits(bits as u8))?);
            all.extend(all_collectives(communicator, count, &ALL, |bits| F8E5M2::from_bits(bits as u8))?);
            all.extend(all_collectives(communicator, count, &ALL, |bits| bits as i8)?);
            all.extend(all_collectives(communicator, count, &ALL, |bits| i64::from(bits) << 33)?);
            let bits = [ReduceOperation::Band, ReduceOperation::Bor, ReduceOperation::Bxor];
            all.extend(all_collectives(communicator, count, &bits, |bits| bits)?);
            let bools = [ReduceOperation::Sum, ReduceOperation::Prod, ReduceOperation::Bxor];
            all.extend(all_collectives(communicator, count, &bools, |bits| crate::element::Bool::from(bits % 2 == 0))?);
        }
        Ok(all)
    });
}

#[test]
fn long_blocks_move_and_are_reduced_in_pieces() {
    compare(&PLACEMENTS, |communicator| {
        let mut all = all_collectives(communicator, 333_333, &[ReduceOperation::Sum], float)?;
        let narrow = |bits| bf16::from_f32(float(bits));
        all.extend(all_collectives(communicator, 200_001, &[ReduceOperation::Avg], narrow)?);
        // The order of these changes no bit, so two machines exchange what their ranks give.
        let ends = [ReduceOperation::Max, ReduceOperation::Min];
        all.extend(all_collectives(communicator, 40_001, &ends, |bits| f16::from_bits(bits as u16))?);
        let integers = [ReduceOperation::Sum, ReduceOperation::Prod, ReduceOperation::Avg];
        all.extend(all_collectives(communicator, 70_001, &integers, |bits| bits as i8)?);
        all.extend(all_collectives(communicator, 9001, &integers, |bits| i64::from(bits) << 33)?);
        Ok(all)
    });
}

#[test]
fn a_path_depends_on_the_length_the_type_and_where_ranks_are() {
    use TransferPath::{Chained, Exchanged, Inline, Pairwise, Relayed, Swapped};
    for (machines, of_floats, of_integers) in
        [(&[0, 1][..], Swapped, Swapped), (&[0, 0, 1, 1], Chained, Swapped), (&[0, 1, 0, 1], Chained, Chained)]
    {
        let paths = each(world(machines), |communicator| -> Result<Vec<_>> {
            let n = machines.len();
            let mut paths = vec![communicator.latest_path()];
            let mut note = |result: Result<()>| result.map(|()| paths.push(communicator.latest_path()));
            note(communicator.all_reduce(&mut [1f32], ReduceOperation::Sum))?;
            note(communicator.all_reduce(&mut [1f32; 1000], ReduceOperation::Sum))?;
            note(communicator.all_reduce(&mut [1f32; 10_000], ReduceOperation::Sum))?;
            note(communicator.all_reduce(&mut [1i32; 10_000], ReduceOperation::Sum))?;
            note(communicator.all_gather(&[1f32; 100], &mut vec![0f32; 100 * n]))?;
            note(communicator.all_to_all(&vec![1f32; 100 * n], &mut vec![0f32; 100 * n]))?;
            note(communicator.barrier())?;
            Ok(paths)
        });
        let moved = [Inline, Exchanged, of_floats, of_integers, Relayed, Pairwise, Pairwise];
        let expected: Vec<_> = std::iter::once(None).chain(moved.map(Some)).collect();
        for of_rank in paths {
            assert_eq!(of_rank.expect("no error"), expected, "{machines:?}");
        }
    }
}

#[test]
fn transport_types_round_once() {
    compare(&PLACEMENTS, |communicator| {
        let (rank, n) = (communicator.rank().index(), communicator.world_size() as usize);
        let mut all = Vec::new();
        for (wire, count) in [(WireType::Float16, 2), (WireType::Bfloat16, 5000), (WireType::Bfloat16, 100_000)] {
            let communicator = communicator.with_wire_type(wire);
            let (one, each) = (elements(rank, count, float), elements(rank, count * n, float));
            let mut output = one.clone();
            communicator.all_reduce(&mut output, ReduceOperation::Avg)?;
            all.extend(bytes_of(&output));
            communicator.reduce_scatter(&each, &mut output, ReduceOperation::Sum)?;
            all.extend(bytes_of(&output));
            for root in 0..n as u32 {
                let mut output = one.clone();
                communicator.broadcast(&mut output, root)?;
                all.extend(bytes_of(&output));
            }
            let mut output = vec![0f32; count * n];
            communicator.all_gather(&one, &mut output)?;
            all.extend(bytes_of(&output));
        }
        Ok(all)
    });
}

#[test]
fn blocks_of_different_lengths_come_where_they_belong() {
    compare(&PLACEMENTS, |communicator| {
        let (rank, n) = (communicator.rank().index(), communicator.world_size() as usize);
        let mut all = Vec::new();
        for scale in [1, 40_000] {
            let len = |from: usize, to: usize| (from * 3 + to * 5) % 4 * scale;
            let given: Vec<usize> = (0..n).map(|to| len(rank, to)).collect();
            let taken: Vec<usize> = (0..n).map(|from| len(from, rank)).collect();
            let input = elements(rank, given.iter().sum(), |bits| bits as i32);
            let mut output = vec![0i32; taken.iter().sum()];
            communicator.all_to_all_v(&input, &given, &mut output, &taken)?;
            all.extend(bytes_of(&output));
            let counts: Vec<usize> = (0..n).map(|from| len(from, 1)).collect();
            let own = elements(rank, counts[rank], |bits| bits as i32);
            let mut output = vec![0i32; counts.iter().sum()];
            communicator.all_gather_v(&own, &mut output, &counts)?;
            all.extend(bytes_of(&output));
            for root in 0..n as u32 {
                let is_root = rank as u32 == root;
                let mut gathered = vec![0i32; counts.iter().sum()];
                communicator.gather_v(&own, is_root.then_some((&mut gathered, &counts[..])), root)?;
                all.extend(bytes_of(&gathered));
                let mut part = vec![0i32; counts[rank]];
                communicator.scatter_v(is_root.then_some((&output, &counts[..])), &mut part, root)?;
                all.extend(bytes_of(&part));
            }
            let input = elements(rank, counts.iter().sum(), float);
            let mut part = vec![0f32; counts[rank]];
            communicator.reduce_scatter_v(&input, &counts, &mut part, ReduceOperation::Sum)?;
            all.extend(bytes_of(&part));
        }
        Ok(all)
    });
}

#[test]
fn groups_are_of_some_ranks_of_any_machine() {
    compare(&PLACEMENTS, |communicator| {
        let (rank, n) = (communicator.rank().0, communicator.world_size());
        let mut all = Vec::new();
        for colors in 1..=n.min(3) {
            let group = communicator.split(Some(rank % colors), -(rank as i32))?.expect("it has a color");
            all.extend(all_collectives(&group, 40, &[ReduceOperation::Sum], float)?);
            let inner = group.split((group.rank().0 > 0).then_some(0), 0)?;
            if let Some(inner) = inner {
                all.extend(all_collectives(&inner, 3, &[ReduceOperation::Sum], float)?);
            }
        }
        if let Some(pair) = communicator.new_group([n - 1, 0])? {
            all.extend(all_collectives(&pair, 40_000, &[ReduceOperation::Sum], float)?);
        }
        communicator.barrier()?;
        Ok(all)
    });
}

#[test]
fn messages_come_in_the_order_of_their_sender() {
    each(world(&[0, 0, 1, 1]), |communicator| {
        let (rank, n) = (communicator.rank().0, communicator.world_size());
        for peer in (0..n).filter(|peer| *peer != rank) {
            communicator.send(&[rank, 1], peer, 7).expect("sent");
            communicator.send(&[rank, 2], peer, 7).expect("sent");
            communicator.send(&vec![peer; 200_000], peer, 8).expect("sent");
        }
        for peer in (0..n).filter(|peer| *peer != rank).rev() {
            let mut long = vec![0u32; 200_000];
            communicator.recv(&mut long, Rank(peer), 8).expect("received");
            assert!(long.iter().all(|element| *element == rank));
        }
        let mut latest = vec![0; n as usize];
        for _ in 0..2 * (n - 1) {
            let mut message = [0u32; 3];
            let received = communicator.recv(&mut message, Source::Any, 7).expect("received");
            assert_eq!((received.source.0, received.element_count), (message[0], 2));
            latest[message[0] as usize] += 1;
            assert_eq!(latest[message[0] as usize], message[1]);
        }
        communicator.finalize().expect("all have come");
    });
}

#[test]
fn a_difference_names_all_ranks_of_all_machines() {
    let errors = each(world(&[0, 0, 1, 1]), |communicator| {
        let reduce_op = if communicator.rank().0 == 3 { ReduceOperation::Max } else { ReduceOperation::Sum };
        communicator.all_reduce(&mut [1.0f32; 5000], reduce_op).expect_err("they differ")
    });
    for (rank, error) in errors.iter().enumerate() {
        assert_eq!(error.kind(), ErrorKind::Disagreement, "{error}");
        let text = "ranks disagree on collective 1: ranks 0, 1 and 2 call all_reduce(sum) of 5000 float32; rank 3 \
                    calls all_reduce(max) of 5000 float32";
        assert_eq!(error.to_string(), format!("rank {rank}: {text}"));
    }
}

#[test]
fn a_rank_that_leaves_or_fails_is_named_on_every_machine() {
    let errors = each(world(&[0, 0, 1, 1]), |communicator| {
        if communicator.rank().0 == 2 {
            return None;
        }
        Some(communicator.barrier().expect_err("rank 2 has left"))
    });
    for error in errors.into_iter().flatten() {
        assert!(error.to_string().contains("rank 2 left the communicator"), "{error}");
    }
    let errors = each(world(&[0, 0, 1, 1]), |communicator| {
        if communicator.rank().0 == 1 {
            communicator.abort("it is tired").expect("the process is the rank's");
            return None;
        }
        Some(communicator.barrier().expect_err("rank 1 has ended it"))
    });
    for error in errors.into_iter().flatten() {
        assert!(error.to_string().contains("rank 1 ended the communicator: it is tired"), "{error}");
    }
}

#[test]
fn a_rank_may_leave_after_its_last_long_call() {
    each(world(&[0, 0, 1, 1]), |communicator| {
        for (members, root) in [([1, 2], 1), ([2, 0], 0), ([0, 3], 1)] {
            if let Some(group) = communicator.new_group(members).expect("a group") {
                let mut long = vec![group.rank().0; 100_000];
                group.broadcast(&mut long, root).expect("it comes");
                assert!(long.iter().all(|element| *element == root));
                let (me, to) = (group.rank().0, 1 - group.rank().0);
                if me == 0 {
                    group.send(&long, to, 3).expect("sent");
                } else {
                    group.recv(&mut long, Rank(to), 3).expect("it comes, although the sender leaves");
                }
            }
        }
    });
}

#[test]
fn threads_of_a_rank_split_communicators_at_the_same_time() {
    each(world(&[0, 1, 0, 1]), |communicator| {
        let parents: Vec<Communicator> =
            (0..2).map(|_| communicator.split(Some(0), 0).expect("a split").expect("a color")).collect();
        std::thread::scope(|scope| {
            for (number, parent) in parents.into_iter().enumerate() {
                scope.spawn(move || {
                    for round in 0..50 {
                        let group = parent.split(Some(0), 0).expect("a split").expect("a color");
                        let mut sum = [(number * 100 + round) as u32; 30];
                        group.all_reduce(&mut sum, ReduceOperation::Sum).expect("a sum");
                        assert_eq!(sum, [4 * (number * 100 + round) as u32; 30]);
                    }
                });
            }
        });
    });
}

#[test]
fn a_receive_ends_when_its_sender_is_gone_or_wrong() {
    // Each of these is on a job of its own: the error ends it.
    let run = |receives: &(dyn Fn(&Communicator) -> String + Sync)| {
        let errors = each(world(&[0, 1, 1]), |communicator| {
            if communicator.rank().0 == 1 {
                communicator.send(&[1u8; 4], 0, 9).expect("sent");
                return None;
            }
            Some(receives(&communicator))
        });
        errors.into_iter().flatten().collect::<Vec<_>>()
    };
    let receive = |source: Source, tag: u32| {
        move |communicator: &Communicator| match communicator.rank().0 {
            0 => {
                let messages = vec![Message::recv(vec![0u32; 4], source, tag)];
                let work = communicator.batch_isend_irecv(messages).expect("right arguments");
                work.wait().expect_err("it does not come").to_string()
            }
            _ => {
                // Rank 2 waits for what no rank sends, as long as the communicator works.
                communicator.recv(&mut [0u8; 4], Rank(0), 1).expect_err("rank 0 has ended it").to_string()
            }
        }
    };
    let texts = run(&receive(Source::Rank(Rank(1)), 3));
    assert!(texts.iter().all(|text| text.contains("rank 1 left the communicator")), "{texts:?}");
    let texts = run(&receive(Source::Rank(Rank(1)), 9));
    let wrong = "rank 1 sent 4 uint8 with tag 9: the buffer is of uint32";
    assert!(texts.iter().all(|text| text.contains(wrong)), "{texts:?}");
}

#[test]
fn a_monitored_barrier_names_every_rank_that_has_not_come() {
    let errors = each(world(&[0, 0, 1, 1]), |communicator| {
        communicator.barrier().expect("all are here");
        if communicator.rank().0 % 2 == 1 {
            std::thread::sleep(Duration::from_secs(3));
            return None;
        }
        Some(communicator.monitored_barrier(Duration::from_secs(1)).expect_err("two are late"))
    });
    for error in errors.into_iter().flatten() {
        let text = error.to_string();
        assert!(text.ends_with("monitored_barrier: ranks 1 and 3 did not arrive before the deadline"), "{text}");
    }
}

#[test]
fn a_group_of_one_rank_changes_no_byte() {
    each(world(&[0, 1]), |communicator| {
        let alone = communicator.split(Some(communicator.rank().0), 0).expect("a split").expect("a color");
        let mut x = [f32::from_bits(0xffc1_2345); 100];
        alone.all_reduce(&mut x, ReduceOperation::Sum).expect("the identity");
        assert!(x.iter().all(|x| x.to_bits() == 0xffc1_2345));
    });
}

#[test]
fn a_late_rank_is_an_error_at_the_deadline() {
    let errors = each(world(&[0, 1, 1]), |communicator| {
        let communicator = communicator.with_timeout(Duration::from_millis(300));
        match communicator.rank().0 {
            1 => {
                std::thread::sleep(Duration::from_millis(900));
                communicator.barrier().expect_err("the others have gone")
            }
            _ => communicator.barrier().expect_err("rank 1 is late"),
        }
    });
    for error in errors {
        // Only the ranks of its machine know which one is late. Each says what the call is.
        let text = error.to_string();
        let late = ["rank 1 did not arrive", "not all of ranks 1 and 2, which are on one machine, arrived"];
        assert!(late.iter().any(|late| text.contains(&format!("barrier (collective 1): {late} before"))), "{text}");
        assert!(!text.contains("a part of a call"), "{text}");
    }
}
