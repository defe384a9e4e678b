//! `distcollective launch` and other launchers, which start the demo and `distcollective env`.

mod json;

use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use test_support::{demo, has, run, timed};

const DISTCOLLECTIVE: &str = env!("CARGO_BIN_EXE_distcollective");

fn launch(n: u32, program: &[&str]) -> (Output, String) {
    run(timed(DISTCOLLECTIVE).args(["launch", "-n", &n.to_string(), "--"]).args(program))
}

/// Has the kernel refuse a system call to a command and what it starts.
fn forbid(command: &mut Command, call: libc::c_long, error: i32) -> &mut Command {
    let step = |code: u32, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut filter = [
        // The number of the call.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, call as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | error as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let set_up = move || {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: the program points to that many steps, which the kernel copies.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
        };
        if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec the child makes two system calls.
    unsafe { command.pre_exec(set_up) }
}

/// Sandboxes forbid more than ranks need.
#[test]
fn ranks_run_where_limits_cannot_be_read() {
    for arguments in
        [&["doctor"][..], &["launch", "-n", "2", "--", DISTCOLLECTIVE, "bench", "-e", "8", "--batches", "1"]]
    {
        let (output, text) = run(forbid(timed(DISTCOLLECTIVE).args(arguments), libc::SYS_prlimit64, libc::EPERM));
        assert!(output.status.success() && !text.contains("panicked"), "{arguments:?}: {text}");
    }
}

/// SIGXFSZ would end a rank that makes a longer file.
#[test]
fn a_limit_on_the_length_of_files_is_an_error_that_names_it() {
    for blocks in ["1", "4096"] {
        let script = format!("ulimit -f {blocks}; exec {DISTCOLLECTIVE} bench --processes -e 8 --batches 1");
        let (output, text) = run(timed("sh").args(["-c", &script]));
        assert!(output.status.code() == Some(1) && text.contains("(at most RLIMIT_FSIZE)"), "{blocks}: {text}");
    }
}

#[test]
fn an_old_kernel_is_told_what_the_launcher_needs() {
    let mut launch = timed(DISTCOLLECTIVE);
    let (output, text) = run(forbid(launch.args(["launch", "-n", "1", "true"]), libc::SYS_pidfd_open, libc::ENOSYS));
    let says = "its process cannot be watched: the launcher needs pidfd_open, which Linux has from 5.3 on, and which a \
                sandbox may forbid: Function not implemented (os error 38)";
    assert!(!output.status.success() && text.contains(says) && text.lines().count() == 1, "{text}");
}

fn assert_all_passed(text: &str, ranks: u32) {
    for rank in 0..ranks {
        for operation in
            ["ALL_REDUCE", "ALL_GATHER", "BROADCAST", "REDUCE", "REDUCE_SCATTER", "ALL_TO_ALL", "GATHER", "SCATTER"]
        {
            let line = format!("Rank {rank} - {operation} PASSED");
            assert_eq!(text.lines().filter(|l| l.ends_with(&line)).count(), 1, "{line}\n{text}");
        }
    }
}

/// An option that there is not, or whose value is wrong, is a mistake of the command line.
#[test]
fn wrong_options_of_the_launcher_are_not_the_program() {
    for (options, expected) in [
        (&["--n", "2", "--timout", "5", "--", "true"][..], "unexpected argument '--n' found"),
        (&["--tiemout", "3", "true"], "unexpected argument '--tiemout' found"),
        (&["-n", "1", "--verbose", "true"], "unexpected argument '--verbose' found"),
        (&["-n", "1"], "<PROGRAM>..."),
        (&["-n", "2", "--stdin", "2", "true"], "standard input is for rank 2, and the job has ranks 0 to 1"),
        (&["-n", "1", "--bind", "0;1", "true"], "--bind has 2 sets of CPUs for 1 rank; separate sets by ';'"),
        (&["-n", "1", "--bind", "0,1000", "true"], "rank 0 cannot run on CPU 1000, which this machine does not have"),
        (&["-n", "1", "--bind", "1000", "true"], "rank 0 cannot run on CPU 1000, which this machine does not have"),
    ] {
        let (output, text) = run(timed(DISTCOLLECTIVE).arg("launch").args(options));
        assert_eq!(output.status.code(), Some(2), "{options:?}: {text}");
        assert!(text.starts_with("error: ") && text.contains(expected), "{options:?}: {text}");
    }
    let (output, text) = run(timed(DISTCOLLECTIVE).args(["launch", "-n", "1", "--log-dir", "/proc/none", "true"]));
    assert!(output.status.code() == Some(1) && text.starts_with("error: --log-dir /proc/none: "), "{text}");
    // What follows the program is the program's.
    for program in [&["echo", "-n", "--tiemout"][..], &["--", "echo", "-n", "--tiemout"]] {
        let (output, text) = run(timed(DISTCOLLECTIVE).args(["launch", "-n", "1"]).args(program));
        assert_eq!((output.status.code(), text.as_str()), (Some(0), "[0] --tiemout\n"), "{program:?}");
    }
}

#[test]
fn the_demo_is_one_rank_under_the_launcher() {
    let (output, text) = launch(4, &[demo(), "--op", "all"]);
    assert!(output.status.success(), "{text}");
    assert_all_passed(&text, 4);
    assert!(text.contains("[3] Rank 3 - SCATTER PASSED"), "{text}");
    assert!(text.contains("[0] ranks: 4 processes; type: float32; backend: host"), "{text}");

    // The launcher says how many ranks there are.
    let (_, text) = launch(2, &[demo(), "--ranks", "3", "--op", "gather"]);
    assert!(text.contains("ranks: 2 processes"), "{text}");

    let (output, text) = launch(3, &[demo(), "--op", "reduce_scatter", "--columns", "4"]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("dimension 0 is 4, which is not a multiple of 3 ranks"), "{text}");
}

#[test]
fn env_shows_the_ranks_and_one_seed() {
    let seed = u64::MAX.to_string();
    let (output, text) = run(timed(DISTCOLLECTIVE)
        .args(["launch", "-n", "3", "--no-prefix", "--", DISTCOLLECTIVE])
        .args(["env", "--json", "--seed", &seed]));
    assert!(output.status.success(), "{text}");
    let mut found: Vec<serde_json::Value> = text.lines().map(json::read).collect();
    found.sort_by_key(|value| value["rank"].as_u64());
    assert_eq!(found.len(), 3);
    let all = |name: &str| found.iter().map(|value| value[name].as_u64().expect("a number")).collect::<Vec<_>>();
    assert_eq!(all("rank"), [0, 1, 2]);
    assert_eq!(all("world_size"), [3; 3]);
    assert!(found.iter().all(|value| value["seed"] == seed), "{text}");
    assert_eq!(found[1]["launcher"], "distcollective launch");
    assert_eq!(found[1]["sources"]["rank"], "RANK");
}

#[test]
fn when_a_rank_fails_the_others_are_ended_and_it_is_named() {
    let (output, text) = launch(3, &["sh", "-c", "if [ $RANK = 1 ]; then echo bye; exit 7; fi; sleep 60"]);
    assert_eq!(output.status.code(), Some(7), "{text}");
    assert!(
        text.contains("[1] bye") && text.contains("error: rank 1 exited with code 7; the other ranks were ended"),
        "{text}"
    );

    let (output, text) = launch(2, &["sh", "-c", "if [ $RANK = 0 ]; then kill -9 $$; fi; sleep 60"]);
    assert_eq!(output.status.code(), Some(128 + 9), "{text}");
    assert!(text.contains("error: rank 0 was ended by signal 9 (SIGKILL); the other ranks were ended"), "{text}");

    // A rank that waits for the failed one prints why it ends.
    let script = format!("if [ $RANK = 1 ]; then exit 3; fi; exec {DISTCOLLECTIVE} env --timeout 0.2");
    let (output, text) = launch(2, &["sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("rank 1 of 2 did not come before the deadline"), "{text}");

    let (output, text) = launch(2, &["/no/such/program"]);
    assert_eq!(output.status.code(), Some(127), "{text}");
    assert!(text.contains("\"/no/such/program\" cannot be started"), "{text}");
}

/// A rank that exits with code 0 has not failed, but ranks that wait for it to initialize would
/// wait until their deadline.
#[test]
fn ranks_do_not_wait_for_one_that_has_ended_with_code_0() {
    let env = format!("{DISTCOLLECTIVE} env --timeout 60");
    for (ended, waiting) in [(0, "ranks 1 and 2 wait"), (2, "ranks 0 and 1 wait")] {
        let (output, text) = launch(3, &["sh", "-c", &format!("[ $RANK = {ended} ] || exec {env}")]);
        assert_eq!(output.status.code(), Some(1), "{text}");
        // The launcher may see one rank wait before the other one does.
        let begin = format!("error: rank {ended} exited with code 0 and never met the others, and ");
        assert!(text.contains(&begin), "{text}");
        assert!(text.contains(waiting) || text.contains("waits for it"), "{text}");
    }
    // Ranks that initialize one environment after the other; one rank initializes one more.
    let (output, text) = launch(2, &["sh", "-c", &format!("{env} && {env} && if [ $RANK = 0 ]; then exec {env}; fi")]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("error: rank 1 exited with code 0 and never met the others, and rank 0 waits for it"),
        "{text}"
    );
    // After all ranks have connected a rank may end, even before the others know that all have.
    for _ in 0..10 {
        let (output, text) = launch(3, &["sh", "-c", &format!("{env} > /dev/null && exec {env}")]);
        assert!(output.status.success(), "{text}");
    }
}

#[test]
fn the_rank_that_fails_first_is_blamed() {
    // Rank 0 fails as soon as it sees that rank 1 has ended.
    let file = format!("/tmp/{}", unique("dcl-test-first"));
    let script = format!(
        "if [ $RANK = 1 ]; then echo $$ > {file}.new; mv {file}.new {file}; exit 7; fi
        until [ -e {file} ]; do sleep 0.01; done; read pid < {file}; rm {file}
        while grep -q '^State:[[:space:]]*[^ZX[:space:]]' /proc/$pid/status; do :; done; exit 3"
    );
    let (output, text) = launch(2, &["sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(7), "{text}");
    assert!(text.contains("error: rank 1 exited with code 7"), "{text}");
}

/// Starts the launcher in a shell that does `before`, with no signal ignored, and leaves it
/// running.
fn start(before: &str, n: u32, script: &str) -> Child {
    timed("env")
        .args(["--default-signal", "sh", "-c", &format!("{before} exec \"$@\""), "sh"])
        .args([DISTCOLLECTIVE, "launch", "-n", &n.to_string(), "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the launcher starts")
}

/// Sends a signal to `timeout`, which passes it on to the launcher.
fn send(signal: Signal, child: &Child) {
    kill_process(Pid::from_child(child), signal).expect("it runs");
}

#[test]
fn a_signal_ends_the_ranks_and_is_in_the_exit_code() {
    for (signal, number, name) in
        [(Signal::HUP, 1, "SIGHUP"), (Signal::INT, 2, "SIGINT"), (Signal::TERM, 15, "SIGTERM")]
    {
        let mut child = start("", 2, "echo $$; exec sleep 60");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let pids: Vec<String> = lines.by_ref().take(2).map(|line| line.expect("text")[4..].to_owned()).collect();
        send(signal, &child);
        let output = child.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(128 + number), "{text}");
        assert_eq!(text, format!("error: interrupted by signal {number} ({name}); the ranks were ended\n"));
        for pid in pids {
            // Its new parent may not have reaped it yet.
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            assert!(status.is_empty() || status.contains("State:\tZ") || status.contains("State:\tX"), "{status}");
        }
    }
}

#[test]
fn a_hangup_that_is_ignored_stays_ignored() {
    let mut child = start("trap '' HUP;", 1, "echo up; sleep 0.5; echo done");
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut text = String::new();
    stdout.read_line(&mut text).expect("a line");
    send(Signal::HUP, &child);
    stdout.read_to_string(&mut text).expect("the rest");
    assert!(child.wait().expect("it ends").success(), "{text}");
    assert_eq!(text, "[0] up\n[0] done\n");
}

#[test]
fn more_ranks_than_the_system_allows_are_one_line() {
    let limited = format!("ulimit -n 64; exec {DISTCOLLECTIVE} launch -n 100 -- sleep 60");
    let (output, text) = run(timed("sh").args(["-c", &limited]));
    assert_eq!(output.status.code(), Some(127), "{text}");
    assert!(text.starts_with("error: rank ") && text.contains("Too many open files"), "{text}");
    assert!(text.contains("this process may have 64 files open; see `ulimit -Hn`"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

/// More than one pipe holds, and less than the two pipes on the way: the rank ends while the
/// launcher still writes.
const MUCH: &str = "yes 12345678901234567890123456789012345678901234567890 | head -n 2000; echo last";

#[test]
fn the_last_output_waits_for_a_slow_reader() {
    let mut child = start("", 1, MUCH);
    std::thread::sleep(Duration::from_millis(2500));
    let mut text = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut text).expect("text");
    assert!(child.wait().expect("it ends").success());
    assert_eq!(text.lines().count(), 2001);
    assert!(text.ends_with("\n[0] last\n"));

    // Without a reader, a signal still ends the launcher.
    let mut child = start("", 1, MUCH);
    std::thread::sleep(Duration::from_millis(500));
    send(Signal::TERM, &child);
    assert_eq!(child.wait().expect("it ends").code(), Some(128 + 15));
}

#[test]
fn what_a_rank_leaves_behind_is_heard_while_it_speaks() {
    let script = "(for i in 1 2 3 4 5 6 7 8; do sleep 0.2; echo more $i; done; sleep 20) & echo bye";
    let (output, text) = launch(1, &["sh", "-c", script]);
    assert!(output.status.success(), "{text}");
    assert!(text.starts_with("[0] bye\n") && text.ends_with("[0] more 8\n"), "{text}");
}

/// Runs the demo on two ranks, each with variables set by hand.
fn by_hand(variables: impl Fn(u32) -> Vec<(&'static str, String)>) {
    let ranks: Vec<_> = (0..2)
        .map(|rank| {
            let variables = variables(rank);
            std::thread::spawn(move || run(timed(demo()).envs(variables)))
        })
        .collect();
    let mut all = String::new();
    for rank in ranks {
        let (output, text) = rank.join().expect("no panic");
        assert!(output.status.success(), "{text}");
        all += &text;
    }
    assert_all_passed(&all, 2);
}

fn unique(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

#[test]
fn tensorrt_variables_by_hand() {
    by_hand(|rank| {
        let file = std::env::temp_dir().join(unique("dcl-test-id")).display().to_string();
        vec![("TRT_MY_RANK", rank.to_string()), ("TRT_WORLD_SIZE", "2".to_owned()), ("TRT_NCCL_ID_FILE", file)]
    });
    let file = std::env::temp_dir().join(unique("dcl-test-id"));
    assert!(!file.exists(), "the file of the rendezvous is still there");
    std::fs::write(&file, [7; 128]).expect("a file");
    let old = [("TRT_MY_RANK", "0"), ("TRT_WORLD_SIZE", "2")];
    let (output, text) = run(timed(demo()).envs(old).env("TRT_NCCL_ID_FILE", &file));
    std::fs::remove_file(&file).expect("it is there");
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("file {file:?} has content")), "{text}");
}

/// A killed rank 0 leaves its file. A later rank 0 on this machine sees that the process has ended.
#[test]
fn a_file_that_a_killed_rank_0_left_is_no_obstacle() {
    let file = std::env::temp_dir().join(unique("dcl-test-killed"));
    let start = |rank: &str| {
        timed(DISTCOLLECTIVE)
            .args(["env", "--json"])
            .envs([("TRT_MY_RANK", rank), ("TRT_WORLD_SIZE", "2")])
            .env("TRT_NCCL_ID_FILE", &file)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts")
    };
    for signal in [Signal::TERM, Signal::KILL] {
        let mut killed = Command::new(DISTCOLLECTIVE)
            .args(["env", "--timeout", "9"])
            .envs([("TRT_MY_RANK", "0"), ("TRT_WORLD_SIZE", "2")])
            .env("TRT_NCCL_ID_FILE", &file)
            .spawn()
            .expect("it starts");
        let end = Instant::now() + Duration::from_secs(9);
        while !file.exists() {
            assert!(Instant::now() < end, "rank 0 wrote no file");
            std::thread::sleep(Duration::from_millis(5));
        }
        // A second rank 0 fails while the first one lives.
        let second = start("0").wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&second.stderr);
        assert_eq!(second.status.code(), Some(1), "{text}");
        assert!(text.contains(&format!("the rank 0 of another job, process {}, meets there", killed.id())), "{text}");
        // It is a zombie until the wait below.
        kill_process(Pid::from_child(&killed), signal).expect("it runs");
        let stat = format!("/proc/{}/stat", killed.id());
        while !std::fs::read_to_string(&stat).expect("not reaped").contains(") Z ") {
            assert!(Instant::now() < end, "{signal:?} does not end rank 0");
        }
        assert!(file.exists(), "the killed rank removed its file");
        for rank in ["0", "1"].map(start) {
            let output = rank.wait_with_output().expect("it ends");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        assert!(!file.exists());
        killed.wait().expect("an own child");
    }
}

/// A secret may have any bytes; an empty one is refused.
#[test]
fn a_secret_need_not_be_text() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let file = std::env::temp_dir().join(unique("dcl-test-secret"));
    let start = |rank: &str, secret: Option<&[u8]>| {
        let mut command = timed(DISTCOLLECTIVE);
        command.args(["env", "--timeout", "3"]).envs([("TRT_MY_RANK", rank), ("TRT_WORLD_SIZE", "2")]);
        command.env("TRT_NCCL_ID_FILE", &file).stdout(Stdio::piped()).stderr(Stdio::piped());
        match secret {
            Some(secret) => command.env("DCL_SECRET", OsStr::from_bytes(secret)),
            None => command.env_remove("DCL_SECRET"),
        };
        command.spawn().expect("it starts")
    };
    let both = |secrets: [Option<&[u8]>; 2]| {
        let ranks = [start("0", secrets[0]), start("1", secrets[1])];
        ranks.map(|rank| {
            let output = rank.wait_with_output().expect("it ends");
            (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
        })
    };
    for (success, text) in both([Some(b"\xff"), Some(b"\xff")]) {
        assert!(success, "{text}");
    }
    for other in [None, Some(&b"\xfe"[..])] {
        let [host, peer] = both([Some(b"\xff"), other]);
        assert!(!host.0 && host.1.contains("rank 0 refused 1 connection with a wrong secret"), "{}", host.1);
        assert!(!peer.0 && peer.1.contains("refuses this rank for a wrong secret: DCL_SECRET"), "{}", peer.1);
    }
    for (success, text) in both([Some(b""), Some(b"")]) {
        assert!(!success && text.contains("DCL_SECRET is empty"), "{text}");
    }
}

#[test]
fn slurm_variables_by_hand() {
    by_hand(|rank| {
        vec![
            ("SLURM_PROCID", rank.to_string()),
            ("SLURM_NTASKS", "2".to_owned()),
            ("SLURM_LOCALID", rank.to_string()),
            ("SLURM_JOB_ID", unique("job")),
            ("SLURM_STEP_ID", "0".to_owned()),
        ]
    });
}

#[test]
fn under_open_mpi() {
    if has("mpirun.openmpi") {
        let (output, text) =
            run(timed("mpirun.openmpi").args(["--allow-run-as-root", "--oversubscribe", "-np", "2", demo()]));
        assert!(output.status.success(), "{text}");
        assert_all_passed(&text, 2);
    }
}

/// mpirun inside `launch`, and the other way round: the ranks of the inner launcher are one world.
#[test]
fn the_inner_launcher_counts() {
    if has("mpirun.openmpi") {
        let inner = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", "2", demo()];
        let (output, text) = launch(1, &inner);
        assert!(output.status.success(), "{text}");
        assert_all_passed(&text, 2);
        let outer = ["--allow-run-as-root", "--oversubscribe", "-np", "1", DISTCOLLECTIVE, "launch", "-n", "2", demo()];
        let (output, text) = run(timed("mpirun.openmpi").args(outer));
        assert!(output.status.success(), "{text}");
        assert_all_passed(&text, 2);
    }
}

#[test]
fn under_mpich() {
    if has("mpirun.mpich") {
        // Ranks may be started through a shell, which is then their parent.
        for program in [&[demo()][..], &["sh", "-c", &format!("{}; exit $?", demo())]] {
            let (output, text) = run(timed("mpirun.mpich").args(["-launcher", "fork", "-np", "2"]).args(program));
            assert!(output.status.success(), "{text}");
            assert_all_passed(&text, 2);
        }
    }
}

/// Debian's torchrun (1.13) has `--no_python` only, which newer ones accept too. With its Python,
/// redirecting stdout and showing it is a way to treat the output that works.
#[test]
fn under_torchrun() {
    if has("torchrun") {
        let logs = std::env::temp_dir().join(unique("dcl-torchrun"));
        let (output, text) = run(timed("torchrun")
            .args(["--standalone", "--nproc_per_node", "2", "--monitor_interval", "0.1", "-r", "1", "-t", "1"])
            .arg("--log_dir")
            .arg(&logs)
            .args(["--no_python", demo()]));
        let _ = std::fs::remove_dir_all(logs);
        assert!(output.status.success(), "{text}");
        assert_all_passed(&text, 2);
    }
}

#[test]
fn env_tells_everything_that_is_missing() {
    let (output, text) = run(timed(DISTCOLLECTIVE).args(["env"]));
    assert_eq!(output.status.code(), Some(1));
    for what in ["rank is not given", "world_size is not given", "there is no rendezvous point"] {
        assert!(text.contains(what), "{text}");
    }
}

/// Every rank warns that two ranks have the same local rank on this machine.
#[test]
fn ranks_with_the_same_local_rank_are_warned() {
    let (output, text) = launch(2, &["sh", "-c", &format!("LOCAL_RANK=0 exec {DISTCOLLECTIVE} env")]);
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches("ranks 0 and 1 both have local rank 0 on ").count(), 2, "{text}");
}

/// The process that the launcher started for rank 0 ends; a process that it left behind is the
/// rank.
#[test]
fn a_rank_may_be_a_process_that_another_one_left_behind() {
    let script = format!("[ $RANK = 1 ] && exec {DISTCOLLECTIVE} env; (sleep 0.3; exec {DISTCOLLECTIVE} env) & exit 0");
    let (output, text) = launch(2, &["sh", "-c", &script]);
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches("local_world_size").count(), 2, "{text}");
}

/// Ranks that ask for different backends all fail at once, instead of waiting for each other.
#[test]
fn ranks_that_want_different_backends_are_told() {
    let script = format!("exec {DISTCOLLECTIVE} env --backend $([ $RANK = 1 ] && echo nccl || echo host)");
    let (output, text) = launch(3, &["sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let told = "ranks want different backends: rank 1 asks for \"nccl\"; ranks 0 and 2 ask for \"host\"";
    assert_eq!(text.matches(told).count(), 3, "{text}");
}

/// With this machine's own name as address, ranks connect over TCP, as they would on several
/// machines.
#[test]
fn ranks_meet_at_a_hosts_name() {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    // Without a name service, the look-up may take longer than this test's deadline.
    let start = Instant::now();
    let resolves = (name.as_str(), 0).to_socket_addrs().is_ok_and(|mut addresses| addresses.next().is_some());
    if !resolves || start.elapsed() > Duration::from_secs(1) {
        println!("skipped: {name} has no address that is found at once");
        return;
    }
    // A port that is free now.
    let port = TcpListener::bind(("0.0.0.0", 0)).and_then(|listener| listener.local_addr()).expect("a port").port();
    by_hand(|rank| {
        vec![
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", "2".to_owned()),
            ("MASTER_ADDR", name.clone()),
            ("MASTER_PORT", "29500".to_owned()),
            ("DCL_RENDEZVOUS_PORT", port.to_string()),
            ("DCL_SECRET", "of these two".to_owned()),
        ]
    });
}
