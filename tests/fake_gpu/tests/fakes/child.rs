//! Tests in processes of their own.

use fake_gpu::{Variant, library_dir};
use test_support::timed;

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

/// Runs the body if this is the child, and otherwise starts the child.
pub fn run(name: &str, variant: Variant, environment: &[(&str, &str)], aborts: Option<&str>, body: fn()) {
    if std::env::var_os(CHILD).is_some() {
        body();
        return eprintln!("{DONE}");
    }
    let (_, name) = name.split_once("::").expect("the crate is in front");
    let mut child = timed(std::env::current_exe().expect("this program"));
    child.args([name, "--exact", "--nocapture", "--test-threads=1"]).envs(environment.iter().copied());
    child.env(CHILD, "1").env("LD_LIBRARY_PATH", library_dir(variant));
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
