//! A program with another user of cudarc: `.ci/run` checks it with what such users ask for, and
//! runs it where that needs no CUDA.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, DriverError};
use distcollective::comm::BackendKind;
use distcollective::{Communicator, ReduceOperation, Result};
use distcollective_cudarc::CudarcStream;

fn main() -> Result<()> {
    // Not called: there may be no driver.
    let _count: fn() -> std::result::Result<i32, DriverError> = CudaContext::device_count;
    let _stream: fn(&Arc<CudaStream>) -> Result<CudarcStream> = CudarcStream::new;
    #[cfg(all(feature = "dynamic-loading", feature = "cuda-12040"))]
    {
        let files = cudarc::get_lib_name_candidates("cuda");
        assert!(files.iter().any(|file| file.contains("64_124")), "cudarc is not for CUDA 12.4: {files:?}");
    }
    println!("NCCL: {:?}", BackendKind::Nccl.resolve(1));
    let mut one = [1f32];
    Communicator::builder().in_process(1)?[0].all_reduce(&mut one, ReduceOperation::Sum)
}
