//! Tests in processes of their own.

use fake_gpu::{Variant, library_dir};
use test_support::timed;

use crate::nccl::is_nccl;

/// On which libraries a test runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Libraries {
    /// The stand-ins, and NCCL's own host code, where that is at hand.
    Current,
    /// The stand-ins only: NCCL itself lets it pass, or is no library that can be asked.
    Strict,
    /// Another variant of the stand-ins.
    Old,
    Previous,
    Ancient,
    NoDriver,
}

impl Libraries {
    fn variant(self) -> Variant {
        match self {
            Libraries::Current | Libraries::Strict => Variant::Current,
            Libraries::Old => Variant::Old,
            Libraries::Previous => Variant::Previous,
            Libraries::Ancient => Variant::Ancient,
            Libraries::NoDriver => Variant::NoDriver,
        }
    }
}

const CHILD: &str = "FAKE_GPU_TEST_CHILD";
/// A child prints this at the end of its test. A child that finds no test of its name does not.
const DONE: &str = "the test was done";

/// A test that runs in a child process, with a variant of the libraries in its path and a script in
/// its environment. If a text is given, the process has to end with an error that contains it.
macro_rules! test_in_child {
    ($name:ident, $variant:ident, $environment:expr, $body:expr) => {
        #[test]
        fn $name() {
            let name = concat!(module_path!(), "::", stringify!($name));
            crate::child::run(name, crate::child::Libraries::$variant, $environment, None, $body);
        }
    };
    ($name:ident, $variant:ident, $environment:expr, aborts $text:expr, $body:expr) => {
        #[test]
        fn $name() {
            let name = concat!(module_path!(), "::", stringify!($name));
            crate::child::run(name, crate::child::Libraries::$variant, $environment, Some($text), $body);
        }
    };
}
pub(crate) use test_in_child;

/// Runs the body if this is the child, and otherwise starts the child.
pub fn run(name: &str, libraries: Libraries, environment: &[(&str, &str)], aborts: Option<&str>, body: fn()) {
    if std::env::var_os(CHILD).is_some() {
        body();
        return eprintln!("{DONE}");
    }
    let has_script = environment.iter().any(|(name, _)| *name == "FAKE_NCCL");
    if is_nccl() && (libraries != Libraries::Current || has_script || aborts.is_some()) {
        return println!("skipped: this is not NCCL's own host code");
    }
    let (_, name) = name.split_once("::").expect("the crate is in front");
    let mut child = timed(std::env::current_exe().expect("this program"));
    child.args([name, "--exact", "--nocapture", "--test-threads=1"]).envs(environment.iter().copied());
    child.env(CHILD, "1").env("LD_LIBRARY_PATH", library_dir(libraries.variant()));
    let (output, text) = test_support::run(&mut child);
    let (succeeded, is_late) = (output.status.success(), output.status.code() == Some(124));
    match aborts {
        None => assert!(succeeded && text.contains(DONE), "the child ended with {}: {text}", output.status),
        Some(words) => assert!(
            !succeeded && !is_late && text.contains(words),
            "the child ended with {}, without the words {words:?}: {text}",
            output.status
        ),
    }
}
