use super::*;

fn guest(job: &str, rank: u32) -> Guest<'_> {
    Guest { job, world_size: 2, first_rank: rank, rank_count: 1, deadline: Instant::now() + Duration::from_secs(10) }
}

/// Strangers that connect: one writes garbage, one nothing, one a byte at a time, one leaves at
/// once.
#[test]
fn strangers_hold_nobody_up() {
    let job = format!("strangers-{}", std::process::id());
    std::thread::scope(|scope| {
        let hub = scope.spawn(|| meet(&guest(&job, 0)).map(drop));
        let connect = || connect(&guest(&job, 1), Instant::now() + Duration::from_secs(10)).expect("a hub");
        let mut garbage = connect();
        garbage.write_all(&[0xff; 4096]).expect("the hub listens");
        let _silent = connect();
        let mut trickle = connect();
        trickle.write_all(&HELLO_MAGIC[..3]).expect("the hub listens");
        drop(connect());
        let visitor = scope.spawn(|| meet(&guest(&job, 1)).map(drop));
        visitor.join().expect("no panic").expect("a meeting");
        hub.join().expect("no panic").expect("a meeting");
    });
}

/// A process that says the right thing and dies makes room for the one that is started in its
/// place.
#[test]
fn whoever_hangs_up_leaves_no_place_taken() {
    let job = format!("hang-up-{}", std::process::id());
    let guest = |rank| Guest { world_size: 3, ..guest(&job, rank) };
    std::thread::scope(|scope| {
        let hub = scope.spawn(|| meet(&guest(0)).map(drop));
        for _ in 0..3 {
            let mut dying = connect(&guest(1), guest(1).deadline).expect("a hub");
            dying.write_all(&Hello::of(&guest(1)).to_bytes()).expect("the hub listens");
        }
        let visitors = [1, 2].map(|rank| scope.spawn(move || meet(&guest(rank)).map(drop)));
        visitors.into_iter().for_each(|visitor| visitor.join().expect("no panic").expect("a meeting"));
        hub.join().expect("no panic").expect("a meeting");
    });
}

/// Only root can be another user; elsewhere there is nothing to try.
#[test]
fn another_user_is_sent_away() {
    use rustix::thread::set_thread_res_uid;
    if !rustix::process::getuid().is_root() {
        println!("skipped: only root can be another user");
        return;
    }
    let job = format!("another-user-{}", std::process::id());
    std::thread::scope(|scope| {
        let hub = scope.spawn(|| meet(&guest(&job, 0)).map(drop));
        let (name, hello) = (socket_name(&job), Hello::of(&guest(&job, 1)).to_bytes());
        let stranger = scope.spawn(move || {
            let nobody = rustix::process::Uid::from_raw(65534);
            // Only this thread becomes another user, and only before it connects.
            set_thread_res_uid(nobody, nobody, nobody).expect("root may");
            let end = Instant::now() + Duration::from_secs(5);
            let mut stream = loop {
                match connect_now(&name) {
                    Err(_) if Instant::now() < end => std::thread::sleep(CONNECT_INTERVAL),
                    stream => break stream.expect("a hub"),
                }
            };
            stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
            // It may be sent away before it has said anything.
            let _ = stream.write_all(&hello);
            let answer = stream.read(&mut [0; 64]);
            assert!(matches!(answer, Ok(0)) || answer.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset));
        });
        stranger.join().expect("sent away");
        let visitor = scope.spawn(|| meet(&guest(&job, 1)).map(drop));
        visitor.join().expect("no panic").expect("a meeting");
        hub.join().expect("no panic").expect("a meeting");
    });
}

/// A process of this job that does not fit ends the bootstrap: for itself, for the hub, and for
/// each process that has come.
#[test]
fn a_process_that_does_not_fit_ends_the_bootstrap_for_all() {
    let misfits = [
        (5, 1, 1, "it expects 5 ranks, and rank 0 expects 4"),
        (4, 2, 1, "rank 2 is there already"),
        (4, 1, 2, "rank 2 is there already"),
        (4, 0, 1, "rank 0 is there already"),
    ];
    for (number, (world_size, first_rank, rank_count, reason)) in misfits.into_iter().enumerate() {
        let job = format!("misfit-{number}-{}", std::process::id());
        let early = Guest { world_size: 4, ..guest(&job, 2) };
        std::thread::scope(|scope| {
            let hub = scope.spawn(|| meet(&Guest { world_size: 4, ..guest(&job, 0) }).map(drop));
            let stream = connect(&early, early.deadline).expect("a hub");
            let waiting = scope.spawn(move || say_hello(&early, &stream).map(drop));
            let error = meet(&Guest { world_size, rank_count, ..guest(&job, first_rank) }).map(drop);
            let error = error.expect_err("it does not fit").to_string();
            if first_rank > 0 {
                // Of two that have one rank, the one whose hello is read last is refused.
                assert!(error.starts_with(&format!("job {job:?}: ")) && error.ends_with(reason), "{error}");
            } else {
                assert!(error.contains("another rank 0 of this user waits or runs"), "{error}");
            }
            for told in [hub, waiting] {
                let error = told.join().expect("no panic").expect_err("the job cannot start");
                assert_eq!(error.kind(), ErrorKind::Disagreement);
                assert!(error.to_string().ends_with(reason), "{error}");
            }
        });
    }
}

/// A process of another job or version, whose name happens to be the same, is sent away, and
/// the bootstrap goes on.
#[test]
fn a_process_of_another_job_is_sent_away() {
    let job = format!("another-job-{}", std::process::id());
    std::thread::scope(|scope| {
        let hub = scope.spawn(|| meet(&guest(&job, 0)).map(drop));
        let own = Hello::of(&guest(&job, 1));
        for hello in [Hello { job: !own.job, ..own }, Hello { version: 1, world_size: 9, ..own }] {
            let mut stream = connect(&guest(&job, 1), guest(&job, 1).deadline).expect("a hub");
            stream.write_all(&hello.to_bytes()).expect("the hub listens");
            let answer = wire::receive(&stream).expect("an answer").expect("an answer");
            assert!(matches!(answer, (Answer::Refused(_), None)));
        }
        let visitor = scope.spawn(|| meet(&guest(&job, 1)).map(drop));
        visitor.join().expect("no panic").expect("a meeting");
        hub.join().expect("no panic").expect("a meeting");
    });
}

/// Only root can be another user; elsewhere there is nothing to try.
#[test]
fn a_name_that_another_user_holds_is_not_called_this_users() {
    use rustix::thread::set_thread_res_uid;
    if !rustix::process::getuid().is_root() {
        println!("skipped: only root can be another user");
        return;
    }
    let job = format!("squatted-{}", std::process::id());
    let name = socket_name(&job);
    let squatter = std::thread::spawn(move || {
        let other = rustix::process::Uid::from_raw(12345);
        // Only this thread becomes another user.
        set_thread_res_uid(other, other, other).expect("root may");
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).expect("a name")).expect("a socket")
    });
    let _listener = squatter.join().expect("no panic");
    let held = "another user (uid 12345) holds the name under which this job's processes meet";
    for rank in [0, 1] {
        let error = meet(&guest(&job, rank)).map(drop).expect_err("it is taken");
        assert_eq!(error.to_string(), format!("job {job:?}: {held}"));
    }
}

#[test]
fn the_overflow_user_is_no_user_to_trust() {
    for (peer, own, is_same) in [(0, 0, true), (1000, 1000, true), (1000, 1001, false), (0, 1000, false)] {
        assert_eq!(is_same_user(peer, own, 65534), is_same, "{peer} {own}");
    }
    assert!(!is_same_user(65534, 65534, 65534) && !is_same_user(65534, 0, 65534) && !is_same_user(0, 65534, 65534));
    assert_eq!(overflow_user(), 65534);
}

#[test]
fn a_list_of_processes_has_each_rank_once() {
    let guest = Guest { world_size: 4, first_rank: 1, rank_count: 2, ..guest("list", 1) };
    let list = |ranks: &[(u32, u32)]| -> Vec<Process> {
        ranks.iter().map(|&(first_rank, rank_count)| Process { pid: 1, first_rank, rank_count }).collect()
    };
    check_processes(&guest, &list(&[(0, 1), (1, 2), (3, 1)]), 1).expect("each rank once");
    for (ranks, own) in [
        (&[(0, 1), (1, 2)][..], 1),
        (&[(0, 1), (1, 2), (3, 2)], 1),
        (&[(0, 1), (1, 2), (2, 2)], 1),
        (&[(0, 1), (1, 2), (3, u32::MAX)], 1),
        (&[(0, 1), (1, 2), (3, 1), (4, 0)], 1),
        (&[(0, 1), (1, 1), (2, 1), (3, 1)], 1),
        (&[(1, 2), (0, 1), (3, 1)], 0),
        (&[(0, 1), (1, 2), (3, 1)], 0),
        (&[(0, 1), (1, 2), (3, 1)], 2),
        (&[(0, 1), (1, 2), (3, 1)], usize::MAX),
        (&[], 0),
    ] {
        let error = check_processes(&guest, &list(ranks), own).expect_err("it does not fit");
        assert_eq!(error.to_string(), "rank 0's list of processes does not have each rank of 4 once");
    }
}

#[test]
fn a_hello_is_read_back_and_garbage_is_not() {
    let hello = Hello::of(&guest("a", 1));
    let bytes = hello.to_bytes();
    assert_eq!(Hello::from_bytes(&bytes).expect("a hello").to_bytes(), bytes);
    assert!(Hello::from_bytes(&[0xff; HELLO_BYTES]).is_none());
}
