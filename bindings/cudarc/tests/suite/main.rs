//! Collectives on cudarc's streams and slices.
//!
//! A process loads CUDA once, so each test runs in a child, which finds the libraries of
//! `tests/fake_gpu` in place of CUDA and NCCL. Two ranks are threads of it, with a GPU each.

mod errors;
mod lifetimes;
mod values;

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaStream};
use distcollective::collective::Collective;
use distcollective::comm::BackendKind;
use distcollective::tensor::MemorySpace;
use distcollective::{Communicator, Rank, ReduceOperation};
use distcollective_cudarc::CudarcStream;
use fake_gpu::{Variant, library_dir};

const CHILD: &str = "DCL_TEST_CUDARC_CHILD";
/// A child prints this at the end of its test. A child that finds no test of its name does not.
const DONE: &str = "the test was done";
const SUM: Collective<Rank> = Collective::AllReduce { reduce_op: ReduceOperation::Sum };

type AnyResult<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// A test of two ranks in a child, once with CUDA's pools and once without them.
macro_rules! test_of_two_ranks {
    ($name:ident, $body:expr) => {
        #[test]
        fn $name() {
            let name = concat!(module_path!(), "::", stringify!($name));
            crate::run_two_ranks(name, $body);
        }
    };
}
pub(crate) use test_of_two_ranks;

/// What a rank has.
struct OnRank {
    communicator: Communicator,
    cuda: Arc<CudaStream>,
    stream: CudarcStream,
}

impl OnRank {
    fn rank(&self) -> usize {
        self.communicator.rank().index()
    }

    /// Lets the other rank wait for rank 1.
    fn come_late(&self) {
        if self.rank() == 1 {
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Runs the body on two ranks if this is the child, and otherwise starts children.
fn run_two_ranks(name: &str, body: fn(OnRank) -> AnyResult) {
    if std::env::var_os(CHILD).is_some() {
        let builder = Communicator::builder().backend(BackendKind::Nccl).timeout(Duration::from_secs(6));
        let communicators = builder.in_process(2).expect("two ranks");
        std::thread::scope(|scope| {
            for communicator in communicators {
                scope.spawn(move || on_rank(communicator).and_then(body).unwrap_or_else(|error| panic!("{error}")));
            }
        });
        return eprintln!("{DONE}");
    }
    let (_, name) = name.split_once("::").expect("the crate is in front");
    for pools in ["0", "1"] {
        let mut child = test_support::timed(std::env::current_exe().expect("this program"));
        child.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, "1").env("FAKE_CUDA_POOLS", pools);
        child.env("LD_LIBRARY_PATH", library_dir(Variant::Current));
        let text = test_support::succeed(&mut child);
        assert!(text.contains(DONE), "{text}");
    }
}

fn on_rank(communicator: Communicator) -> AnyResult<OnRank> {
    let MemorySpace::Cuda(ordinal) = communicator.space() else { panic!("the communicator is not on a GPU") };
    let cuda = CudaContext::new(ordinal as usize)?.new_stream()?;
    let stream = CudarcStream::new(&cuda)?;
    Ok(OnRank { communicator, cuda, stream })
}
