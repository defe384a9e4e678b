//! Compares what the library declares of NCCL with NVIDIA's header, which the PyPI package
//! nvidia-nccl-cu13 has in `nvidia/nccl/include`. `DCL_TEST_NCCL_HEADER` is its path.

use std::collections::BTreeMap;
use std::path::Path;
use std::{env, fs};

use crate::source::Source;
use crate::{STANDARD, bindings, root};

/// What NCCL's header needs of other headers, beside [`STANDARD`]. With them, neither CUDA's
/// headers nor a compiler's need to be installed.
const HEADERS: [(&str, &str); 3] = [
    (
        "cuda_runtime.h",
        "typedef __SIZE_TYPE__ size_t;\n\
         typedef struct CUstream_st *cudaStream_t;\ntypedef struct CUevent_st *cudaEvent_t;\n",
    ),
    ("cuda_fp16.h", ""),
    ("limits.h", "#define INT_MAX __INT_MAX__\n#define INT_MIN (-__INT_MAX__ - 1)\n"),
];

/// A structure that grows with NCCL's versions. The library declares the beginning.
const GROWING: &str = "ncclConfig_t";

#[test]
fn what_is_declared_of_nccl_is_in_its_header() {
    let Some(path) = env::var_os("DCL_TEST_NCCL_HEADER") else {
        assert!(env::var("DCL_REQUIRE_PEERS").is_err(), "DCL_TEST_NCCL_HEADER is required here");
        return eprintln!("skipped: DCL_TEST_NCCL_HEADER is not set");
    };
    let headers = [&HEADERS[..], &STANDARD].concat();
    let Some(header) = bindings(Path::new(&path), &headers, "(nccl|NCCL_).*") else { return };
    let text = fs::read_to_string(root().join("src/comm/nccl/sys.rs")).expect("text");
    let constant_count = text.matches("\npub(super) const ").count();
    let mut declared = Source::parse([text]);
    declared.rename(GROWING, &header.named_type(GROWING));

    let (known, functions) = (header.functions(), declared.functions());
    assert!(functions.len() > 25, "{functions:?}");
    for (name, signature) in functions {
        assert_eq!(known.get(&name), Some(&signature), "{name}");
    }

    let (known, constants) = (header.constants().collect::<BTreeMap<_, _>>(), declared.constants());
    let mut compared = 0;
    for (name, number) in constants {
        assert_eq!(known.get(name), Some(&number), "{name}");
        compared += 1;
    }
    assert!(compared == constant_count && compared > 20, "{compared} of {constant_count} constants");

    for name in declared.structures() {
        let in_header = header.named_type(name);
        let (known, fields) = (header.fields(&in_header), declared.fields(&in_header));
        let is_whole = known.len() == fields.len();
        assert!(known.starts_with(&fields) && (is_whole || name == GROWING), "{name}: {fields:?}\nin C: {known:?}");
        let (known, layout) = (header.asserted_layout(&in_header), declared.layout(&in_header));
        assert!(
            known.begins_with(&layout) && (known == layout || name == GROWING),
            "{name}: {layout:?} in C: {known:?}"
        );
    }
}
