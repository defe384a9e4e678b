//! A program with another user of CUDA: `.ci/run` checks it with each of cudarc's ways of linking,
//! and runs it with the one that needs no CUDA.

use cudarc::driver::{CudaContext, DriverError};
use distcollective::comm::BackendKind;
use distcollective::{Communicator, ReduceOperation, Result};

fn main() -> Result<()> {
    // Not called: there may be no driver.
    let _count: fn() -> std::result::Result<i32, DriverError> = CudaContext::device_count;
    #[cfg(feature = "dynamic-loading")]
    {
        let files = cudarc::get_lib_name_candidates("cuda");
        assert!(files.iter().any(|file| file.contains("64_124")), "cudarc is not for CUDA 12.4: {files:?}");
    }
    println!("NCCL: {:?}", BackendKind::Nccl.resolve(1));
    let mut one = [1f32];
    Communicator::builder().in_process(1)?[0].all_reduce(&mut one, ReduceOperation::Sum)
}
