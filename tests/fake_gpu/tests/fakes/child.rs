//! Tests in processes of their own.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use fake_gpu::{Variant, library_dir};

const CHILD: &str = "FAKE_GPU_TEST_CHILD";
/// What a child says when it has done the test, as opposed to none of that name.
const DONE: &str = "the test was done";
const DEADLINE: Duration = Duration::from_secs(10);

/// A test that runs in a child process, with a variant of the libraries in its path and a script in
/// its environment. Where a text is given, the process must end with it instead of well.
macro_rules! test_in_child {
    ($name:ident, $variant:ident, $environment:expr, $body:expr) => {
        #[test]
        fn $name() {
            let name = concat!(module_path!(), "::", stringify!($name));
            crate::child::run(name, fake_gpu::Variant::$variant, $environment, None, $body);
        }
    };
    ($name:ident, $variant:ident, $environment:expr, aborts $text:expr, $body:expr) => {
        #[test]
        fn $name() {
            let name = concat!(module_path!(), "::", stringify!($name));
            crate::child::run(name, fake_gpu::Variant::$variant, $environment, Some($text), $body);
        }
    };
}
pub(crate) use test_in_child;

/// Runs the body if this is the child, else the test again as a child.
pub fn run(name: &str, variant: Variant, environment: &[(&str, &str)], aborts: Option<&str>, body: fn()) {
    if std::env::var_os(CHILD).is_some() {
        body();
        return eprintln!("{DONE}");
    }
    let (_, name) = name.split_once("::").expect("the crate is in front");
    let log =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{}.log", name.replace("::", "-"), std::process::id()));
    let file = File::create(&log).expect("a log can be made");
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, "1").env("LD_LIBRARY_PATH", library_dir(variant)).envs(environment.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
    let status = wait(command);
    let output = fs::read_to_string(&log).expect("the log can be read");
    fs::remove_file(&log).expect("the log can be removed");
    match aborts {
        None => assert!(
            status.is_some_and(|status| status.success()) && output.contains(DONE),
            "the child ended with {status:?} (none is too late): {output}"
        ),
        Some(text) => assert!(
            status.is_some_and(|status| !status.success()) && output.contains(text),
            "the child ended with {status:?}, without the words {text:?}: {output}"
        ),
    }
}

/// How the process ended, if it did in time.
fn wait(mut command: Command) -> Option<ExitStatus> {
    let mut child = command.spawn().expect("the child starts");
    let end = Instant::now() + DEADLINE;
    while Instant::now() < end {
        if let Some(status) = child.try_wait().expect("the child can be waited for") {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().expect("the child can be ended");
    child.wait().expect("the child can be waited for");
    None
}
