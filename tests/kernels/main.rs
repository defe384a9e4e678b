//! Compares the kernels of `cuda/`, compiled for the host, with the crates `half` and `float8` and
//! with plain references.

mod cast;
mod copy_rows;
mod elementwise;
mod memory;
#[path = "../shared/random.rs"]
mod random;
mod reduce;
mod reference;
mod sources;
mod transpose;

use host_kernels::kernel;

/// For each kernel its entry in `cuda/kernels.list`, its name and the line that defines it.
const KERNELS: &[(&str, &str, &str)] = &include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

#[test]
fn every_kernel_is_found_by_its_name() {
    for (_, name, _) in KERNELS {
        assert!(kernel(name).is_some(), "{name}");
    }
    for name in ["", "dcl_cast_float32_float32", "dcl_cast_float32_float64", "dcl_transpose_tiled_16"] {
        assert!(kernel(name).is_none(), "{name}");
    }
}
