//! A library that was built without the feature `nccl`: what needs a GPU is an error that says so,
//! and whatever chooses a backend chooses the host.

use std::fmt::Debug;
use std::ptr;

use distcollective::comm::{BackendKind, NcclId};
use distcollective::diagnosis::Diagnosis;
use distcollective::tensor::MemorySpace;
use distcollective::{Buffer, Communicator, DataType, Environment, ErrorKind, ReduceOperation, Result, Stream};

use crate::ranks::{DEADLINE, on_communicators};

const ABSENT: &str = "the library was built without the feature `nccl`, which CUDA and NCCL need";

fn is_unsupported<T: Debug>(result: Result<T>, message: &str) {
    let error = result.expect_err("there is no CUDA and no NCCL");
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Unsupported, message));
}

#[test]
fn what_needs_a_gpu_says_that_the_feature_is_missing() -> Result<()> {
    is_unsupported(Stream::cuda(0), ABSENT);
    is_unsupported(Buffer::zeroed_in(MemorySpace::Cuda(0), DataType::Float32, [2]), ABSENT);
    is_unsupported(NcclId::new(), ABSENT);
    is_unsupported(Communicator::check_backend(BackendKind::Nccl, 2), ABSENT);
    is_unsupported(Communicator::builder().backend(BackendKind::Nccl).in_process(2), ABSENT);
    // Another rank's id can be had, from a library that makes them.
    let id = NcclId::from_bytes(&[7; NcclId::BYTE_LEN])?;
    assert_eq!(id.as_bytes(), [7; NcclId::BYTE_LEN]);
    is_unsupported(Communicator::builder().nccl(&id).connect(), &format!("rank 0: {ABSENT}"));
    // SAFETY: null is CUDA's default stream.
    is_unsupported(unsafe { Stream::from_raw_cuda(ptr::null_mut(), 0) }, ABSENT);
    // SAFETY: null is not used as a communicator.
    is_unsupported(unsafe { Communicator::from_raw_nccl(ptr::null_mut(), DEADLINE) }, ABSENT);
    Ok(())
}

#[test]
fn auto_is_the_host() -> Result<()> {
    Communicator::check_backend(BackendKind::Auto, 2)?;
    let communicators = Communicator::builder().backend(BackendKind::Auto).timeout(DEADLINE).in_process(2)?;
    let sums = on_communicators(DEADLINE, communicators, |communicator| {
        let mut x = [1.0f32];
        communicator.all_reduce(&mut x, ReduceOperation::Sum).map(|()| (communicator.backend(), x))
    });
    for sum in sums {
        assert_eq!(sum?, (BackendKind::Host, [2.0]));
    }
    Ok(())
}

/// One test, because a process has one environment at a time.
#[test]
fn an_environment_is_on_the_host() -> Result<()> {
    let builder = Environment::builder().rank(0).world_size(1).host("localhost").port(1).timeout(DEADLINE);
    let message = format!(
        "rank 0: NCCL cannot be used: rank 0: {ABSENT}; the backend \"host\" does the same on one machine without GPUs"
    );
    is_unsupported(builder.clone().backend(BackendKind::Nccl).initialize(), &message);
    let environment = builder.backend(BackendKind::Auto).initialize()?;
    assert_eq!((environment.backend(), environment.device()), (BackendKind::Host, MemorySpace::Host));
    environment.finalize()
}

#[test]
fn the_diagnosis_says_that_the_feature_is_missing() {
    let Diagnosis { driver, gpus, nvrtc, nccl, nccl_ranks, conclusions, .. } = Diagnosis::collect();
    let problems = [driver.problem(), gpus.problem(), nvrtc.problem(), nccl.problem()];
    assert_eq!(problems, [Some(ABSENT); 4]);
    assert_eq!(nccl_ranks, 0);
    assert_eq!(conclusions[0], format!("\"auto\" is the host backend; NCCL cannot be used: {ABSENT}"));
}
