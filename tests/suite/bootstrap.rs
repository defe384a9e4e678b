//! How the processes of a communicator find each other, and what ends that.

use std::time::Duration;

use distcollective::comm::{BackendKind, CommunicatorBuilder, NcclId};
use distcollective::{Communicator, ErrorKind, ReduceOperation, Result};

use crate::processes::new_job;
use crate::ranks::{DEADLINE, Exchange};

pub fn rank_builder(job: &str, world_size: u32, rank: u32) -> CommunicatorBuilder {
    Communicator::builder().job(job).world_size(world_size).rank(rank).timeout(Duration::from_millis(400))
}

/// The processes of a job, as threads of this process.
pub fn bootstrap_all(builders: Vec<CommunicatorBuilder>) -> Vec<Result<Communicator>> {
    let threads: Vec<_> = builders.into_iter().map(|builder| std::thread::spawn(move || builder.connect())).collect();
    threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
}

#[test]
fn a_bootstrap_says_which_ranks_are_missing() {
    let job = new_job();
    let errors = bootstrap_all(vec![rank_builder(&job, 3, 0), rank_builder(&job, 3, 2).timeout(DEADLINE)]);
    for error in errors {
        let error = error.expect_err("rank 1 does not come");
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
        assert_eq!(error.to_string(), format!("job {job:?}: rank 1 of 3 did not come before the deadline"));
    }
    let alone = rank_builder(&job, 2, 1).connect().expect_err("rank 0 is not there");
    assert_eq!(alone.kind(), ErrorKind::DeadlineExceeded);
    assert_eq!(
        alone.to_string(),
        format!(
            "job {job:?}: rank 0 did not come before the deadline: connect: Connection refused (os error 111). Ranks in \
             different network namespaces (containers) cannot meet over abstract sockets"
        )
    );
}

#[test]
fn a_process_that_does_not_fit_ends_the_bootstrap_at_once() {
    let job = new_job();
    let hub = || {
        let builder = rank_builder(&job, 2, 0).timeout(DEADLINE);
        std::thread::spawn(move || builder.connect().expect_err("a process does not fit"))
    };
    let waiting = hub();
    let wrong = rank_builder(&job, 5, 1).timeout(DEADLINE).connect().expect_err("5 is not 2");
    assert_eq!(wrong.kind(), ErrorKind::Disagreement);
    let reason = format!("job {job:?}: ranks have to be given the same world size: rank 1 has 5, and rank 0 has 2");
    assert_eq!(wrong.to_string(), reason);
    let told = waiting.join().expect("no panic");
    assert_eq!(told.kind(), ErrorKind::Disagreement);
    assert_eq!(told.to_string(), reason);
    // Of two processes with rank 0, the first one learns that there is another.
    let errors = [hub(), hub()].map(|hub| hub.join().expect("no panic"));
    let second = "another rank 0 of this user waits or runs under the same job name: bind: Address already in use";
    let is_second = |e: &str| e.starts_with(&format!("job {job:?}: {second}")) && e.contains("DCL_JOB_ID");
    assert!(errors.iter().any(|e| is_second(&e.to_string())), "{errors:?}");
    let first = format!("job {job:?}: two processes say that they are rank 0");
    assert!(errors.iter().any(|e| e.to_string() == first), "{errors:?}");
}

#[test]
fn a_process_that_comes_when_all_are_there_is_not_noticed() {
    let job = new_job();
    let both =
        bootstrap_all(vec![rank_builder(&job, 2, 0).timeout(DEADLINE), rank_builder(&job, 2, 1).timeout(DEADLINE)]);
    let [hub, ranks] = both.try_into().expect("two processes");
    let (hub, ranks) = (hub.expect("a bootstrap"), ranks.expect("a bootstrap"));
    assert!(rank_builder(&job, 2, 1).connect().is_err());
    let other = std::thread::spawn(move || ranks.barrier());
    hub.barrier().expect("a barrier");
    other.join().expect("no panic").expect("a barrier");
}

#[test]
fn jobs_of_different_names_do_not_meet_and_one_name_can_be_used_again() {
    let (a, b) = (new_job(), new_job());
    for _ in 0..2 {
        let ranks = [(&a, 0), (&b, 1), (&b, 0), (&a, 1)].map(|(job, rank)| rank_builder(job, 2, rank));
        let met = bootstrap_all(ranks.map(|builder| builder.timeout(DEADLINE)).into());
        let ranks: Vec<Communicator> = met.into_iter().map(|r| r.expect("a bootstrap")).collect();
        let threads: Vec<_> = ranks
            .into_iter()
            .zip([1, 20, 20, 1])
            .map(|(rank, value)| {
                std::thread::spawn(move || {
                    let mut x = [value];
                    rank.all_reduce(&mut x, ReduceOperation::Sum).map(|()| x[0] == 2 * value)
                })
            })
            .collect();
        for thread in threads {
            assert!(thread.join().expect("no panic").expect("a sum"));
        }
    }
}

#[test]
fn ranks_meet_by_what_they_exchange() {
    let exchange = &Exchange::new(3);
    let sum_of = |rank: usize| {
        let builder = Communicator::builder().world_size(3).rank(rank as u32).timeout(DEADLINE);
        // SAFETY: each rank gets what the others have given.
        let communicator = unsafe { builder.connect_by(|own| exchange.bring(rank, own)) }.expect("all come");
        assert_eq!((communicator.backend(), communicator.timeout()), (BackendKind::Host, DEADLINE));
        let mut x = [rank as u32];
        communicator.all_reduce(&mut x, ReduceOperation::Sum).expect("a sum");
        x[0]
    };
    std::thread::scope(|scope| {
        let ranks = [0, 1, 2].map(|rank| scope.spawn(move || sum_of(rank)));
        assert_eq!(ranks.map(|rank| rank.join().expect("no panic")), [3; 3]);
    });
}

#[test]
fn another_version_that_exchanges_bytes_is_named() {
    let exchange = |own: &[u8]| Ok(vec![own.to_vec(), b"distcollective meeting 0 ...".to_vec()]);
    // SAFETY: the second rank's bytes are not read.
    let error = unsafe { Communicator::builder().world_size(2).connect_by(exchange) }.expect_err("they differ");
    assert_eq!(error.to_string(), "another version of this library than on rank 0: rank 1");
}

#[test]
fn numbers_that_do_not_fit_are_refused_before_any_wait() {
    // SAFETY: there is no other rank.
    let alone = |builder: CommunicatorBuilder| unsafe { builder.connect_by(|own| Ok(vec![own.to_vec()])) };
    let new = Communicator::builder;
    let id = NcclId::from_bytes(&[1; NcclId::BYTE_LEN]).expect("an id");
    let several = [
        (rank_builder("x", 2, 1).connect_ranks(2), "a process with 2 ranks from 1 does not fit a world of 2"),
        (new().nccl(&id).connect_ranks(2), "with an NCCL id each rank connects by itself"),
        (new().in_process(0), "a communicator has at least one rank"),
        (new().backend(BackendKind::Nccl).in_process(0), "a communicator has at least one rank"),
        (new().in_process(1025), "1025 ranks; a communicator on the host has at most 1024"),
        (new().rank(1).in_process(2), "in_process makes all ranks of a communicator; rank is for connect"),
        (new().job("x").in_process(2), "in_process makes all ranks of a communicator; job is for connect"),
    ];
    let one = [
        (new().connect(), "neither a job's name nor an NCCL id is set, and ranks find each other by one of them"),
        (new().job("").connect(), "the job's name is empty; give every process of the job the same name"),
        (rank_builder("x", 0, 0).connect(), "world_size is 0; between processes it is 1 to 1024"),
        (rank_builder("x", 2, 2).connect(), "a process with 1 rank from 2 does not fit a world of 2"),
        (new().job("x").nccl(&id).connect(), "ranks find each other by an NCCL id or by a job's name, not by both"),
        (new().backend(BackendKind::Host).nccl(&id).connect(), "an NCCL id is not for the backend \"host\""),
        (new().backend(BackendKind::Nccl).job("x").connect(), "the backend \"nccl\" connects by an NCCL id"),
        (new().device(1).job("x").connect(), "a device is for ranks with an NCCL id"),
        (alone(new().job("x")), "connect_by finds the ranks by what they exchange; job and nccl are for connect"),
        (alone(new().rank(1)), "rank is 1; it is less than world_size, 1"),
        (alone(new().world_size(2)), "exchange_bytes gives those of 1 rank, and world_size is 2"),
    ];
    let one = one.map(|(result, text)| (result.map(|communicator| vec![communicator]), text));
    for (result, text) in several.into_iter().chain(one) {
        let error = result.expect_err("it does not fit");
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::InvalidArgument, text));
    }
}
