//! The kernels of `cuda/`, compiled for the host, against the crates `half` and `float8` and against plain references.

mod cast;
mod memory;
#[path = "../shared/random.rs"]
mod random;
mod reduce;
mod reference;
mod transpose;

use distcollective::DataType;
use host_kernels::kernel;

#[test]
fn every_kernel_has_its_name() {
    let mut names = vec!["dcl_normalize_bool".to_owned()];
    for from in DataType::ALL {
        names.extend(DataType::ALL.iter().filter(|&&to| to != from).map(|to| format!("dcl_cast_{from}_{to}")));
    }
    names.extend(DataType::ALL.iter().filter(|to| to.is_float()).map(|to| format!("dcl_divide_{to}")));
    for operation in reduce::OPERATIONS {
        names.extend(["float8_e4m3", "float8_e5m2"].map(|name| format!("dcl_reduce_{name}_{operation}")));
    }
    names.extend([1, 2, 4, 8, 16].map(|bytes| format!("dcl_transpose_{bytes}")));
    names.extend([1, 2, 4, 8].map(|bytes| format!("dcl_transpose_tiled_{bytes}")));
    for name in names {
        assert!(kernel(&name).is_some(), "{name}");
    }
    for name in ["", "dcl_cast_float32_float32", "dcl_cast_float32_float64", "dcl_transpose_tiled_16"] {
        assert!(kernel(name).is_none(), "{name}");
    }
}
