//! Deaths of processes that only some of the others can see: in groups without rank 0's process, in
//! other namespaces, and where pidfds are forbidden.

use std::io::Write;
use std::process::{Child, Stdio};
use std::time::Duration;

use distcollective::Communicator;

use crate::processes::{Role, command_under, new_job, wait_for_line};
use crate::ranks::{DEADLINE, can_start, wait_all};

/// Names what a child may not call.
const FORBIDDEN: &str = "DCL_TEST_FORBIDDEN";

/// How long rank 1 waits for rank 2, unless it sees its death.
const PAIR_TIMEOUT: Duration = Duration::from_secs(6);

/// Ranks 1 and 2 make a group. Rank 1 waits in it, and rank 2 ends when it is told to.
pub fn play(role: &str, communicator: Communicator) {
    let pair = communicator.new_group([1, 2]).expect("a group");
    println!("ready");
    match (communicator.rank().0, role) {
        (0, "pair: rank 0 waits") => wait_to_be_told(),
        (0, "pair: rank 0 drops its handles") => {
            drop(communicator);
            println!("dropped");
            wait_to_be_told();
        }
        (0, "pair: rank 0 exits, and rank 2 leaves a child") => std::process::exit(0),
        (1, _) => {
            let pair = pair.expect("rank 1 is in the group").with_timeout(PAIR_TIMEOUT);
            println!("{:?}\ntold", pair.barrier().expect_err("rank 2 does not come"));
        }
        (2, "pair: rank 0 exits, and rank 2 leaves a child") => {
            wait_to_be_told();
            leave_a_child();
            std::process::exit(0);
        }
        (2, _) => {
            wait_to_be_told();
            std::process::exit(0);
        }
        _ => panic!("no role {role}"),
    }
}

/// Waits for a line, or for the end of the input.
pub fn wait_to_be_told() {
    std::io::stdin().read_line(&mut String::new()).expect("a line");
}

/// Forks a child that keeps this process's descriptors, its connection among them, until its input
/// ends.
fn leave_a_child() {
    // SAFETY: the child only makes system calls, and ends without running anything of this program.
    unsafe {
        if libc::fork() == 0 {
            // The test reads its output until the end.
            libc::close(1);
            libc::close(2);
            libc::alarm(30);
            let mut byte = 0u8;
            while libc::read(0, (&raw mut byte).cast(), 1) > 0 {}
            libc::_exit(0);
        }
    }
}

/// Forbids this process to open descriptors of processes, where the test says so.
pub fn forbid_what_the_test_forbids() {
    if std::env::var_os(FORBIDDEN).is_none_or(|call| call != "pidfd_open") {
        return;
    }
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    filter_calls(&mut [
        load(0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_pidfd_open as u32, 0, 1),
        step(libc::BPF_RET | libc::BPF_K, refused, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ]);
    // SAFETY: the call is refused, and opens nothing.
    let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) };
    assert_eq!(opened, -1);
}

/// A step of a filter.
pub fn step(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// The step that loads a word of what a filter sees: at 0 is the number of the system call, from 16
/// on are its arguments, of 8 bytes each.
pub fn load(offset: u32) -> libc::sock_filter {
    step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
}

/// Has the kernel filter the system calls of all threads of this process.
pub fn filter_calls(filter: &mut [libc::sock_filter]) {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program points to that many steps, which the kernel copies.
    let results = unsafe {
        let no_new_privileges = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        let (mode, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
        (no_new_privileges, libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program))
    };
    assert_eq!(results, (0, 0), "{}", std::io::Error::last_os_error());
}

/// Three processes of one rank, all ready, each started by a program.
fn three_under(program: &[&str], role: &str, forbidden: &str) -> Vec<Child> {
    let job = new_job();
    let mut children: Vec<Child> = (0..3)
        .map(|first_rank| {
            let role = Role { name: role, job: &job, world_size: 3, first_rank, local_ranks: 1, quarter: 0 };
            let mut command = command_under(program, &role);
            command.env(FORBIDDEN, forbidden).stdin(Stdio::piped()).spawn().expect("a child starts")
        })
        .collect();
    for child in &mut children {
        wait_for_line(child, "ready");
    }
    children
}

/// Lets rank 2 die, and checks that rank 1 sees it before its deadline. Then the others may end.
fn rank_1_is_told(mut children: Vec<Child>) {
    writeln!(children[2].stdin.as_mut().expect("piped")).expect("it reads");
    let told = wait_for_line(&mut children[1], "told");
    for child in &mut children {
        drop(child.stdin.take());
    }
    let all = wait_all(children, DEADLINE);
    assert!(
        told.contains("PeerLost: rank 1: ") && told.contains("rank 2 died while this rank waited"),
        "{told}\n{all:#?}"
    );
    for (rank, (success, text)) in all.into_iter().enumerate() {
        assert!(success, "rank {rank}: {text}");
    }
}

#[test]
fn a_death_is_told_in_a_group_without_rank_0() {
    rank_1_is_told(three_under(&[], "pair: rank 0 waits", ""));
}

/// Rank 0's process continues without a rank, with its connections.
#[test]
fn a_death_is_told_when_rank_0_has_dropped_its_handles() {
    for forbidden in ["", "pidfd_open"] {
        let mut children = three_under(&[], "pair: rank 0 drops its handles", forbidden);
        wait_for_line(&mut children[0], "dropped");
        rank_1_is_told(children);
    }
}

/// Only rank 1's pidfd of rank 2's process shows the death: rank 0's process has ended, and a child
/// of rank 2's process keeps its connection.
#[test]
fn a_death_is_told_where_a_child_keeps_the_connection_and_rank_0_is_gone() {
    let mut children = three_under(&[], "pair: rank 0 exits, and rank 2 leaves a child", "");
    assert!(children[0].wait().expect("a child").success());
    rank_1_is_told(children);
}

#[test]
fn a_death_is_told_where_processes_cannot_be_watched() {
    rank_1_is_told(three_under(&[], "pair: rank 0 waits", "pidfd_open"));
}

/// Each process is the first of a namespace of its own, as the containers of a pod are.
#[test]
fn a_death_is_told_across_pid_namespaces() {
    let unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    if !can_start(&unshare) {
        return;
    }
    for role in ["pair: rank 0 waits", "pair: rank 0 drops its handles"] {
        let mut children = three_under(&unshare, role, "");
        if role == "pair: rank 0 drops its handles" {
            wait_for_line(&mut children[0], "dropped");
        }
        rank_1_is_told(children);
    }
}

/// In a user namespace without a map every user reads as the same one.
#[test]
fn a_process_that_cannot_tell_users_apart_meets_no_other() {
    let unshare = ["unshare", "--user"];
    if !can_start(&unshare) {
        return;
    }
    let job = new_job();
    let children = (0..2)
        .map(|first_rank| {
            let role = Role { name: "none", job: &job, world_size: 2, first_rank, local_ranks: 1, quarter: 0 };
            command_under(&unshare, &role).spawn().expect("a child starts")
        })
        .collect();
    for (success, text) in wait_all(children, DEADLINE) {
        assert!(!success && text.contains("this process's user reads as 65534, as does each user"), "{text}");
        assert!(text.contains("; run it as another user (in a container, with another `runAsUser`)"), "{text}");
    }
}

/// Containers often run as this user. Where all users are mapped, it is a user as any other.
#[test]
fn processes_of_the_overflow_user_meet_where_it_is_a_user() {
    let set_user = ["setpriv", "--reuid", "65534", "--clear-groups"];
    let map = std::fs::read_to_string("/proc/self/uid_map").expect("a map");
    if map.split_whitespace().ne(["0", "0", "4294967295"]) || !can_start(&set_user) {
        return;
    }
    rank_1_is_told(three_under(&set_user, "pair: rank 0 waits", ""));
}
