//! How the processes of a communicator find each other, and what ends that.

use std::time::Duration;

use distcollective::{Communicator, CommunicatorBuilder, ErrorKind, Rank, ReduceOperation, Result};

use crate::processes::new_job;
use crate::ranks::DEADLINE;

pub fn rank_builder(job: &str, world_size: u32, rank: u32) -> CommunicatorBuilder {
    Communicator::builder().job(job).world_size(world_size).rank(Rank(rank)).timeout(Duration::from_millis(400))
}

/// The processes of a job, as threads of this process.
pub fn bootstrap_all(builders: Vec<CommunicatorBuilder>) -> Vec<Result<Vec<Communicator>>> {
    let threads: Vec<_> = builders.into_iter().map(|builder| std::thread::spawn(move || builder.meet())).collect();
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
    let alone = rank_builder(&job, 2, 1).meet().expect_err("rank 0 is not there");
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
        std::thread::spawn(move || builder.meet().expect_err("a process does not fit"))
    };
    let waiting = hub();
    let wrong = rank_builder(&job, 5, 1).timeout(DEADLINE).meet().expect_err("5 is not 2");
    assert_eq!(wrong.kind(), ErrorKind::Disagreement);
    let reason = format!("job {job:?}: ranks have to be given the same world size: rank 1 has 5, and rank 0 has 2");
    assert_eq!(wrong.to_string(), reason);
    let told = waiting.join().expect("no panic");
    assert_eq!(told.kind(), ErrorKind::Disagreement);
    assert_eq!(told.to_string(), reason);
    // Of two processes with rank 0, the first one learns that there is another.
    let errors = [hub(), hub()].map(|hub| hub.join().expect("no panic"));
    let second = "another rank 0 of this user waits or runs under the same job name: bind: Address already in use";
    assert!(errors.iter().any(|e| e.to_string().starts_with(&format!("job {job:?}: {second}"))), "{errors:?}");
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
    assert!(rank_builder(&job, 2, 1).meet().is_err());
    let other = std::thread::spawn(move || ranks[0].barrier());
    hub[0].barrier().expect("a barrier");
    other.join().expect("no panic").expect("a barrier");
}

#[test]
fn jobs_of_different_names_do_not_meet_and_one_name_can_be_used_again() {
    let (a, b) = (new_job(), new_job());
    for _ in 0..2 {
        let met = bootstrap_all(vec![
            rank_builder(&a, 2, 0),
            rank_builder(&b, 2, 1),
            rank_builder(&b, 2, 0),
            rank_builder(&a, 2, 1),
        ]);
        let ranks: Vec<Communicator> = met.into_iter().flat_map(|r| r.expect("a bootstrap")).collect();
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
fn numbers_that_do_not_fit_are_refused_before_any_wait() {
    let errors = [
        (Communicator::builder().meet(), "a job has a name"),
        (rank_builder("x", 0, 0).meet(), "world_size is 0; between processes it is 1 to 1024"),
        (rank_builder("x", 2, 2).meet(), "a process with 1 ranks from 2 does not fit a world of 2"),
        (rank_builder("x", 2, 1).local_ranks(2).meet(), "a process with 2 ranks from 1 does not fit a world of 2"),
    ];
    for (result, text) in errors {
        let error = result.expect_err("it does not fit");
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::InvalidArgument, text));
    }
}
