//! The file through which ranks find rank 0: its owner, its content, and when it exists.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use super::*;
use crate::environment::process::ProcessIdentity;

/// Without a secret, ranks of a job whose file has another nonce stay out.
#[test]
fn the_files_nonce_is_part_of_the_key() {
    let folder = Folder::new();
    let (path, endpoint) = folder.endpoint();
    scope(|scope| {
        let rank_0 = scope.spawn(|| Rendezvous::join(&endpoint, &participant(0, 2)).map(drop));
        let text = patiently(|| std::fs::read_to_string(&path).ok());
        let mut content: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        content["nonce"] = vec![0; 32].into();
        let copy = folder.0.join("copy");
        write_privately(&copy, &content.to_string());
        let (kind, message) = error_of(Rendezvous::join(
            &Endpoint::File(copy),
            &Participant { deadline: shortly(), ..participant(1, 2) },
        ));
        assert_eq!(kind, ErrorKind::DeadlineExceeded);
        assert!(message.contains("the rank 0 that answers is one of another job"), "{message}");
        Rendezvous::join(&endpoint, &participant(1, 2)).map(drop).expect("a rendezvous");
        rank_0.join().expect("no panic").expect("a rendezvous");
    });
}

fn write_privately(path: &Path, text: &str) {
    let aside = path.with_extension("aside");
    std::fs::write(&aside, text).expect("a file");
    std::fs::set_permissions(&aside, Permissions::from_mode(0o600)).expect("an own file");
    std::fs::rename(aside, path).expect("an own file");
}

/// What a crashed job of another machine leaves: no process listens there.
fn left_over(port: &Port) -> String {
    left_by(port, Some(&ProcessIdentity { boot: "another".to_owned(), namespace: 1, pid: 1, start_time: 1 }))
}

fn left_by(port: &Port, owner: Option<&ProcessIdentity>) -> String {
    let (port, nonce) = (port.number, [171; 32]);
    serde_json::json!({"protocol": PROTOCOL, "hosts": ["127.0.0.1"], "port": port, "nonce": nonce, "owner": owner})
        .to_string()
}

/// What a process of this machine leaves that has ended.
fn left_by_the_dead(port: &Port) -> String {
    let mut child = std::process::Command::new("true").spawn().expect("a child");
    child.wait().expect("an own child");
    let own = ProcessIdentity::own().expect("/proc");
    left_by(port, Some(&ProcessIdentity { pid: child.id(), ..own }))
}

/// Two jobs with one file: the rank 0 that comes first goes on, and the other one fails at once.
#[test]
fn of_two_rank_0s_always_one_goes_on() {
    let (port, folder) = (Port::free(), Folder::new());
    let (path, endpoint) = folder.endpoint();
    for round in 0..30 {
        for before in [None, Some(String::new()), Some(left_by_the_dead(&port))] {
            if let Some(text) = &before {
                write_privately(&path, text);
            }
            let (start, failures) = (std::sync::Barrier::new(2), Mutex::new(Vec::new()));
            scope(|scope| {
                let both = [(); 2].map(|()| {
                    scope.spawn(|| {
                        start.wait();
                        if let Err(error) = Rendezvous::join(&endpoint, &participant(0, 2)) {
                            failures.lock().expect("no panic").push((error.kind(), error.to_string()));
                        }
                    })
                });
                patiently(|| (!failures.lock().expect("no panic").is_empty()).then_some(()));
                Rendezvous::join(&endpoint, &participant(1, 2)).map(drop).expect("a rendezvous");
                both.into_iter().for_each(|rank_0| rank_0.join().expect("no panic"));
            });
            let failures = failures.into_inner().expect("no panic");
            let [(kind, message)] = failures.as_slice() else { panic!("round {round}, {before:?}: {failures:?}") };
            assert_eq!(*kind, ErrorKind::InvalidArgument);
            let reasons = ["of another job", "another rank 0 is about to meet there"];
            assert!(message.contains(&format!("{path:?}")), "{message}");
            assert!(reasons.iter().any(|reason| message.contains(reason)), "{message}");
            assert!(folder.is_empty());
        }
    }
}

#[test]
fn a_file_of_a_process_that_has_ended_is_replaced() {
    let (port, folder) = (Port::free(), Folder::new());
    let (path, endpoint) = folder.endpoint();
    write_privately(&path, &left_by_the_dead(&port));
    Rendezvous::join(&endpoint, &participant(0, 1)).map(drop).expect("a rendezvous");
    join_and_exchange(&endpoint, |rank| participant(rank, 3), &[0, 1, 2]);
    assert!(folder.is_empty());
}

#[test]
fn the_file_is_private_while_it_is_there_and_gone_afterwards() {
    let folder = Folder::new();
    let (path, endpoint) = folder.endpoint();
    // As left by touch, open to all.
    std::fs::write(&path, "").expect("a file");
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("an own file");
    scope(|scope| {
        let peer = scope.spawn(|| Rendezvous::join(&endpoint, &participant(1, 3)).map(drop));
        let rank_0 = scope.spawn(|| Rendezvous::join(&endpoint, &participant(0, 3)).map(drop));
        patiently(|| path.metadata().is_ok_and(|found| found.len() > 0).then_some(()));
        assert_eq!(path.metadata().expect("a file").permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(&folder.0).expect("a folder").count(), 1, "nothing else is there");
        Rendezvous::join(&endpoint, &participant(2, 3)).map(drop).expect("a rendezvous");
        assert!(folder.is_empty());
        peer.join().expect("no panic").expect("a rendezvous");
        rank_0.join().expect("no panic").expect("a rendezvous");
    });
    let (kind, message) =
        error_of(Rendezvous::join(&endpoint, &Participant { deadline: shortly(), ..participant(0, 2) }));
    assert_eq!(kind, ErrorKind::DeadlineExceeded);
    assert_eq!(message, format!("rank 1 of 2 did not come to the rendezvous of file {path:?} before the deadline"));
    assert!(folder.is_empty(), "a rendezvous that fails leaves nothing");
}

#[test]
fn rank_0_takes_no_file_that_another_process_may_need() {
    let (port, folder) = (Port::free(), Folder::new());
    let (path, endpoint) = folder.endpoint();
    let own = ProcessIdentity::own().expect("/proc");
    for (text, reason) in [
        (left_over(&port), "has content: a rank 0 of another machine or container wrote it"),
        (left_by(&port, None), "has content: a rank 0 of another machine or container wrote it"),
        (left_by(&port, Some(&own)), "has content: the rank 0 of another job, process"),
        ("notes".to_owned(), "has content that no rank 0 of this version wrote; remove it"),
    ] {
        let text = text.as_str();
        write_privately(&path, text);
        for world_size in [1, 2] {
            let (kind, message) = error_of(Rendezvous::join(&endpoint, &participant(0, world_size)));
            assert_eq!(kind, ErrorKind::InvalidArgument);
            assert!(message.contains(&format!("{path:?} {reason}")), "{message}");
        }
        assert_eq!(std::fs::read_to_string(&path).expect("it is still there"), text);
    }
    std::fs::remove_file(&path).expect("an own file");
    symlink("/dev/null", &path).expect("a link");
    for path in [&path, &folder.0] {
        let (kind, message) = error_of(Rendezvous::join(&Endpoint::File(path.clone()), &participant(0, 2)));
        assert_eq!(kind, ErrorKind::InvalidArgument);
        assert!(message.starts_with(&format!("{path:?} has to be a regular file")), "{message}");
    }
    let missing = folder.0.join("missing/rendezvous");
    let (kind, message) = error_of(Rendezvous::join(&Endpoint::File(missing.clone()), &participant(0, 2)));
    assert_eq!(kind, ErrorKind::System);
    assert!(message.starts_with(&format!("file {missing:?} cannot be written: ")), "{message}");
    let (_, message) = error_of(Rendezvous::join(&Endpoint::File(PathBuf::from("/..")), &participant(0, 2)));
    assert!(message.contains("\"/..\""), "{message}");
}

#[test]
fn peers_believe_only_a_private_regular_file() {
    let (port, folder) = (Port::free(), Folder::new());
    let (path, endpoint) = folder.endpoint();
    let expect = |part: &str| {
        let (kind, message) = error_of(Rendezvous::join(&endpoint, &participant(1, 2)));
        assert_eq!(kind, ErrorKind::InvalidArgument);
        assert!(message.contains(&format!("{path:?}")) && message.contains(part), "{message}");
    };
    let good = left_over(&port);
    let foreign = [
        "\0".repeat(128),
        good.replace(PROTOCOL, "distcollective handshake 3"),
        good.replace("\"another\"", "7"),
        good.replace("[\"127.0.0.1\"]", "\"127.0.0.1\""),
        good.replace(&format!(":{}", port.number), ":65536"),
        good.replace("[171,", "["),
        good.replace("[171,", "[256,"),
        good.replace("\"owner\"", "\"own\""),
        good.clone() + "more",
        good.replace("127.0.0.1", &"1".repeat(5000)),
    ];
    for text in foreign {
        write_privately(&path, &text);
        expect("that no rank 0 of this version wrote");
    }
    write_privately(&path, &good);
    std::fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("an own file");
    expect("has mode 640");
    std::fs::remove_file(&path).expect("an own file");
    let target = folder.0.join("target");
    write_privately(&target, &good);
    symlink(&target, &path).expect("a link");
    expect("has to be a regular file");
    std::fs::remove_file(&path).expect("an own link");
    std::fs::create_dir(&path).expect("a folder");
    expect("has to be a regular file");
}

/// A peer waits while the file is absent, empty or left over, and says last what it saw.
#[test]
fn peers_wait_for_the_file_of_their_rendezvous() {
    let (port, folder) = (Port::free(), Folder::new());
    let (path, endpoint) = folder.endpoint();
    let last_attempt = || {
        let (kind, message) =
            error_of(Rendezvous::join(&endpoint, &Participant { deadline: shortly(), ..participant(1, 2) }));
        assert_eq!(kind, ErrorKind::DeadlineExceeded);
        let begin = format!(
            "rank 0 was not found at the rendezvous of file {path:?} before the deadline; at the last attempt: "
        );
        message.strip_prefix(&begin).map(str::to_owned).unwrap_or_else(|| panic!("{message}"))
    };
    assert_eq!(last_attempt(), "the file was not there");
    std::fs::write(&path, "").expect("a file");
    assert_eq!(last_attempt(), "the file was empty");
    write_privately(&path, &left_over(&port));
    let reason = last_attempt();
    assert!(reason.starts_with(&format!("127.0.0.1:{}: ", port.number)) && reason.contains("refused"), "{reason}");
    scope(|scope| {
        let peer = scope.spawn(|| Rendezvous::join(&endpoint, &participant(1, 2)).map(drop));
        sleep(Duration::from_millis(20));
        std::fs::remove_file(&path).expect("an own file");
        Rendezvous::join(&endpoint, &participant(0, 2)).map(drop).expect("a rendezvous");
        peer.join().expect("no panic").expect("a rendezvous");
    });
}

#[test]
fn rank_0_removes_only_its_own_file() {
    let folder = Folder::new();
    let (path, _) = folder.endpoint();
    let announcement = file::announce(&path, 1).expect("a file");
    write_privately(&path, "another job's");
    drop(announcement);
    assert_eq!(std::fs::read_to_string(&path).expect("it is still there"), "another job's");
}

/// What rank 0 writes, its peers understand, and it names this machine's loopback at least.
#[test]
fn a_file_is_read_as_it_was_written() {
    let folder = Folder::new();
    let (path, _) = folder.endpoint();
    let announcement = file::announce(&path, 77).expect("a file");
    let Ok(whereabouts) = file::read(&path) else { panic!("the file is not understood") };
    assert_eq!((whereabouts.nonce, whereabouts.port), (announcement.nonce, 77));
    assert!(whereabouts.hosts.contains(&"127.0.0.1".to_owned()), "{:?}", whereabouts.hosts);
}
